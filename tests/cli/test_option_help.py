"""The help text is the whole option contract of a program, each option exactly once."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from ninfer.cli.option_help import render_help
from ninfer.spec import document
from ninfer.spec.options import Option, option_table, programs


def help_entries(text: str) -> dict[str, str]:
    """Option name → its whole entry, read from the printed help."""
    entries: dict[str, list[str]] = {}
    for line in text.splitlines():
        if head := re.match(r"  (?:-\w+, )?(--?[A-Za-z][\w-]*)", line):
            assert head[1] not in entries, f"{head[1]} has two entries"
            entries[head[1]] = []
            current = entries[head[1]]
        elif not line.startswith("   "):
            current = []
        current.append(line)
    return {name: " ".join(" ".join(lines).split()) for name, lines in entries.items()}


def expected_facts(row: Option) -> list[str]:
    facts = [choice.value for choice in row.choices]
    if row.minimum is not None:
        facts.append(f"{row.minimum}..{row.maximum}" if row.maximum is not None else f"{row.minimum}")
    if not row.required_unless and row.name not in ("--help", "--version"):
        facts.append("default: ")
    if row.default_text is None and isinstance(row.default, int) and not isinstance(row.default, bool):
        facts.append(f"default: {row.default}")
    return facts


@pytest.mark.clause("OPT-093")
def test_serve_help_is_the_whole_contract() -> None:
    """As a user sees it: exit 0, each option of the contract exactly once, with range and default."""
    program = "import sys; sys.argv[1:] = ['--help']; from ninfer.server.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    entries = help_entries(done.stdout)
    listed = {clause["must"].split()[0].rstrip(":") for clause in document("clauses/opt")}
    listed = {name for name in listed if name.startswith("--")}
    assert len(listed) > 70
    for name in listed:
        assert len(re.findall(rf"(?<![\w-]){name}(?![\w-])", done.stdout)) == 1, name
        for fact in expected_facts(option_table("ninfer-serve").named(name)):
            assert fact in entries[name], (name, fact)


@pytest.mark.parametrize("program", programs())
def test_help_shows_every_option_once_within_100_columns(program: str) -> None:
    table = option_table(program)
    text = render_help(table)
    assert max(len(line) for line in text.splitlines()) <= 100
    entries = help_entries(text)
    named = [row for row in table.options if not row.positional]
    assert set(entries) == {row.name for row in named}
    for row in named:
        assert len(re.findall(rf"(?<![\w-]){row.name}(?![\w-])", text)) == 1
        assert [fact for fact in expected_facts(row) if fact not in entries[row.name]] == [], row.name
        assert row.works == ("not available yet: comes with" not in entries[row.name]) or row.choices
    titles = re.findall(r"(?m)^(\S.*):$", text)
    assert titles[: len(list(table.by_topic()))] == [title for title, _ in table.by_topic()]


def test_help_names_choices_that_do_not_work_yet() -> None:
    entry = help_entries(render_help(option_table("ninfer-serve")))["--kv-dtype"]
    assert "(vq2, k4v2 not available yet" in entry


def test_help_needs_no_heavy_import() -> None:
    program = (
        "import sys\nfrom ninfer.cli.parser import parse\n"
        "try:\n    parse('ninfer-serve', ['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'sanic', 'numpy', 'transformers', 'tokenizers', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
