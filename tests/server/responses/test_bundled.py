"""Responses of the bundled model behind a real server process: a tool loop, and its own records of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest

from conformance.http.client import Client
from conformance.http.schemas import check_schema
from conformance.http.servers import Server
from ninfer import bundled
from ninfer.artifact import Artifact
from ninfer.prompt import Tokenizer
from tests.fast.conftest import COLD_LIMIT_S, compiled  # noqa: F401  (kernels before any server)
from tests.server.fast_client import eventually
from tests.server.responses.stage import PATH, checked_events, joined, logged

pytestmark = pytest.mark.timeout(COLD_LIMIT_S)

TIMER = {
    "type": "function",
    "name": "set_timer",
    "description": "Start a timer.",
    "parameters": {
        "type": "object",
        "properties": {"minutes": {"type": "integer", "description": "Length in minutes."}},
        "required": ["minutes"],
    },
}
WISH = "Set a timer, please, lasting 135 minutes."
SENT = '{"status": "sent", "priority": "low"}'


@dataclass(frozen=True, slots=True)
class Live:
    """A running server and the request log that it writes."""

    client: Client
    model: str
    log: Path
    tokenizer: Tokenizer

    def create(self, **members: Any) -> dict[str, Any]:
        body = {"model": self.model, "temperature": 0, "max_output_tokens": 200} | members
        answer = self.client.request("POST", PATH, body)
        assert answer.status == 200, answer.body
        check_schema("Response", answer.json)
        response: dict[str, Any] = answer.json
        return response

    def record(self, response: dict[str, Any], event: str = "request_done") -> dict[str, Any]:
        """The log's record of a Response."""
        return logged(self.log, response, event)

    def counters(self) -> dict[str, str]:
        """Every counter of ``/metrics`` but the time that the engine waits for work."""
        lines = self.client.get("/metrics").body.decode().splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        return {name: value for name, value in pairs if "_total" in name and "seconds" not in name}

    def counters_after(self, response: dict[str, Any]) -> dict[str, float]:
        """Counters once the engine has published all tokens of the answers up to this one."""
        self.record(response)
        results = [json.loads(line).get("result") for line in self.log.read_text().splitlines()]
        tokens = sum(result["completion_tokens"] for result in results if result)
        eventually(lambda: float(self.counters()["ninfer_generation_tokens_total"]) == tokens)
        return {name: float(value) for name, value in self.counters().items()}


@pytest.fixture(scope="module")
def live(compiled: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:  # noqa: F811
    directory = tmp_path_factory.mktemp("bundled")
    log = directory / "requests.jsonl"
    server = Server(directory, ("--request-log-jsonl", str(log)))
    client = Client(server.base_url)
    (entry,) = client.get("/v1/models").json["data"]
    with Artifact.open(bundled.path()) as artifact:
        names = ("tokenizer.json", "tokenizer_config.json")
        tokenizer = Tokenizer.from_resources(*(artifact.resource("text", name) for name in names))
    yield Live(client, entry["id"], log, tokenizer)
    server.stop()


def test_a_loop_of_two_turns(live: Live) -> None:
    ask: Any = {"model": live.model, "temperature": 0, "tools": [TIMER], "max_output_tokens": 200}
    base_url = f"{live.client.base_url}/v1"
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=60) as sdk:
        first = sdk.responses.create(**ask, input=WISH)
        call = first.output[-1]
        assert call.type == "function_call"
        assert call.name == "set_timer"
        assert isinstance(json.loads(call.arguments)["minutes"], int)
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": SENT}
        with sdk.responses.stream(**ask, input=[result], previous_response_id=first.id) as stream:
            second = stream.get_final_response()
        assert second.output_text
        assert second.output[-1].type == "message"


def test_a_loop_of_two_turns_asynchronously(live: Live) -> None:
    async def run() -> None:
        ask: Any = {"model": live.model, "temperature": 0, "tools": [TIMER], "max_output_tokens": 200}
        base_url = f"{live.client.base_url}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=60) as sdk:
            user: Any = {"role": "user", "content": WISH}
            async with sdk.responses.stream(**ask, input=[user], store=False) as stream:
                first = await stream.get_final_response()
            call = first.output[-1]
            assert call.type == "function_call"
            result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": SENT}
            told: Any = [user, *[item.to_dict() for item in first.output], result]
            second = await sdk.responses.create(**ask, input=told, store=False)
            assert second.output_text

    asyncio.run(run())


@pytest.mark.clause("RESP-069")
def test_output_tokens_are_the_generated_ids(live: Live) -> None:
    response = live.create(input=WISH, reasoning={"effort": "none"})
    ids = live.record(response)["result"]["generated_token_ids"]
    assert response["status"] == "completed"
    assert response["usage"]["output_tokens"] == len(ids)
    text = response["output"][0]["content"][0]["text"]
    assert live.tokenizer.decode(ids[:-1]).strip() == text.strip()
    assert live.tokenizer.decode(ids[-1:]) != ""  # the stop token is counted and not shown


@pytest.mark.clause("RESP-070")
def test_reasoning_tokens_are_those_up_to_the_close(live: Live) -> None:
    off = live.create(input=WISH, reasoning={"effort": "none"})["usage"]
    assert off["output_tokens_details"]["reasoning_tokens"] == 0
    response = live.create(input=WISH, reasoning={"effort": "low"})
    usage = response["usage"]
    ids = live.record(response)["result"]["generated_token_ids"]
    close = live.tokenizer.control_tokens["</think>"]
    assert usage["output_tokens_details"]["reasoning_tokens"] == ids.index(close) + 1
    assert usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]


@pytest.mark.clause("RESP-024", "THINK-024")
@pytest.mark.parametrize(("wanted", "rendered"), [("high", "xhigh"), ("max", "xhigh"), ("minimal", "low")])
def test_the_log_keeps_the_effort_that_was_asked_for(live: Live, wanted: str, rendered: str) -> None:
    asked, nearest = (
        live.create(input="hi", reasoning={"effort": effort}, max_output_tokens=1)
        for effort in (wanted, rendered)
    )
    assert asked["usage"]["input_tokens"] == nearest["usage"]["input_tokens"]
    assert live.record(asked)["request"]["requested_reasoning_effort"] == wanted


@pytest.mark.clause("JLOG-034")
def test_the_log_flags_a_change_of_preserve_thinking(live: Live) -> None:
    root = live.create(input="hi", preserve_thinking=True, max_output_tokens=1)
    for members, flag in [
        ({}, False),
        ({"preserve_thinking": True}, False),
        ({"preserve_thinking": False}, True),
    ]:
        child = live.create(input="and?", previous_response_id=root["id"], max_output_tokens=1, **members)
        assert live.record(child, "request_start")["request"]["preserve_thinking_semantic_change"] is flag


@pytest.mark.clause("COUNT-002", "COUNT-009")
def test_counting_moves_no_counter(live: Live) -> None:
    """An answer moves them as much with counts before it as without."""
    looks = [live.counters_after(live.create(input="hi", max_output_tokens=1)) for _ in range(3)]
    lines = len(live.log.read_text().splitlines())
    user = {"role": "user", "content": "hi"}
    for path, body in [
        (f"{PATH}/input_tokens", {"model": live.model, "input": "hi"}),
        ("/v1/messages/count_tokens", {"model": live.model, "messages": [user]}),
    ]:
        for _ in range(10):
            answer = live.client.request("POST", path, body)
            assert answer.status == 200
            assert answer.json["input_tokens"] > 0
    events = [json.loads(line)["event"] for line in live.log.read_text().splitlines()[lines:]]
    assert "request_start" not in events
    looks.append(live.counters_after(live.create(input="hi", max_output_tokens=1)))
    _, alone, counted = ({name: new[name] - old[name] for name in new} for old, new in pairwise(looks))
    assert counted == alone
    assert any(alone.values())


def test_a_streamed_answer_is_the_whole_one(live: Live) -> None:
    whole = live.create(input=WISH, tools=[TIMER])
    body = {"model": live.model, "temperature": 0, "max_output_tokens": 200, "input": WISH, "tools": [TIMER]}
    events = checked_events(live.client.request("POST", PATH, body | {"stream": True}).body)
    (reasoning, *_), last = whole["output"], events[-1]["response"]
    assert joined(events, "reasoning_text") == reasoning["content"][0]["text"]
    assert [item["type"] for item in last["output"]] == [item["type"] for item in whole["output"]]
    assert last["output"][-1]["arguments"] == whole["output"][-1]["arguments"]
    assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
