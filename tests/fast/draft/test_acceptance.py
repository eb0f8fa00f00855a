"""Runs of tokens taken at once: everything is as if each had been committed by itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.events import Delta
from ninfer.engine.requests import ThinkingBudget
from ninfer.engine.turn import Turn
from ninfer.fast.draft.acceptance import Settled, accept
from ninfer.fast.program.program import check_drawn
from tests.engine.requests import generation

# Half characters, a close of thinking whole and in pieces, pieces of stop strings, an id without text.
TEXTS = [
    b"a", b"b", b"ab", b"stop", b"st", b"op", b"\xe2\x82", b"\xac", b"</thi", b"nk>", b"</think>", b"\n\n",
    b"", b"\xff", b"<end>",
]  # fmt: skip
STOP_ID = len(TEXTS) - 1
BROKEN = STOP_ID + 1  # an id whose text cannot be read
CLOSING = (0, 10, 11, 1, 2)  # content begins before the last of them


def token_bytes(token: int) -> bytes:
    if token == BROKEN:
        raise AssertionError("ours")
    return TEXTS[token]


def accept_singly(turn: Turn, drafts: list[int], drawn: list[int], at: float) -> tuple[list[int], Settled]:
    """The rule as it reads: one token after the other while drafts were right and nothing has ended."""
    tokens, deltas = list[int](), list[Delta]()
    try:
        for column in range(len(drawn)):
            forced = turn.forced
            if column and forced is None and drawn[column] < 0:
                break
            token = check_drawn(drawn[column]) if forced is None else forced
            deltas += turn.commit(token, at)
            tokens.append(token)
            if turn.reason is not None or column == len(drafts) or drafts[column] != token:
                break
    except Exception as error:
        return tokens, Settled(len(tokens), deltas, error)
    return tokens, Settled(len(tokens), deltas)


@dataclass(slots=True)
class Told:
    """What rounds came to; deltas of one channel in one round are one."""

    rounds: list[tuple[object, ...]] = field(default_factory=list)

    def add(self, turn: Turn, deltas: list[Delta], *more: object) -> None:
        joined: list[list[object]] = []
        for delta in deltas:
            if joined and joined[-1][0] == delta.channel:
                before = joined[-1]
                delta = Delta(
                    delta.id, delta.channel, f"{before[1]}{delta.text}", (*before[2], *delta.token_ids),  # type: ignore[misc]
                    delta.committed, delta.prompt_s, delta.decode_s,
                )  # fmt: skip
                joined.pop()
            joined.append(
                [delta.channel, delta.text, delta.token_ids, delta.committed, delta.prompt_s, delta.decode_s]
            )
        counts = turn.committed, turn.reasoning_tokens, turn.control_tokens, turn.model_thinking_tokens
        ends = turn.reason, turn.stop_string, turn.stop_token, turn.in_thinking, turn.forced
        self.rounds.append((joined, turn.counts.tolist(), counts, ends, turn.last, *more))


runs = st.lists(st.integers(0, BROKEN) | st.sampled_from([0, 1, 2]), min_size=1, max_size=12)


@given(
    rounds=st.lists(st.tuples(runs, st.none() | st.integers(0, 12), st.integers(-2, BROKEN)), max_size=6),
    room=st.integers(1, 40),
    stops=st.lists(st.sampled_from(["stop", "ab", "€", "bs", "a\n\n", "xyz"]), max_size=2, unique=True),
    channel=st.sampled_from(["reasoning", "content"]),
    ignore=st.booleans(),
    budget=st.none() | st.integers(0, 20),
)
def test_a_run_is_what_its_tokens_are_one_by_one(
    rounds: list[tuple[list[int], int | None, int]],
    room: int,
    stops: list[str],
    channel: str,
    ignore: bool,
    budget: int | None,
) -> None:
    """Rounds of drafts of which the target drew all, or something else at one place; failures included."""
    request = generation(
        "1",
        stops=tuple(stops),
        initial_channel=channel,
        stop_token_ids=(STOP_ID,),
        ignore_stop_tokens=ignore,
        thinking_budget=None if budget is None else ThinkingBudget(budget, CLOSING),
    )
    told = []
    for way in (accept, accept_singly):
        turn, one = Turn(request, token_bytes, 3, room, len(TEXTS)), Told()
        turn.begin(1.0)
        for number, (run, wrong_at, other) in enumerate(rounds):
            if turn.reason is not None:
                break
            drawn = run[:]
            if wrong_at is not None:
                drawn[wrong_at % len(run)] = other
            drafts = np.array(run[:-1], np.int32)
            tokens, settled = way(turn, drafts, np.array(drawn, np.int32), 2.0 + number)  # type: ignore[operator]
            one.add(turn, settled.deltas, tokens, settled.tokens, repr(settled.error))
            if settled.error is not None:
                break
        one.add(turn, list(turn.close()))
        told.append(one)
    assert told[0] == told[1]
