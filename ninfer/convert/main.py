"""The program ``ninfer-convert``: convert, verify, or inspect.

Owns its output: reports on stdout, notes and progress on stderr. What it does is in ``pipeline``,
``verify``, ``inspect``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ninfer.cli.parser import ParsedOptions, run
from ninfer.convert.inspect import describe
from ninfer.convert.pipeline import convert
from ninfer.convert.progress import Progress
from ninfer.errors import OptionError

PROGRAM = "ninfer-convert"
_FAILED = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; the exit status."""
    return run(PROGRAM, argv, _main)


def _main(options: ParsedOptions) -> int:
    if options["inspect"] is not None:
        sys.stdout.write(describe(Path(options["inspect"])))
        return 0
    if options["recipe"] is not None:
        _convert(options)
    return _verify(options) if options["verify"] is not None else 0


def _convert(options: ParsedOptions) -> None:
    started = time.monotonic()
    template, metadata = options["chat_template"], dict(options["metadata"])
    if "name" in metadata and options["name"] is not None:
        raise OptionError("--metadata", "name is what --name sets; give one of them")
    done = convert(
        Path(options["checkpoint"]),
        Path(options["out"]),
        options["recipe"],
        name=options["name"],
        metadata=metadata,
        chat_template=None if template is None else Path(template),
        max_file_bytes=options["max_file_bytes"],
        rows_per_chunk=options["rows_per_chunk"],
        proposal_rows=options["proposal_rows"],
        progress=Progress(sys.stderr, time.monotonic),
        note=lambda line: print(f"{PROGRAM}: {line}", file=sys.stderr),
    )
    seconds = time.monotonic() - started
    print(
        f"{done.path}: recipe {options['recipe']}, {done.parameters:,} parameters, "
        f"{done.payload_bytes:,} payload bytes, {seconds:.1f} s"
    )


def _verify(options: ParsedOptions) -> int:
    from ninfer.convert.verify import compare_layers

    passed = True
    for layer in compare_layers(Path(options["checkpoint"]), Path(options["out"]), options["verify"]):
        print(layer.line())
        passed &= layer.passed
    return 0 if passed else _FAILED


if __name__ == "__main__":
    sys.exit(main())
