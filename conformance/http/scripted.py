"""``python -m conformance.http.scripted SCRIPT [OPTION]...``: ``ninfer-serve`` over a scripted engine.

The one place of this suite that knows how our server is put together.
"""

from __future__ import annotations

import sys

from ninfer.cli.parser import ParsedOptions, run
from ninfer.server.main import serve


def main() -> int:
    def start(options: ParsedOptions) -> int:
        return serve(options, {"engine": "scripted", "script": sys.argv[1]})

    return run("ninfer-serve", sys.argv[2:], start)


if __name__ == "__main__":
    sys.exit(main())
