"""Drafts behind HTTP on the bundled model: the same answers, and counts wherever the contract names them."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conformance.http.client import Answer, Client
from ninfer import bundled
from ninfer.artifact import Artifact
from ninfer.cli.parser import parse
from ninfer.engine.events import Finished
from ninfer.engine.requests import GenerationRequest
from ninfer.fast.program.weights import Matrix
from ninfer.prompt import Tokenizer
from ninfer.prompt import copy_sources as source_room
from ninfer.prompt.copy_sources import copy_sources
from ninfer.server.answer import exchange
from ninfer.server.assemble import build_reports
from tests.fast.conftest import COLD_LIMIT_S, compiled  # noqa: F401  (kernels before any server)
from tests.server.fast_client import Stream, eventually
from tests.server.fast_host import FastHost, serving_fast
from tests.server.observe.done import done
from tests.server.observe.lines import Log
from tests.server.observe.test_panel import cells, of
from tools.tiny.data.documents import exam_document
from tools.tiny.proposal import add_proposal, frequent_ids
from tools.tiny.wire import chat_body

pytestmark = pytest.mark.timeout(COLD_LIMIT_S)

MTP = ("--spec", "mtp", "--draft-tokens", "3")


@dataclass(frozen=True, slots=True)
class Served:
    """A serving process of the bundled model and its request log."""

    client: Client
    host: FastHost
    log: Log

    def ask(self, body: dict[str, Any]) -> Answer:
        answer = self.client.chat(**body)
        assert answer.status == 200, answer.error
        return answer

    def metric(self, name: str) -> float:
        text = self.client.get("/metrics").body.decode()
        found = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    def speculative(self, answer: Answer) -> dict[str, Any]:
        """The drafts of one answer as the log has them."""
        done = self.log.until(
            lambda: [line for line in self.log.lines("request_done") if answer.json["id"] in str(line)]
        )
        found: dict[str, Any] = done[0]["speculative"]
        return found


@contextmanager
def serving(directory: Path, *options: str, artifact: Path | None = None) -> Iterator[Served]:
    log = Log(directory / "requests.jsonl")
    arguments = ("--max-context", "2048", *log.arguments, *options)
    path = artifact or bundled.path()
    with serving_fast(path, arguments, endless=False, kv_format="float32") as (client, host):
        yield Served(client, host, log)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    """Copies of fifteen, drafts without copies, and no drafter at all."""
    modes = {"copies": MTP, "drafts": (*MTP, "--ngram-draft-tokens", "0"), "none": ()}
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(serving(tmp_path_factory.mktemp(name), *options))
            for name, options in modes.items()
        }


def copying(number: int, **members: Any) -> dict[str, Any]:
    """A held-out request to copy a hundred tokens or two."""
    rng = random.Random(f"copying {number}")
    while True:
        document = exam_document(rng, "copy-code")
        if document.effort is None and 300 < len(document.exchanges[-1].answer) < 700:
            return chat_body(document) | {"temperature": 0, "max_tokens": 300} | members


def text_of(answer: Answer) -> str:
    (choice,) = answer.json["choices"]
    return str(choice["message"]["content"])


def essence(answer: Answer) -> tuple[Any, ...]:
    """What a drafter must not change; what the cache offered depends on what was asked before."""
    (choice,) = answer.json["choices"]
    usage = dict(answer.json["usage"])
    del usage["prompt_tokens_details"]
    return choice, usage


# --- starts --------------------------------------------------------------------------------------------


@pytest.mark.clause("JLOG-028", "OPT-052", "SETTLE-001", "SETTLE-002", "START-037", "START-038", "START-039")
def test_what_a_start_says_of_copies(servers: dict[str, Served]) -> None:
    found = {name: served.log.start["engine"] for name, served in servers.items()}
    assert (found["copies"]["ngram_draft_window"], found["copies"]["ngram_min_match"]) == (15, 12)
    assert found["drafts"]["ngram_draft_window"] == 0
    assert found["none"]["ngram_draft_window"] == 0
    assert found["copies"]["speculative_draft_window"] == 3
    assert [found[name]["speculative_backend"] for name in servers] == ["mtp", "mtp", "none"]


@pytest.mark.clause("START-032", "START-035")
def test_without_a_drafter_none_is_loaded(servers: dict[str, Served]) -> None:
    assert servers["none"].host.program.mtp is None
    assert servers["copies"].host.program.mtp is not None
    held = {name: served.host._worker.resources for name, served in servers.items()}
    assert held["none"].kv_page_bytes < held["drafts"].kv_page_bytes
    assert held["none"].workspace_bytes < held["drafts"].workspace_bytes


@pytest.mark.clause("OPT-046", "START-033")
def test_a_proposal_head_is_loaded_beside_the_full_one(servers: dict[str, Served], tmp_path: Path) -> None:
    artifact = add_proposal(bundled.path(), tmp_path / "tiny.ninfer", frequent_ids(512))
    bodies = [copying(10), copying(11, temperature=0.7, seed=2)]
    loaded = {}
    for head in (False, True):
        (directory := tmp_path / str(head)).mkdir()
        with serving(directory, *MTP, *(["--lm-head-draft"] if head else []), artifact=artifact) as served:
            assert served.log.start["engine"]["proposal_head"] is head
            loaded[head] = sum(segment.stored_bytes for segment in heads(served.host))
            for body in bodies:
                answer = served.ask(body)
                assert essence(answer)[0] == essence(servers["none"].ask(body))[0]
                assert served.speculative(answer)["accepted_tokens"] > 0
    assert loaded[True] > loaded[False]


def heads(host: FastHost) -> set[Matrix]:
    """Every output head that a program holds."""
    table = host.program.mtp._mtp._table  # type: ignore[union-attr]
    return {table._text.head, table._weights.head}


# --- the same answers ----------------------------------------------------------------------------------


@pytest.mark.clause("NGRAM-003")
def test_answers_prompts_and_ends_are_those_of_no_drafter(servers: dict[str, Served]) -> None:
    bodies = [copying(1), copying(2, temperature=0.8, seed=5, presence_penalty=0.7)]
    bodies.append(copying(3, temperature=0.7, seed=3, enable_thinking=True))
    for body in bodies:
        answers = {name: served.ask(body) for name, served in servers.items()}
        assert essence(answers["copies"]) == essence(answers["none"]) == essence(answers["drafts"])
        assert answers["copies"].json["usage"]["completion_tokens"] > 20


@pytest.mark.clause("EXEC-007", "NGRAM-015")
def test_a_stop_inside_a_copy_ends_there_and_the_next_turn_reuses_it(servers: dict[str, Served]) -> None:
    body = copying(4)
    whole = text_of(servers["none"].ask(body))
    at = len(whole) // 2
    stop = whole[at : at + 4]
    stopped = body | {"stop": [stop]}
    answers = {name: served.ask(stopped) for name, served in servers.items()}
    assert essence(answers["copies"]) == essence(answers["none"])
    assert text_of(answers["copies"]) == whole[: whole.index(stop)]
    drafts = servers["copies"].speculative(answers["copies"])
    assert drafts["ngram_accepted_tokens"] > 0
    follow = stopped | {
        "messages": [
            *body["messages"],
            {"role": "assistant", "content": text_of(answers["copies"])},
            {"role": "user", "content": "Thank you."},
        ],
        "max_tokens": 4,
    }
    cached = {}
    for name, served in servers.items():
        served.ask(follow)
        usage = served.ask(follow).json["usage"]
        cached[name] = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached["copies"] == cached["none"] == cached["drafts"]


def test_a_cancelled_copy_frees_its_lane(servers: dict[str, Served]) -> None:
    served = servers["copies"]
    with Stream(served.client, **copying(5, max_tokens=1000)) as stream:
        stream.wait()
    eventually(lambda: served.host._worker.idle)
    assert served.ask(copying(5, max_tokens=3)).json["usage"]["completion_tokens"] == 3


# --- counts --------------------------------------------------------------------------------------------


@pytest.mark.clause("JLOG-057", "JLOG-058", "NGRAM-039", "TIMING-011")
def test_the_log_and_the_timings_count_drafts(servers: dict[str, Served]) -> None:
    answer = servers["copies"].ask(copying(6))
    found = servers["copies"].speculative(answer)
    assert (found["backend"], found["draft_window"]) == ("mtp", 3)
    assert sum(found["accepted_per_position"]) == found["accepted_tokens"] > 0
    for part, whole in (
        ("ngram_rounds", "rounds"),
        ("ngram_drafted_tokens", "drafted_tokens"),
        ("ngram_accepted_tokens", "accepted_tokens"),
    ):
        assert 0 < found[part] <= found[whole]
    rounds = found["rounds"] + found["fallback_steps"]
    assert answer.json["usage"]["completion_tokens"] == 1 + rounds + found["accepted_tokens"]
    timings = answer.json["timings"]
    assert timings["draft_n"] == found["drafted_tokens"]
    assert timings["draft_n_accepted"] == found["accepted_tokens"]
    plain = servers["none"].ask(copying(6))
    assert "draft_n" not in plain.json["timings"]
    assert servers["none"].speculative(plain)["rounds"] == 0


@pytest.mark.clause("METRIC-017", "METRIC-019", "METRIC-020")
def test_metrics_grow_by_what_the_log_says_and_while_a_request_runs(servers: dict[str, Served]) -> None:
    served = servers["copies"]
    names = {
        "rounds": "ninfer_spec_decode_rounds_total",
        "accepted_tokens": "ninfer_spec_decode_accepted_tokens_total",
        "fallback_steps": "ninfer_spec_decode_fallback_steps_total",
        "drafted_tokens": "ninfer_spec_decode_draft_tokens_total",
    }
    eventually(lambda: served.host._worker.idle)
    before = {key: served.metric(name) for key, name in names.items()}
    found = served.speculative(served.ask(copying(7)))
    for key, name in names.items():
        eventually(lambda key=key, name=name: served.metric(name) - before[key] == found[key])
    before_stream = served.metric(names["rounds"])
    ended = served.host.count(Finished)
    with Stream(served.client, **copying(8, max_tokens=1500, ignore_eos=True)) as stream:
        stream.wait()
        eventually(lambda: served.metric(names["rounds"]) > before_stream)
        assert served.host.count(Finished) == ended, "the request is still running"
    for name in names.values():
        assert servers["none"].metric(name) == 0


@pytest.mark.clause("LOG-021", "NGRAM-041")
def test_throughput_counts_committed_tokens(servers: dict[str, Served]) -> None:
    served = servers["copies"]
    eventually(lambda: served.host._worker.idle)
    before = served.metric("ninfer_decode_tokens_total")
    answer = served.ask(copying(9, max_tokens=129, ignore_eos=True))
    assert answer.json["usage"]["completion_tokens"] == 129
    eventually(lambda: served.metric("ninfer_decode_tokens_total") - before == 128)
    assert served.speculative(answer)["drafted_tokens"] > 0
    timings = answer.json["timings"]
    assert timings["predicted_n"] in (128, 129)


@pytest.mark.clause("PANEL-010")
def test_the_panel_shows_the_sums_of_the_log(servers: dict[str, Served]) -> None:
    served = servers["copies"]
    eventually(lambda: served.host._worker.idle)
    first = served.host.count(Finished)
    answers = [served.ask(copying(number, temperature=0.7, seed=number)) for number in (12, 13)]
    logged = [served.speculative(answer) for answer in answers]
    ended = [event for event in served.host.published if isinstance(event, Finished)][first:]
    found = cells(of(*(done(draft=event.usage.draft) for event in ended), backend="MTP", ngram=True))

    def total(name: str) -> int:
        return sum(line[name] - line[f"ngram_{name}"] for line in logged)

    assert found["MTP"] == f"{100 * total('accepted_tokens') / total('drafted_tokens'):.1f}%"
    assert found["acc/rnd"] == f"{total('accepted_tokens') / total('rounds'):.2f}"
    assert found["ng rnds"] == str(sum(line["ngram_rounds"] for line in logged))


@pytest.mark.clause("PANEL-011")
@pytest.mark.parametrize(
    ("options", "shown"),
    [(["--spec", "mtp"], True), (["--spec", "mtp", "--ngram-draft-tokens", "0"], False), ([], False)],
)
def test_the_panel_has_copies_only_where_they_are_drafted(options: list[str], shown: bool) -> None:
    console = SimpleNamespace(interactive=True)
    reports = build_reports(parse("ninfer-serve", options), console)  # type: ignore[arg-type]
    panel = reports._panel
    assert panel is not None
    assert ("ngram" in panel._names(False)) == shown
    assert ("ng rnds" in panel._names(False)) == shown


# --- sources -------------------------------------------------------------------------------------------

FILE = [f"value_{index} = compute({index * 7}, 'name {index}')" for index in range(1, 13)]


def numbered(numbers: list[int]) -> str:
    return "\n".join(f"{number}: {line}" for number, line in zip(numbers, FILE, strict=False))


def continuing(shown: str, prefill: str) -> dict[str, Any]:
    """A request whose answer begins with ``prefill`` after a tool has shown a file."""
    return {
        "messages": [
            {"role": "user", "content": "Show me the file."},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"id": "call_0", "type": "function", "function": {"name": "read", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "call_0", "content": shown},
            {"role": "assistant", "content": prefill},
        ],
        "enable_thinking": False,
        "temperature": 0,
        "max_tokens": 8,
    }


@pytest.mark.clause("NGRAM-026", "NGRAM-030", "NGRAM-034")
def test_numbered_lines_are_a_source_with_and_without_their_numbers(servers: dict[str, Served]) -> None:
    """The first rounds after a prefill show whether what comes next was found; it ends inside a line."""
    served = servers["copies"]
    bare, whole = "\n".join([*FILE[:3], "value_4 = compute("]), list(range(1, 13))

    def copies(shown: str, prefill: str) -> int:
        return int(served.speculative(served.ask(continuing(shown, prefill)))["ngram_rounds"])

    assert copies(numbered(whole), bare) > 0, "the bare file"
    assert copies(numbered(whole), numbered([1, 2, 3]) + "\n4: value_4 = compute(") > 0, "as it was shown"
    assert copies("\n".join(FILE), bare) > 0, "a file that has no numbers"
    assert copies(numbered([1, 2]), FILE[0] + "\nvalue_2 = compute(") == 0
    assert copies(numbered([1, 3, 4, 6, 8, 9, 11, 12]), bare) == 0


@pytest.mark.clause("NGRAM-033")
def test_sources_change_no_prompt_and_no_answer(servers: dict[str, Served]) -> None:
    body = continuing(numbered(list(range(1, 13))), FILE[0] + "\n") | {"max_tokens": 40}
    answers = [essence(served.ask(body)) for served in servers.values()]
    again = [essence(served.ask(body)) for served in servers.values()]
    assert answers[0] == answers[1] == answers[2]
    assert again[0] == again[1] == again[2], "cached tokens included"


@pytest.mark.clause("NGRAM-035")
def test_every_protocol_makes_the_same_sources(
    servers: dict[str, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, shown = servers["copies"], numbered(list(range(1, 13)))
    submitted: list[GenerationRequest] = []
    inner = served.host.submit

    def submit(request: GenerationRequest, sink: Any) -> None:
        submitted.append(request)
        inner(request, sink)

    monkeypatch.setattr(served.host, "submit", submit)
    model = served.client.get("/v1/models").json["data"][0]["id"]
    chat = continuing(shown, "")["messages"][:3]
    tools = {"name": "read", "description": "reads", "parameters": {"type": "object", "properties": {}}}
    served.ask({"messages": chat, "max_tokens": 2, "tools": [{"type": "function", "function": tools}]})
    used = {"type": "tool_use", "id": "toolu_0", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_0", "content": shown}
    messages = {
        "model": model,
        "max_tokens": 2,
        "tools": [{"name": "read", "input_schema": {"type": "object", "properties": {}}}],
        "messages": [
            {"role": "user", "content": "Show me the file."},
            {"role": "assistant", "content": [used]},
            {"role": "user", "content": [result]},
        ],
    }
    assert served.client.request("POST", "/v1/messages", messages).status == 200
    items = [
        {"role": "user", "content": "Show me the file."},
        {"type": "function_call", "call_id": "call_0", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_0", "output": shown},
    ]
    responses = {
        "model": model,
        "input": items,
        "max_output_tokens": 2,
        "tools": [{"type": "function", **tools}],
    }
    answer = served.client.request("POST", "/v1/responses", responses)
    assert answer.status == 200, answer.json
    assert len(submitted) == 3
    (source,) = submitted[0].copy_sources
    assert submitted[1].copy_sources == submitted[2].copy_sources == (source,)
    with Artifact.open(bundled.path()) as artifact:
        files = (artifact.resource("text", name) for name in ("tokenizer.json", "tokenizer_config.json"))
        tokenizer = Tokenizer.from_resources(*files)
    text = b"".join(map(tokenizer.token_bytes, np.frombuffer(source, "<i4").tolist())).decode()
    assert text == "\n".join(FILE)


@pytest.mark.clause("NGRAM-036")
def test_a_prompt_that_fills_the_context_has_no_source_but_an_answer(
    servers: dict[str, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = servers["copies"]
    submitted: list[GenerationRequest] = []
    inner = served.host.submit

    def submit(request: GenerationRequest, sink: Any) -> None:
        submitted.append(request)
        inner(request, sink)

    monkeypatch.setattr(served.host, "submit", submit)
    lines = 1
    while True:  # as many lines as fit
        body = continuing("\n".join(f"{n}: x" for n in range(1, lines + 1)), "x") | {"max_tokens": 1}
        answer = served.client.chat(**body)
        if answer.status != 200:
            break
        lines += 97
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    longest = len(submitted[-1].tokens) // 4
    sources = sum(len(source) // 4 for source in submitted[-1].copy_sources)
    assert longest + sources <= 2048
    assert longest > 1300


@pytest.mark.clause("NGRAM-028")
def test_waiting_requests_hold_their_index_and_give_it_back(servers: dict[str, Served]) -> None:
    served = servers["copies"]
    worker = served.host._worker
    served.host.program.going.clear()
    try:
        with ThreadPoolExecutor(6) as pool:
            answers = [pool.submit(served.ask, copying(20 + index, max_tokens=2)) for index in range(6)]
            eventually(
                lambda: served.host.submitted and len(worker._drafts) + len(worker._residents.active) == 6
            )
            drafts = [*worker._drafts.values(), *(a.draft for a in worker._residents.active.values())]
            sizes = [draft.index.bytes for draft in drafts if draft is not None and draft.index is not None]
            assert len(sizes) == 6
            assert all(0 < size <= 36 * 2**20 for size in sizes)
            served.host.program.going.set()
            for answer in answers:
                answer.result()
    finally:
        served.host.program.going.set()
    eventually(lambda: worker.idle)
    assert not worker._drafts
    assert not worker._residents.active


@pytest.mark.clause("NGRAM-037")
def test_a_client_that_leaves_ends_the_work_on_its_sources(
    servers: dict[str, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer is slow on sources here; preparation ends early and its slot is free again."""
    served, pieces = servers["copies"], []
    gate = threading.Event()

    def slow(conversation: Any, encode: Any, budget: int, cancelled: Any) -> tuple[Any, ...]:
        def one(texts: Any) -> Any:
            pieces.append(len(texts))
            gate.wait(0.05)
            return encode(texts)

        return copy_sources(conversation, one, 10**9, cancelled)

    monkeypatch.setattr(exchange, "copy_sources", slow)
    monkeypatch.setattr(source_room, "_STEP", 16)
    shown = "\n".join(f"{number}: x" for number in range(1, 250))
    body = continuing(shown, "x")
    sock = served.client.open_chat(stream=True, **body)
    eventually(lambda: pieces)
    sock.close()
    time.sleep(0.3)
    count = len(pieces)
    time.sleep(0.3)
    assert len(pieces) - count <= 1, "it went on"
    assert count < 40
    monkeypatch.undo()
    assert served.ask(copying(14, max_tokens=2)).status == 200
