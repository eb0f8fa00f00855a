"""The Responses that later requests may name: a bounded store of this process, least recently used first out.

Owns retention and its accounting. A context is shared by all Responses that continue it and counted once; it
stays as long as one of them is kept, whether or not the Response that made it was deleted or evicted.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from ninfer import spec
from ninfer.errors import RequestError


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """The Items of one Response as JSON arrays, after those of its ``parent``."""

    parent: Context | None
    inputs: bytes
    outputs: bytes
    own_bytes: int = field(init=False)
    total_bytes: int = field(
        init=False
    )  # with every ancestor: a long conversation is not summed at each turn

    def __post_init__(self) -> None:
        own = len(self.inputs) + len(self.outputs) + _overhead("context")
        object.__setattr__(self, "own_bytes", own)
        object.__setattr__(self, "total_bytes", own + (self.parent.total_bytes if self.parent else 0))

    def lineage(self) -> Iterator[Context]:
        """This context and its ancestors, the newest first."""
        context: Context | None = self
        while context is not None:
            yield context
            context = context.parent


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One Response as it was answered: ``body`` is its JSON.

    ``preserve_thinking`` is the resolved option, which a child that says nothing inherits; None where
    neither request nor server chose.
    """

    id: str
    body: bytes
    context: Context
    preserve_thinking: bool | None = None

    @property
    def own_bytes(self) -> int:
        return len(self.body) + _overhead("record")


class ResponseStore:
    """At most ``max_records`` Responses within ``max_bytes``; safe to use from any thread."""

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._records: OrderedDict[str, StoredResponse] = OrderedDict()  # the next to leave first
        self._holders: Counter[Context] = Counter()  # records and kept children that need a context
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        """What the kept Responses and every context that they need take together."""
        return self._used_bytes

    def __len__(self) -> int:
        return len(self._records)

    def find(self, response_id: str) -> StoredResponse | None:
        """The Response of that id, which becomes the most recently used; None when it is not kept."""
        with self._lock:
            record = self._records.get(response_id)
            if record is not None:
                self._records.move_to_end(response_id)
            return record

    def require_room(self) -> None:
        """Errors: ``RequestError`` ``response_store_capacity_exceeded`` where nothing could ever be kept."""
        if self._max_records < 1 or self._max_bytes < 1:
            raise _does_not_fit(
                "This server keeps no Responses, because --response-store-max-records or "
                "--response-store-max-mib is 0; repeat the request with store false"
            )

    def add(self, record: StoredResponse) -> None:
        """Keep a new Response; others leave for it.

        Errors: ``RequestError`` ``response_store_capacity_exceeded`` when it does not fit an empty store.
        """
        self.require_room()
        alone = record.own_bytes + record.context.total_bytes
        if alone > self._max_bytes:
            raise _does_not_fit(
                f"This Response with its history takes {alone} bytes, but the store holds {self._max_bytes}; "
                "repeat it with store false or raise --response-store-max-mib"
            )
        with self._lock:
            assert record.id not in self._records, "a Response's id is used once"
            self._records[record.id] = record
            self._used_bytes += record.own_bytes
            self._hold(record.context)
            while self._used_bytes > self._max_bytes or len(self._records) > self._max_records:
                self._remove(next(iter(self._records)))

    def delete(self, response_id: str) -> bool:
        """Forget a Response; False when it is not kept."""
        with self._lock:
            if response_id not in self._records:
                return False
            self._remove(response_id)
            return True

    def _remove(self, response_id: str) -> None:
        record = self._records.pop(response_id)
        self._used_bytes -= record.own_bytes
        self._let_go(record.context)

    def _hold(self, context: Context) -> None:
        for needed in context.lineage():
            self._holders[needed] += 1
            if self._holders[needed] > 1:
                return
            self._used_bytes += needed.own_bytes

    def _let_go(self, context: Context) -> None:
        for needed in context.lineage():
            self._holders[needed] -= 1
            if self._holders[needed]:
                return
            del self._holders[needed]
            self._used_bytes -= needed.own_bytes


def _does_not_fit(why: str) -> RequestError:
    return RequestError("response_store_capacity_exceeded", f"{why}.", "store")


def _overhead(of: str) -> int:
    """What a record or a context takes beside its JSON."""
    return int(spec.document("http/responses")["store"][of])
