"""What every engine implements, and the process it lives in.

``requests.py``/``events.py`` are the frames, ``interface.py`` the two protocols (host, serial engine),
``settings.py`` what an engine process is started with, ``worker.py`` the queue in front of a serial engine,
``host.py``/``child.py`` the two ends of the socket pair, ``scripted.py`` an engine for tests.
Imports no engine statically and never the server.
"""
