"""The committed tables under ``docs/`` are those that ``spec/`` makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninfer.spec import document
from ninfer.spec.errors import error_table
from ninfer.spec.options import option_table, programs
from tools.docs import PAGES, ROOT, errors_page, main, options_page, streams_page


@pytest.mark.parametrize("name", PAGES)
def test_committed_page_is_current(name: str) -> None:
    committed = (ROOT / name).read_text(encoding="utf-8")
    assert committed == PAGES[name](), f"{name} differs from spec/: run make docs and commit"


def test_options_page_has_a_row_for_every_option() -> None:
    parts = options_page().split("\n## ")[1:]
    assert len(parts) == len(programs())
    for program, part in zip(programs(), parts, strict=True):
        assert part.startswith(f"`{program}`")
        rows = [line for line in part.splitlines() if line.startswith("| `")]
        table = option_table(program)
        assert len(rows) == len(table.options) + len(table.environment)
        assert all(row.replace("\\|", "").count("|") == 6 for row in rows)


def test_errors_page_has_a_row_for_every_code() -> None:
    page = errors_page()
    assert all(f"| `{code}` | {row.status} |" in page for code, row in error_table().items())


def test_streams_page_has_every_transition() -> None:
    page = streams_page()
    for protocol, table in document("http/streams").items():
        _, _, part = page.partition(f"## {protocol}\n")
        part = part.partition("\n## ")[0]
        for state, events in table["transitions"].items():
            (row,) = [line for line in part.splitlines() if line.startswith(f"| `{state}`")]
            assert all(f"`{event}` → `{following}`" in row for event, following in events.items())


def test_check_tells_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"], tmp_path) == 1
    assert "docs/options.md: differs" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    (tmp_path / "docs/errors.md").write_text("old")
    assert main(["--check"], tmp_path) == 1
