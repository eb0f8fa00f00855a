"""What every engine implements, and the process it lives in.

``requests.py``/``events.py`` are the frames, ``interface.py`` the two protocols (host, serial engine),
``settings.py`` what an engine process is started with, ``host.py`` the process and its socket pair.
Imports no engine statically and never the server.
"""
