"""The store against a plain model: a list of what is kept, and what it takes counted from nothing."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from ninfer import spec
from ninfer.errors import RequestError
from ninfer.server.response_store import Context, ResponseStore, StoredResponse

SIZES = spec.document("http/responses")["store"]


def record(name: str, parent: Context | None = None, size: int = 0) -> StoredResponse:
    """A Response whose body, inputs and outputs have ``size`` bytes each."""
    return StoredResponse(name, b"b" * size, Context(parent, b"i" * size, b"o" * size), None)


def alone(size: int, depth: int = 1) -> int:
    """What ``record`` takes in an empty store, ``depth`` contexts of its size included."""
    return size + SIZES["record"] + depth * (2 * size + SIZES["context"])


def test_the_least_recently_used_leaves_first() -> None:
    store = ResponseStore(2, 10**9)
    store.add(record("a"))
    store.add(record("b"))
    assert store.find("a") is not None
    store.add(record("c"))
    assert [store.find(name) is not None for name in "abc"] == [True, False, True]


def test_bytes_bound_the_store_as_records_do() -> None:
    store = ResponseStore(100, 3 * alone(1000))
    for name in "abcd":
        store.add(record(name, size=1000))
    assert [store.find(name) is not None for name in "abcd"] == [False, True, True, True]
    assert store.used_bytes == 3 * alone(1000)


def test_one_that_does_not_fit_alone_is_refused_and_nothing_leaves_for_it() -> None:
    store = ResponseStore(100, alone(1000))
    store.add(record("a", size=1000))
    with pytest.raises(RequestError) as refused:
        store.add(record("b", size=1001))
    assert refused.value.code == "response_store_capacity_exceeded"
    assert store.find("a") is not None
    assert store.find("b") is None


def test_history_counts_for_the_one_that_needs_it() -> None:
    store = ResponseStore(100, alone(1000, depth=2))
    parent = record("a", size=1000)
    child = record("b", parent.context, size=1000)
    store.add(parent)
    store.add(child)  # the parent's own record has to leave, its context stays
    assert store.find("a") is None
    assert store.used_bytes == alone(1000, depth=2)
    with pytest.raises(RequestError):
        store.add(record("c", child.context, size=1000))


def test_a_store_for_nothing_keeps_nothing() -> None:
    for store in (ResponseStore(0, 10**9), ResponseStore(5, 0)):
        with pytest.raises(RequestError):
            store.add(record("a"))
        assert len(store) == store.used_bytes == 0


def test_a_context_outlives_the_response_that_made_it() -> None:
    store = ResponseStore(100, 10**9)
    parent = record("a", size=10)
    store.add(parent)
    store.add(record("b", parent.context, size=20))
    assert store.delete("a")
    assert not store.delete("a")
    kept = store.find("b")
    assert kept is not None
    assert [context.inputs for context in kept.context.lineage()] == [b"i" * 20, b"i" * 10]
    assert store.delete("b")
    assert store.used_bytes == 0


def test_a_very_long_conversation_comes_and_goes() -> None:
    store = ResponseStore(1, 10**9)
    context: Context | None = None
    for turn in range(20_000):
        added = record(str(turn), context, size=1)
        store.add(added)
        context = added.context
    assert store.used_bytes == alone(1, depth=20_000)
    store.delete("19999")
    assert store.used_bytes == 0


def test_threads_leave_the_account_balanced() -> None:
    store = ResponseStore(8, 40 * alone(100))
    root = record("root", size=100)

    def work(number: int) -> None:
        context: Context | None = root.context
        for turn in range(300):
            added = record(f"{number}.{turn}", context, size=100)
            store.add(added)
            if turn % 3 == 0:
                store.delete(f"{number}.{turn}")
            context = added.context if turn % 5 else root.context
            store.find(f"{number}.{turn - 1}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store) <= 8
    for name in [f"{number}.{turn}" for number in range(4) for turn in range(300)]:
        store.delete(name)
    assert (len(store), store.used_bytes) == (0, 0)


@dataclass
class Kept:
    """One kept Response of the model."""

    record: StoredResponse
    used: int


class StoreMachine(RuleBasedStateMachine):
    """Every operation on a small store and on a list that is searched and summed."""

    made = Bundle("made")

    def __init__(self) -> None:
        super().__init__()
        self.max_records, self.max_bytes = 4, 3 * alone(50)
        self.store = ResponseStore(self.max_records, self.max_bytes)
        self.kept: dict[str, Kept] = {}
        self.clock = 0

    def used(self) -> int:
        records = [kept.record for kept in self.kept.values()]
        contexts = {id(c): c for one in records for c in one.context.lineage()}.values()
        return sum(len(one.body) + SIZES["record"] for one in records) + sum(
            len(c.inputs) + len(c.outputs) + SIZES["context"] for c in contexts
        )

    def touch(self) -> int:
        self.clock += 1
        return self.clock

    @rule(target=made, size=st.integers(0, 120), parent=st.none() | made)
    def add(self, size: int, parent: StoredResponse | None) -> StoredResponse:
        added = record(f"r{self.touch()}", parent.context if parent else None, size)
        before = dict(self.kept)
        self.kept = {added.id: Kept(added, self.clock)}
        fits = self.used() <= self.max_bytes
        self.kept = before
        if not fits:
            with pytest.raises(RequestError, match="raise --response-store-max-mib"):
                self.store.add(added)
        else:
            self.store.add(added)
            self.kept[added.id] = Kept(added, self.clock)
            while self.used() > self.max_bytes or len(self.kept) > self.max_records:
                del self.kept[min(self.kept, key=lambda name: self.kept[name].used)]
        return added

    @rule(one=made)
    def find(self, one: StoredResponse) -> None:
        found = self.store.find(one.id)
        assert found is (one if one.id in self.kept else None)
        if found:
            self.kept[one.id].used = self.touch()

    @rule(one=made)
    def delete(self, one: StoredResponse) -> None:
        assert self.store.delete(one.id) == (self.kept.pop(one.id, None) is not None)

    @invariant()
    def agrees(self) -> None:
        assert len(self.store) == len(self.kept)
        assert self.store.used_bytes == self.used()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
