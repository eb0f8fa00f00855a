"""``select`` draws exactly the tokens of ``ninfer.sampling``: every rule, every edge, any vocabulary."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.errors import EngineError, RequestError
from ninfer.fast.ops.compiled import entry
from ninfer.fast.ops.select import contract as c
from ninfer.fast.ops.select import philox as compiled_philox
from ninfer.fast.program.table import DRAW, SCAN
from ninfer.sampling import philox
from ninfer.sampling.draw import select_token
from ninfer.sampling.parameters import SamplingParameters
from tests.support.fast import address, fields, run

Array = npt.NDArray[Any]
DEFAULTS = {
    "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "seed": 0,
}  # fmt: skip


def sampling(**changes: Any) -> SamplingParameters:
    return SamplingParameters(**(DEFAULTS | changes))


@dataclass(slots=True)
class Row:
    """One row's logits [V] and sampler."""

    logits: Array
    parameters: SamplingParameters
    position: int = 0
    counts: Array | None = None
    mask: Array | None = None
    kept: list[Array] = field(default_factory=list)

    def wanted(self, vocabulary: int) -> int:
        """The token of the plain sampler, or the operation's code for its error."""
        try:
            return select_token(
                self.logits, self.parameters, self.counts, self.position, self.mask, vocabulary
            )
        except RequestError:
            return c.DEAD_END
        except EngineError:
            return c.NOT_A_NUMBER

    def record(self) -> tuple[Any, ...]:
        """The row of the sampler table; keeps what it points to."""
        p, counts, mask = self.parameters, 0, 0
        if self.counts is not None:
            self.kept.append(np.ascontiguousarray(self.counts, np.int32))
            counts = address(self.kept[-1])
        if self.mask is not None:
            bits = np.zeros(-(-len(self.mask) // 32) * 32, np.bool_)
            bits[: len(self.mask)] = self.mask
            self.kept.append(np.packbits(bits, bitorder="little").view(np.int32))
            mask = address(self.kept[-1])
        return (
            *(p.temperature, p.top_p, p.min_p, p.presence_penalty, p.frequency_penalty, p.top_k),
            *(p.seed, self.position, counts, mask),
        )


def drawn(
    rows: list[Row], vocabulary: int | None = None, threads: int = 1, pending: Array | None = None
) -> list[int]:
    """The rows' tokens in one round; logits are only read. ``pending`` [rows, PENDING_WORDS] are drafts."""
    logits = np.stack([row.logits for row in rows])
    before = logits.copy()
    vocabulary = vocabulary or logits.shape[1]
    slices = -(-vocabulary // c.SLICE)
    best = np.full((len(rows), slices, 1 + 2 * c.CANDIDATES), -99, np.int64)
    tokens = np.full(len(rows) + 1, -99, np.int64)
    named = {"LOGITS": address(logits), "LOGITS_STRIDE": logits.strides[0], "VOCABULARY": vocabulary}
    named["PENDING"] = 0 if pending is None else address(pending)
    descriptor = fields(c, **named, BEST=address(best), DRAWN=address(tokens))
    samplers = np.array([row.record() for row in rows], c.PARAMETERS)
    operations = [(SCAN, descriptor), (DRAW, descriptor)]
    run(operations, row_count=len(rows), samplers=samplers, threads=threads)
    assert tokens[-1] == -99
    np.testing.assert_array_equal(logits.view(np.uint32), before.view(np.uint32))
    return tokens[:-1].tolist()


def check(rows: list[Row], vocabulary: int | None = None, threads: int = 1) -> list[int]:
    """The tokens, which must be those of the plain sampler."""
    found = drawn(rows, vocabulary, threads)
    wanted = [row.wanted(vocabulary or len(row.logits)) for row in rows]
    wrong = [
        (i, f, w, rows[i].parameters) for i, (f, w) in enumerate(zip(found, wanted, strict=True)) if f != w
    ]
    assert not wrong, f"{len(wrong)} of {len(rows)} differ: {wrong[:3]}"
    return found


def random_row(random: np.random.Generator, size: int) -> Row:
    """Any sampler over logits with a few high ones and, half of the time, exact ties."""
    logits = (random.standard_normal(size) * random.choice([0.2, 1, 4])).astype(np.float32)
    logits[random.integers(0, size, 6)] += np.float32(random.choice([0, 3, 9]))
    if random.integers(0, 2):
        logits = np.round(logits * 4) / np.float32(4)
    parameters = sampling(
        temperature=float(random.choice([0, 0.05, 0.7, 1, 2])),
        top_p=float(random.choice([0, 0.3, 0.8, 0.95, 1])),
        top_k=int(random.integers(0, 21)),
        min_p=float(random.choice([0, 0.05, 0.5, 1])),
        presence_penalty=float(random.choice([0, 0, 1.5, -2, 0.1])),
        frequency_penalty=float(random.choice([0, 0, 0.3, -0.7, 2])),
        seed=int(random.integers(0, 2**64, dtype=np.uint64)),
    )
    row = Row(logits, parameters, int(random.integers(0, 2**32)))
    if random.integers(0, 2):
        row.counts = (random.integers(0, 5, size) * (random.random(size) < 0.3)).astype(np.int32)
    if random.integers(0, 2):
        row.mask = random.random(size) < random.choice([0.01, 0.5, 0.99])
    return row


@pytest.mark.parametrize(
    "size", [1, 2, 20, 21, 31, 32, 33, 512, c.SLICE - 1, c.SLICE, c.SLICE + 1, 2 * c.SLICE + 40]
)
def test_tokens_equal_the_plain_sampler(size: int) -> None:
    random = np.random.default_rng(size)
    for batch in range(4):
        check([random_row(random, size) for _ in range(64)], threads=1 + batch % 2)


@pytest.mark.parametrize("size", [40, c.SLICE + 300])
def test_ids_beyond_the_vocabulary_are_never_drawn(size: int) -> None:
    random = np.random.default_rng(1)
    for vocabulary in (1, 17, 32, size - 1, size):
        rows = [random_row(random, size) for _ in range(24)]
        for row in rows:
            row.logits[vocabulary:] = random.choice([50, np.nan, np.inf])
        assert max(check(rows, vocabulary)) < vocabulary


def test_many_draws_of_one_distribution() -> None:
    """4,096 positions of one request: every candidate, the first and the last one among them."""
    logits = np.random.default_rng(2).standard_normal(300).astype(np.float32)
    tokens = [
        token
        for begin in range(0, 4096, 64)
        for token in check([Row(logits, sampling(seed=5), position) for position in range(begin, begin + 64)])
    ]
    best = np.argsort(-logits, kind="stable")[:20]
    assert set(tokens) == set(best.tolist())


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-30, 1e-3, 2.0])
@pytest.mark.parametrize("top_k", [0, 1, 2, 19, 20])
def test_ties_go_to_the_lower_id(temperature: float, top_k: int) -> None:
    size = c.SLICE + 64
    logits = np.zeros(size, np.float32)
    places = [5, 6, 700, c.SLICE - 1, c.SLICE, size - 1]
    logits[places] = 1
    check([Row(logits, sampling(temperature=temperature, top_k=top_k, seed=s), s) for s in range(64)])
    greedy = check([Row(logits, sampling(temperature=temperature, top_k=1))])
    assert greedy == [5]
    flat = np.zeros(size, np.float32)
    found = check([Row(flat, sampling(temperature=temperature, seed=s), s) for s in range(64)])
    assert max(found) < 20


@pytest.mark.parametrize("top_p", [0.0, 1e-12, 0.25, 0.2500001, 0.5, 0.75, 0.999999, 1.0])
def test_edges_of_top_p(top_p: float) -> None:
    """Four equal candidates, whose running sums are exactly these edges."""
    logits = np.full(50, -np.inf, np.float32)
    logits[[3, 9, 20, 40]] = 0
    found = check([Row(logits, sampling(top_p=top_p, seed=s), s) for s in range(64)])
    kept = max(1, int(np.ceil(top_p * 4)))
    assert set(found) == set([3, 9, 20, 40][:kept])


@pytest.mark.parametrize("min_p", [0.0, 1e-20, 0.3, 0.7, 0.999999, 1.0])
def test_edges_of_min_p(min_p: float) -> None:
    """Candidates exactly at the edge stay: the best at 1, others at their own weight."""
    logits = np.full(50, -np.inf, np.float32)
    logits[[3, 9]], logits[[20, 40]] = 0, -1
    edges = [min_p, float(np.exp(np.float64(-1))), float(np.nextafter(np.exp(np.float64(-1)), 1))]
    rows = [
        Row(logits, sampling(min_p=edge, top_p=p, seed=s), s)
        for edge in edges
        for s in range(10)
        for p in (1, 0.9)
    ]
    check(rows)


def test_infinities_and_what_is_not_a_number() -> None:
    size, rows = c.SLICE + 100, []
    for bad in (np.nan, np.inf, -np.inf):
        for place in (0, 77, c.SLICE - 1, c.SLICE, size - 1):
            # Descending logits settle on the first ones: what follows is looked at all the same.
            for temperature, last in itertools.product((0.0, 1.0), (1, -1)):
                logits = np.linspace(-last, last, size, dtype=np.float32)
                logits[place] = bad
                rows.append(Row(logits, sampling(temperature=temperature), 3))
                hidden = np.ones(size, np.bool_)
                hidden[place] = False
                rows.append(Row(logits, sampling(temperature=temperature), 3, mask=hidden))
    found = [token for begin in range(0, len(rows), 60) for token in check(rows[begin : begin + 60])]
    assert found.count(c.NOT_A_NUMBER) == 40


def test_nothing_allowed_is_a_dead_end() -> None:
    size = 2 * c.SLICE
    logits = np.zeros(size, np.float32)
    rows = [Row(logits, sampling(temperature=t), mask=np.zeros(size, np.bool_)) for t in (0.0, 1.0)]
    rows += [Row(np.full(size, -np.inf, np.float32), sampling(temperature=t)) for t in (0.0, 1.0)]
    only = np.zeros(size, np.bool_)
    only[c.SLICE + 3] = True
    rows += [Row(logits, sampling(temperature=t), mask=only) for t in (0.0, 1.0)]
    found = check(rows, threads=2)
    assert found == [c.DEAD_END] * 4 + [c.SLICE + 3] * 2


def test_penalties_round_every_operation_to_float32() -> None:
    """Values at which one operation fused or left unrounded would make or break a tie."""
    random = np.random.default_rng(3)
    rows = []
    for _ in range(60):
        size = 200
        logits = random.choice(np.float32([1.1, 1.4000001, 2.3, 0.8]), size)
        counts = random.integers(0, 9, size).astype(np.int32)
        parameters = sampling(
            temperature=float(random.choice([0.0, 1.0])), presence_penalty=0.1, frequency_penalty=0.3, top_k=3
        )
        rows.append(Row(logits, parameters, int(random.integers(0, 1000)), counts))
    check(rows)


@pytest.mark.parametrize("place", [15, 16, 40, 150, c.SLICE + 5])
def test_a_negative_penalty_raises_a_pending_draft_among_settled_logits(place: int) -> None:
    size = c.SLICE + 40
    logits = np.linspace(1, 0, size, dtype=np.float32)
    counts = np.zeros(size, np.int32)
    row = Row(logits, sampling(temperature=0.0, presence_penalty=-2.0), counts=counts)
    pending = np.zeros((1, c.PENDING_WORDS), np.int32)
    pending[0, :3] = 2, place, size - 1
    assert drawn([row], pending=pending) == [place]
    counted = np.zeros(size, np.int32)
    counted[[place, size - 1]] = 1
    assert check([Row(logits, row.parameters, counts=counted)]) == [place]


def test_row_does_not_know_its_neighbours() -> None:
    random = np.random.default_rng(4)
    rows = [random_row(random, c.SLICE + 9) for _ in range(64)]
    alone = [drawn([row])[0] for row in rows]
    rows[7].logits[3] = np.nan
    for width in (1, 2, 3, 5, 16, 33, 64):
        chosen = [int(i) for i in random.permutation(64)[:width] if i != 7]
        found = drawn([rows[7], *(rows[i] for i in chosen)][:64], threads=2)
        assert found[1:] == [alone[i] for i in chosen][:63]


@settings(max_examples=200)
@given(
    logits=st.lists(
        st.one_of(st.floats(width=32), st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e30, -1e30])),
        min_size=1,
        max_size=40,
    ),
    temperature=st.one_of(st.just(0.0), st.floats(1e-320, 2)),
    top_p=st.floats(0, 1),
    top_k=st.integers(0, 20),
    min_p=st.floats(0, 1),
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_any_logits_and_any_sampler(
    logits: list[float],
    temperature: float,
    top_p: float,
    top_k: int,
    min_p: float,
    presence: float,
    frequency: float,
    seed: int,
    position: int,
    data: st.DataObject,
) -> None:
    size = len(logits)
    parameters = SamplingParameters(temperature, top_p, top_k, min_p, presence, frequency, seed)
    counts = data.draw(st.none() | st.lists(st.integers(0, 100_000), min_size=size, max_size=size))
    mask = data.draw(st.none() | st.lists(st.booleans(), min_size=size, max_size=size))
    row = Row(np.array(logits, np.float32), parameters, position)
    row.counts = None if counts is None else np.array(counts, np.int32)
    row.mask = None if mask is None else np.array(mask, np.bool_)
    with np.errstate(all="ignore"):
        check([row])


uniform = entry(compiled_philox.uniform.py_func)


@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**32 - 1))
def test_uniform_numbers_are_those_of_philox(seed: int, position: int) -> None:
    assert uniform(np.uint64(seed), position) == philox.uniform(seed, position, "token")


def test_uniform_numbers_of_the_first_positions() -> None:
    for seed in (0, 1, 2**32, 2**63, 2**64 - 1):
        for position in range(200):
            found = uniform(np.uint64(seed), position)
            assert found == philox.uniform(seed, position, "token")
            assert 0 <= found < 1
