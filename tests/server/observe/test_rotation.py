"""Rotation of a serving process's request log, with records as large as long answers make them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ninfer.engine.events import Delta, Finished, RequestEvent, Started, Usage
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.statistics import EngineResources
from tests.server.conftest import MODEL
from tests.server.inprocess import serving
from tests.server.observe.lines import parse

Serve = Callable[..., Path]
TOKENS = 30_000  # their ids make a record of a sixth of a MiB


class BulkEngine:
    """Answers at once with so many tokens that have no text."""

    name = "bulk"
    resources = EngineResources()

    def generate(
        self, request: GenerationRequest, cancelled: Callable[[], bool], queue_s: float
    ) -> Iterator[RequestEvent]:
        yield Started(request.id, 1, 0, queue_s)
        yield Delta(request.id, "content", "", tuple(range(TOKENS)))
        yield Finished(request.id, "stop", Usage(1, 0, TOKENS, 0, 0.0, 0.0, 0.0))


@pytest.fixture
def serve(nano: Path, tmp_path: Path) -> Serve:
    """Serves until at least so many MiB are logged; the log's path."""

    def serve(mib: float, *arguments: str, before: bytes = b"") -> Path:
        path = tmp_path / "x.jsonl"
        path.write_bytes(before)
        options = ("--request-log-jsonl", str(path), *arguments)
        with serving(nano, BulkEngine(), (*MODEL, *options)) as client:
            logged = 0
            while logged < mib * 2**20:
                assert client.chat().status == 200
                logged += 5 * TOKENS
        return path

    return serve


@pytest.mark.clause("JLOG-005", "JLOG-008", "OPT-038")
def test_the_log_rotates(serve: Serve) -> None:
    path = serve(4, "--request-log-max-mib", "1", "--request-log-keep", "2")
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == ["x.jsonl", "x.jsonl.1", "x.jsonl.2"]
    firsts = set()
    for file in files:
        data = file.read_bytes()
        parse(data)
        firsts.add(data.partition(b"\n")[0])
        if file != path:
            assert 2**20 <= len(data) < 2**20 + len(data.splitlines(keepends=True)[-1])
    (start,) = firsts
    assert json.loads(start)["event"] == "server_start"


@pytest.mark.clause("JLOG-006")
def test_none_is_kept(serve: Serve) -> None:
    path = serve(3, "--request-log-max-mib", "1", "--request-log-keep", "0")
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.clause("JLOG-007")
def test_a_full_log_is_rotated_at_the_start(serve: Serve) -> None:
    old = b'{"old": true}\n' * 150_000
    path = serve(0, "--request-log-max-mib", "1", before=old)
    assert path.with_name("x.jsonl.1").read_bytes() == old
    assert parse(path.read_bytes())[0]["event"] == "server_start"


def test_one_file_without_a_limit(serve: Serve) -> None:
    path = serve(5)
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_size > 5 * 2**20


@pytest.mark.clause("OPT-039")
def test_four_are_kept_by_default(serve: Serve) -> None:
    path = serve(7.5, "--request-log-max-mib", "1")
    names = sorted(file.name for file in path.parent.iterdir())
    assert names == ["x.jsonl", *(f"x.jsonl.{number}" for number in range(1, 5))]
