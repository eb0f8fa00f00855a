"""How wide rounds become: costs and acceptance decide, and what has changed is found again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ninfer.fast.draft.widths import WidthChooser


def simulate(
    chooser: WidthChooser, rounds: int, accept: float, cost: Callable[[int], float], rows: int = 1
) -> tuple[float, float, list[int]]:
    """Tokens and seconds of so many rounds with this acceptance per place, and the widths chosen."""
    random, tokens, seconds, widths = np.random.default_rng(1), 0, 0.0, []
    for _ in range(rounds):
        width = chooser.choose(rows)
        kept = 0
        while kept < width and random.random() < accept:
            kept += 1
        chooser.note(rows, width, cost(width), [(width, kept)] * rows)
        tokens, seconds = tokens + 1 + kept, seconds + cost(width)
        widths.append(width)
    return tokens, seconds, widths


def linear(width: int) -> float:
    """A verification of w drafts costs half a step more for each."""
    return 1.0 + 0.5 * width


def test_a_drafter_that_is_always_wrong_costs_next_to_nothing() -> None:
    """Gate 3 in the abstract: of 1,000 rounds at least 0.97 of the speed of no drafter."""
    tokens, seconds, widths = simulate(WidthChooser(3), 1000, 0.0, linear)
    assert tokens / seconds >= 0.97
    assert widths.count(0) > 950


def test_rounds_that_are_passed_over_are_those_that_would_have_been_chosen() -> None:
    def widths(passes: bool) -> list[int]:
        chooser, chosen = WidthChooser(3), list[int]()
        while len(chosen) < 3000:
            width = chooser.choose(1)
            chosen.append(width)
            if width or chooser.needs_cost(1):
                chooser.note(1, width, linear(width), [(width, 0)] if width else [])
            if passes and not width:
                chosen += [0] * chooser.pass_over(1, 1000)
        return chosen[:3000]

    assert widths(True) == widths(False)
    assert 1 < sum(width > 0 for width in widths(True)) < 60


def test_a_drafter_that_is_always_right_is_used_to_its_width() -> None:
    tokens, seconds, widths = simulate(WidthChooser(5), 1000, 1.0, linear)
    assert tokens / seconds > 0.97 * 6 / linear(5)
    assert widths.count(5) > 900


def test_costs_decide_between_equal_drafters() -> None:
    """With acceptance 0.6 a cheap verification goes wide, a dear one does not."""
    _, _, wide = simulate(WidthChooser(4), 600, 0.6, lambda width: 1 + 0.05 * width)
    _, _, narrow = simulate(WidthChooser(4), 600, 0.6, lambda width: 1 + 0.55 * width)
    assert np.mean(wide[300:]) > 3
    assert np.mean(narrow[300:]) < 1.5


def test_a_drafter_that_becomes_right_is_found_again() -> None:
    chooser = WidthChooser(3)
    simulate(chooser, 500, 0.0, linear)
    _, _, widths = simulate(chooser, 3000, 1.0, linear)
    assert widths[-200:].count(3) > 150


def test_a_first_round_that_was_slow_by_chance_does_not_decide_for_ever() -> None:
    chooser, rounds = WidthChooser(3), iter(range(10**6))

    def spiky(width: int) -> float:
        return linear(width) * (100 if next(rounds) in (6, 7, 8, 9, 10, 11) else 1)

    _, _, widths = simulate(chooser, 2000, 0.0, spiky)
    assert widths[-500:].count(0) > 450


def test_every_batch_size_has_its_own_costs() -> None:
    chooser = WidthChooser(3)
    simulate(chooser, 300, 0.7, lambda width: 1 + 0.01 * width, rows=1)
    _, _, widths = simulate(chooser, 300, 0.7, lambda width: 1 + 2.0 * width, rows=8)
    assert widths[-100:].count(0) > 90
