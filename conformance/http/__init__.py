"""Black-box checks of the HTTP surface, against any base URL.

``NINFER_BASE_URL=http://host:port python -m pytest conformance/http`` checks a running server; without the
variable the suite starts ``ninfer-serve`` on the bundled model. ``cases/`` holds requests and expectations as
data, ``contract.py`` reads ``spec/``; nothing here imports the implementation.
"""
