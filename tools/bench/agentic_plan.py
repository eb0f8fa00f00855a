"""The agentic workload as a script: who says what in which order, whatever the server answers.

Three main sessions in lock-step rounds and eleven subagents, as coding agents load a server: cold resumes,
tool loops, fan-out, compaction, a retry, an aborted paste, cleared tool results, side calls. Every
observation is made here from the seed; the assistant's turns are the server's own. Sizes are in words, about
a token each.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

# What a turn is to the figures: the first three are new long prompts, the rest continue one.
Kind = Literal[
    "resume", "side", "compaction", "restart", "loop", "retry", "resend", "return", "edit", "report"
]
NEW_PROMPTS = frozenset({"resume", "side", "compaction", "restart"})
Act = Literal["send", "abort", "retry", "side", "compact", "clear"]


@dataclass(frozen=True, slots=True)
class Profile:
    """How large the workload is: lengths are divided by ``divide``, answers capped at ``answer`` tokens."""

    name: str
    divide: int
    answer: int
    abort_s: float


PROFILES: Mapping[str, Profile] = {
    "full": Profile("full", 1, 64_000, 1.5),
    "tiny": Profile("tiny", 8, 400, 0.4),
}

# Answers: the median is 380 tokens, one in ten has more than 4,000.
_ANSWER_MEDIAN, _ANSWER_SPREAD = 380, math.log(4000 / 380) / 1.2816
_WORDS = tuple(
    word
    for line in (
        "river stone lamp green walk seven paper cloud metal garden old bright cat road winter salt music",
        "door apple quiet window bread north silver field horse letter rain small table parse header buffer",
        "token node index value return import class self length offset error state queue result",
    )
    for word in line.split()
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session: ``text`` is what is said before it, ``fan_out`` who runs after its answer.

    ``delay_s`` orders the sessions of a round; ``waits_for`` are sessions that must have ended before.
    """

    kind: Kind
    text: str
    answer: int
    act: Act = "send"
    delay_s: float = 0.0
    fan_out: tuple[Session, ...] = ()
    waits_for: tuple[str, ...] = ()
    keep: int = 20


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation: system text, a history to resume (user and assistant texts in turn) and its turns.

    ``preserve``: the client asks for closed reasoning to stay in the prompt.
    """

    name: str
    system: str
    history: tuple[str, ...]
    turns: tuple[Turn, ...]
    preserve: bool = True

    @property
    def is_main(self) -> bool:
        return len(self.name) == 1

    def everyone(self) -> Iterator[Session]:
        """This session and the subagents that it starts."""
        yield self
        for turn in self.turns:
            for child in turn.fan_out:
                yield from child.everyone()


class _Maker:
    """Draws texts and sizes for one profile, scale and seed."""

    def __init__(self, profile: Profile, scale: float, seed: int) -> None:
        self._random = random.Random(seed)
        self._profile, self._scale = profile, scale
        self._agents = 0

    def text(self, words: int) -> str:
        """Numbered lines of about ``words`` words at full size, as a tool would print them."""
        left, lines = max(8, words // self._profile.divide), []
        while left > 0:
            count = min(left, self._random.randint(5, 14))
            line = " ".join(self._random.choices(_WORDS, k=count))
            lines.append(f"{len(lines) + 1}: {line}")
            left -= count + 2
        return "\n".join(lines)

    def answer(self) -> int:
        drawn = self._random.lognormvariate(math.log(_ANSWER_MEDIAN), _ANSWER_SPREAD)
        return max(16, min(int(drawn) // self._profile.divide, self._profile.answer))

    def times(self, count: int) -> int:
        return max(1, round(count * self._scale))

    def history(self, words: int, parts: int) -> tuple[str, ...]:
        """An even number of texts, so that it ends with the assistant's."""
        parts = max(3, parts | 1)
        return tuple(self.text(words // parts) for _ in range(parts - 1))

    def turn(self, kind: Kind, words: int, act: Act = "send", **members: object) -> Turn:
        delay = self._random.uniform(0.0, 0.2)
        return Turn(kind, self.text(words), self.answer(), act, delay, **members)  # type: ignore[arg-type]

    def loop(self, count: int) -> list[Turn]:
        sizes = [int(self._random.lognormvariate(math.log(1200), 0.9)) for _ in range(self.times(count))]
        return [self.turn("loop", min(size, 8000)) for size in sizes]

    def agent(self, name: str, shared: str) -> Session:
        """A subagent: 12,000 to 15,000 words that its kind shares, a task, four or five turns, a report."""
        self._agents += 1
        turns = [self.turn("resume", 400), *self.loop(2 + self._agents % 2), self.turn("report", 300)]
        return Session(name, shared, (), tuple(turns))

    def agents(self, kind: str, first: int, count: int, shared: str) -> tuple[Session, ...]:
        return tuple(self.agent(f"{kind}-{first + index}", shared) for index in range(count))


def make_plan(profile: Profile, scale: float = 1.0, seed: int = 42) -> tuple[Session, ...]:
    """The three main sessions with all that they start; the same arguments give the same plan."""
    make = _Maker(profile, scale, seed)
    explore, survey, review = (make.text(words) for words in (13_000, 15_000, 12_000))
    return (
        _session_a(make, explore, review),
        _session_b(make, survey),
        _session_c(make, review),
    )


def _session_a(make: _Maker, explore: str, review: str) -> Session:
    turns = [
        make.turn("resume", 500),
        *make.loop(14),
        make.turn("loop", 600, fan_out=make.agents("explore", 1, 4, explore)),
        *make.loop(10),
        make.turn("compaction", 300, "compact"),
        make.turn("restart", 800),
        *make.loop(2),
        make.turn("loop", 600, fan_out=make.agents("explore", 5, 3, explore)),
        make.turn("return", 900, waits_for=("B", "C")),
        *make.loop(7),
        make.turn("loop", 500, fan_out=make.agents("review", 2, 1, review)),
        make.turn("report", 1200),
    ]
    return Session("A", make.text(13_000), make.history(72_000, 61), tuple(turns))


def _session_b(make: _Maker, survey: str) -> Session:
    turns = [
        make.turn("resume", 500),
        *make.loop(5),
        make.turn("retry", 0, "retry"),
        *make.loop(4),
        make.turn("side", 2_000, "side"),
        make.turn("loop", 600, fan_out=make.agents("survey", 1, 2, survey)),
        make.turn("return", 900),
        *make.loop(7),
        make.turn("side", 2_000, "side"),
        make.turn("edit", 600, "clear"),
        *make.loop(6),
    ]
    return Session("B", make.text(11_000), make.history(49_000, 51), tuple(turns), preserve=False)


def _session_c(make: _Maker, review: str) -> Session:
    turns = [
        make.turn("resume", 500),
        *make.loop(6),
        make.turn("loop", 16_000, "abort"),
        make.turn("resend", 0, "retry"),
        make.turn("loop", 500, fan_out=make.agents("review", 1, 1, review)),
        *make.loop(7),
    ]
    return Session("C", make.text(9_000), make.history(16_000, 25), tuple(turns))


def request_count(sessions: Sequence[Session]) -> int:
    """Requests of the whole plan."""
    return sum(len(one.turns) for session in sessions for one in session.everyone())
