"""What a round of copies costs on a device: all of it, the host's part by what is done, and the device's.

Copies of text that the model is about to write go through the whole round: index, proposal, verification,
acceptance, fold, pairs for the prediction head. Beside the medians over such rounds stands the time of the
bare verification (Forward, Finish, fold) of as many columns at half the depth: what is more than that is what
the host and the head's pairs cost the user.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from ninfer.engine.requests import GenerationRequest
from ninfer.engine.settings import DraftSettings
from ninfer.fast.draft import speculation as speculation_module
from ninfer.fast.draft.speculation import RequestDraft, Speculation
from ninfer.fast.memory.lanes import Lane
from ninfer.fast.prefix.content import Content
from ninfer.fast.program.gpu.device import Waiter
from ninfer.fast.program.gpu.program import GpuProgram
from ninfer.fast.program.gpu.shapes import bucket
from ninfer.sampling.parameters import SamplingParameters

PROMPT, CONTEXT = 256, 4096


@dataclass(slots=True)
class Watch:
    """Seconds that the host spends in some calls of a round, by their names; those in others not counted."""

    seconds: dict[str, float] = field(default_factory=dict)
    _inside: list[float] = field(default_factory=list)

    def over(self, owner: Any, method: str, name: str | Callable[..., str] = "") -> None:
        """Watch ``owner.method``; ``name`` is what it is counted as, or says so of its arguments."""
        call, known = getattr(owner, method), name or method.strip("_")

        def watched(*arguments: Any) -> Any:
            self._inside.append(0.0)
            began = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                spent = time.perf_counter() - began
                key = known if isinstance(known, str) else known(*arguments)
                self.seconds[key] = self.seconds.get(key, 0.0) + spent - self._inside.pop()
                if self._inside:
                    self._inside[-1] += spent

        setattr(owner, method, watched)

    def take(self) -> dict[str, float]:
        """What was counted since the last call."""
        taken, self.seconds = self.seconds, {}
        return taken


def watched(program: GpuProgram) -> Watch:
    """Waiting, graphs by what they hold, and the parts of a round around them."""
    watch, mtp = Watch(), program.mtp
    assert mtp is not None
    watch.over(Waiter, "wait")
    watch.over(program._graphs, "run", lambda key, launch: f"graph_{key[0]}")
    for owner, method, name in (
        (mtp, "flush", ""), (mtp, "draft", ""), (mtp, "committed", "note"), (program._verifier, "_fill", ""),
        (program._verifier, "_pad", ""), (program._verifier, "commit", ""), (program._control, "send", ""),
        (program._verifier, "_finish", "drawn"), (program, "verify", ""), (speculation_module, "accept", ""),
    ):  # fmt: skip
        watch.over(owner, method, name)
    return watch


class Endless:
    """A turn that takes whatever comes."""

    forced = reason = None
    left = 100_000

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def commit(self, token: int, at: float) -> tuple[()]:
        """Count it as a turn does."""
        self._sampler.counts[token] += 1
        return ()

    def commit_text(self, tokens: Sequence[int], at: float) -> tuple[list[int], list[Any]]:
        """As ``commit`` one by one."""
        np.add.at(self._sampler.counts, tokens, 1)
        return list(tokens), []


@dataclass(slots=True, eq=False)
class Member:
    """A request in rounds."""

    bound: Lane
    sampler: Any
    token: int
    turn: Any
    text: Content
    draft: RequestDraft | None = None
    tokens: list[int] = field(default_factory=list)

    def took(self, tokens: Sequence[int]) -> None:
        """Committed."""
        self.token = tokens[-1]
        self.text.extend(tokens)
        self.tokens += tokens


def one_round(program: GpuProgram, speculation: Speculation, member: Member) -> None:
    """As the worker runs it for one request."""
    proposals = speculation.propose([member])
    if proposals is None:
        row = SimpleNamespace(lane=member.bound, token=member.token, sampler=member.sampler)
        (token,) = program.round([row])
        member.turn.commit(token, 0.0)
        member.took([token])
        speculation.stepped(member, 0, token)
        speculation.ended(1, None, (1,))
    else:
        results = speculation.verify([member], proposals)
        for result in results:
            if result.error is not None:
                raise result.error
        speculation.ended(1, proposals, [result.tokens for result in results])


def cell(
    program: GpuProgram, settings: Sequence[DraftSettings], sampling: SamplingParameters, tokens: int
) -> None:
    """Rounds of neural drafts that write ``tokens`` tokens, then rounds of copies of them, printed."""
    watch, written = watched(program), list[int]()
    drafts_alone = DraftSettings(settings[0].backend, settings[0].tokens)
    for one in (drafts_alone, *settings):
        rounds = Rounds(program, one, sampling, written, tokens)
        watch.over(rounds.speculation, "propose")
        while len(rounds.member.tokens) < tokens:
            rounds.run(watch)
        written = written or [rounds.first, *rounds.member.tokens]
        columns = bucket(1 + (one.copy_tokens or one.tokens))
        lane = rounds.member.bound
        bare = program.time_verify(lane, columns, PROMPT + tokens // 2, 24)
        watch.take()
        rounds.report(f"drafts={one.tokens} copies={one.copy_tokens}", bare)
        rounds.speculation.end(lane)
        program.close_lane(lane)


class Rounds:
    """One request's rounds, and the times of those that count."""

    def __init__(
        self, program: GpuProgram, settings: DraftSettings, sampling: SamplingParameters, written: list[int],
        tokens: int,
    ) -> None:  # fmt: skip
        self._program, self._settings = program, settings
        ids = min(1000, program.config.vocab - 7)
        prompt = np.random.default_rng(1).integers(0, ids, PROMPT).astype(np.int32)
        lane = program.open_lane(CONTEXT)
        row = program.prefill(lane, prompt, np.tile(np.arange(PROMPT, dtype=np.int32), (3, 1)))
        sampler = SimpleNamespace(parameters=sampling, counts=np.zeros(program.config.vocab, np.int32))
        special = np.zeros(program.config.vocab, np.bool_)
        self.speculation = Speculation(program, settings, program.mtp, special)  # type: ignore[arg-type]
        source = np.array(written, "<i4").tobytes()
        request = GenerationRequest(
            id="0", tokens=prompt.astype("<i4").tobytes(), positions=b"", initial_channel="content",
            sampling=sampling, max_tokens=tokens, stop_token_ids=(),
            copy_sources=(source,) if written else (),
        )  # fmt: skip
        self.first = program.first(lane, row, sampler)
        turn = Endless(sampler)
        turn.commit(self.first, 0.0)
        self.member = Member(lane, sampler, self.first, turn, Content(np.append(prompt, self.first)))
        self.member.draft = self.speculation.open(request, tokens + 128)
        self.speculation.begin(self.member)
        self._walls: list[float] = []
        self._hosts: list[float] = []
        self._counts: list[int] = []
        self._parts: dict[str, list[float]] = {}

    def run(self, watch: Watch) -> None:
        """One round, which counts if it is of the kind that is measured."""
        watch.take()
        began, before = time.perf_counter(), len(self.member.tokens)
        one_round(self._program, self.speculation, self.member)
        wall, count, spent = (
            time.perf_counter() - began,
            len(self.member.tokens) - before,
            watch.take(),
        )
        if self._settings.copy_tokens and count != 1 + self._settings.copy_tokens:
            return
        self._walls.append(wall)
        self._hosts.append(wall - spent.pop("wait", 0.0))
        self._counts.append(count)
        spent["else"] = self._hosts[-1] - sum(spent.values())
        for name, seconds in spent.items():
            self._parts.setdefault(name, []).append(seconds)

    def report(self, name: str, bare: float) -> None:
        """Medians in milliseconds. ``over_bare``: of a round beyond the bare verification's."""
        if not self._walls:
            print(f"{name}: no round counts", flush=True)
            return
        wall, host = statistics.median(self._walls), statistics.median(self._hosts)
        print(
            f"{name} rounds={len(self._walls)} tokens={np.mean(self._counts):.2f} ms={1e3 * wall:.3f} "
            f"bare_ms={1e3 * bare:.3f} over_bare_ms={1e3 * (wall - bare):.3f} host_ms={1e3 * host:.3f} "
            f"host_p90_ms={1e3 * float(np.quantile(self._hosts, 0.9)):.3f}",
            flush=True,
        )
        parts = {part: statistics.median(seconds) for part, seconds in self._parts.items()}
        print("   " + " ".join(f"{part}={1e3 * seconds:.3f}" for part, seconds in parts.items()), flush=True)
