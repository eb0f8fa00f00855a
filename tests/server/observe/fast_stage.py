"""What tests of the fast engine's records share: small requests, slowed units, sums over lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.server.fast_host import FastHost
from tests.server.observe.lines import Line

ASKED: dict[str, Any] = {"temperature": 0, "enable_thinking": False}


def turn(tokens: int, digit: str = "7") -> list[dict[str, str]]:
    """A user message of so many tokens: digits are one each."""
    return [{"role": "user", "content": digit * tokens}]


def slow(host: FastHost, seconds: float, kind: str = "round") -> None:
    """Make units of a kind take longer."""

    def before(unit: str) -> None:
        if unit == kind:
            time.sleep(seconds)

    host.program.before = before


def totals(lines: list[Line], pick: Callable[[Line], int]) -> int:
    return sum(pick(line) for line in lines)
