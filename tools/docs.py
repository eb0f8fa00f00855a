"""Makes the tables under ``docs/`` from ``spec/``.

    python -m tools.docs          # write docs/options.md, docs/errors.md and docs/streams.md
    python -m tools.docs --check  # exit 1 when a committed page differs

The pages say where they come from; nobody edits them by hand.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ninfer import spec
from ninfer.cli.option_help import availability, default_text, label, relations, values_text
from ninfer.spec.errors import error_table
from ninfer.spec.options import Option, OptionTable, option_table, programs

ROOT = Path(__file__).parents[1]


def options_page() -> str:
    """``docs/options.md``: every option of every program, by topic."""
    parts = [
        "# Options",
        "Made from `spec/options.yaml` by `make docs`. An option that is not available yet is refused at "
        "start-up by name, whatever its value; nothing is ever ignored.",
    ]
    for program in programs():
        table = option_table(program)
        parts += [f"## `{program}`", table.summary, f"`{program} {table.usage}`"]
        for title, options in table.by_topic():
            rows = [_option_row(table, option) for option in options]
            parts += [f"### {title}", _table(("option", "meaning", "values", "default", "available"), rows)]
        if table.environment:
            parts.append("### Environment")
            parts.append(_environment(table))
    return "\n\n".join(parts) + "\n"


def errors_page() -> str:
    """``docs/errors.md``: every error code of the HTTP surface."""
    rows = [
        (f"`{row.code}`", str(row.status), f"`{row.type}`", row.meaning, "yes" if row.in_use else "not yet")
        for row in error_table().values()
    ]
    return (
        "\n\n".join(
            (
                "# Errors",
                "Made from `spec/http/errors.yaml` by `make docs`. Status and type are those of the "
                "OpenAI-style routes.",
                _table(("code", "status", "type", "when", "in use"), rows),
            )
        )
        + "\n"
    )


def streams_page() -> str:
    """``docs/streams.md``: which event of a stream may follow which, for every protocol."""
    parts = [
        "# Streams",
        "Made from `spec/http/streams.yaml` by `make docs`. A stream begins in its first state and takes one "
        "of the events of the state that it is in; it may stop in a final state only. Comments do not count.",
    ]
    for protocol, table in spec.document("http/streams").items():
        rows = [
            (
                f"`{state}`" + (" (final)" if state in table["end"] else ""),
                ", ".join(f"`{event}` → `{following}`" for event, following in events.items()) or "nothing",
            )
            for state, events in table["transitions"].items()
        ]
        parts += [f"## {protocol}", _table(("state", "event → next state"), rows)]
    return "\n\n".join(parts) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "docs/options.md": options_page,
    "docs/errors.md": errors_page,
    "docs/streams.md": streams_page,
}


def _option_row(table: OptionTable, option: Option) -> tuple[str, ...]:
    missing = availability(table, option)
    notes = "; ".join((option.help.rstrip("."), *relations(option)))
    return f"`{label(option)}`", notes, values_text(option), default_text(option), missing or "yes"


def _environment(table: OptionTable) -> str:
    rows = [
        (
            f"`{variable.name}`",
            variable.help.rstrip("."),
            "one of " + ", ".join(variable.choices),
            variable.default,
            "yes" if variable.works else f"no effect yet: comes with {table.owners[variable.owner]}",
        )
        for variable in table.environment
    ]
    return _table(("variable", "meaning", "values", "default", "available"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Write or check the pages; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs", description="Make docs/ tables from spec/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page differs")
    options = parser.parse_args(argv)
    stale = []
    for name, page in PAGES.items():
        path, text = root / name, page()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"{name}: {'differs from spec/, run make docs' if options.check else 'written'}")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
