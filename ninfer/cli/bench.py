"""``ninfer-bench``: measures prefill and decode speed of one artifact; the report goes to stdout or a file.

Only the way in, so that ``--help`` and a wrong option answer at once: the work stands in ``bench_run``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ninfer.cli.parser import run


def main(argv: Sequence[str] | None = None) -> int:
    """The console script; the exit status."""
    # As for an engine process: threads that spin between parallel regions take the cores of the next one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return run("ninfer-bench", argv, _measure)


def _measure(options: Mapping[str, Any]) -> int:
    from ninfer.cli.bench_run import measure

    return measure(options)


if __name__ == "__main__":
    sys.exit(main())
