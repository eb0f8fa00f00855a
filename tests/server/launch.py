"""``python -m tests.server.launch CONFIG [OPTION]...``: ``ninfer-serve`` with an engine or limits for tests.

CONFIG is JSON: ``engine`` overrides engine settings (``{"engine": "scripted", "script": FILE}``), ``limits``
the transport's.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from ninfer.cli.parser import ParsedOptions, run
from ninfer.server.main import serve


def main() -> int:
    config = json.loads(sys.argv[1])

    def start(options: ParsedOptions) -> int:
        from ninfer.server.transport import transport_limits

        limits = dataclasses.replace(transport_limits(), **config.get("limits", {}))
        return serve(options, config.get("engine"), limits)

    return run("ninfer-serve", sys.argv[2:], start)


if __name__ == "__main__":
    sys.exit(main())
