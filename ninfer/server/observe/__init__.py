"""What the server tells of itself: metrics, the request log, console records and the statistics panel.

``observer.py`` follows each request's life and hands frozen records (``records.py``) to sinks:
``metrics.py``, ``request_log.py`` and ``reports.py`` (console and panel). They all read the same records and
the engine's own snapshots, so what they say adds up. No prompt, answer or key passes through here.
"""
