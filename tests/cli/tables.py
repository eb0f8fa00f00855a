"""Option tables as they will be: relations and ranges are judged before the options work."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from ninfer.cli.parser import ParsedOptions, parse_table
from ninfer.errors import OptionError
from ninfer.spec.options import OptionTable, option_table


def all_working(program: str) -> OptionTable:
    """The table as it will be when every option works: ranges and relations are judged already."""
    table = option_table(program)
    options = tuple(
        dataclasses.replace(
            row, works=True, choices=tuple(dataclasses.replace(choice, works=True) for choice in row.choices)
        )
        for row in table.options
    )
    return dataclasses.replace(table, works=True, options=options)


def parse_all(argv: str | Sequence[str], program: str = "ninfer-serve") -> ParsedOptions:
    return parse_table(all_working(program), argv.split() if isinstance(argv, str) else argv)


def refusal(argv: str | Sequence[str], program: str = "ninfer-serve") -> OptionError:
    with pytest.raises(OptionError) as refused:
        parse_all(argv, program)
    return refused.value
