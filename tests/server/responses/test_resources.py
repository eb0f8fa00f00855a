"""Stored Responses over HTTP: continuation, retrieval, deletion, capacity, input Items, refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Client
from conformance.http.schemas import check_answer
from ninfer import spec
from ninfer.engine.scripted import Play, Step
from ninfer.prompt import Tokenizer
from tests.server.conftest import MODEL
from tests.server.inprocess import serving
from tests.server.processes import ServerProcess
from tests.server.responses.stage import PATH, THINKING, PlayingEngine, Stage, call, message, result

RESPONSE = f"{PATH}/{{response_id}}"
Opening = Callable[..., Stage]


@pytest.fixture
def opened(nano: Path, tokenizer: Tokenizer) -> Iterator[Opening]:
    """Starts a server with these options."""
    running = []

    def start(*options: str) -> Stage:
        engine = PlayingEngine()
        server = serving(nano, engine, (*MODEL, *options))
        running.append(server)
        stage = Stage(server.__enter__(), engine, tokenizer)
        stage.say(*THINKING)
        return stage

    yield start
    for server in running:
        server.__exit__(None, None, None)


def kept(stage: Stage, response_id: str) -> bool:
    answer = stage.get(response_id)
    assert answer.status in (200, 404)
    return answer.status == 200


@pytest.mark.clause("HTTP-008")
def test_a_response_is_retrieved_as_it_was_answered(stage: Stage) -> None:
    answer = stage.post()
    found = stage.get(answer.json["id"])
    assert (found.status, found.body) == (200, answer.body)
    assert found.json["id"] == answer.json["id"]
    check_answer("GET", RESPONSE, 200, found.json)
    assert stage.client.get(f"/v1{PATH}/{answer.json['id']}").body == answer.body


@pytest.mark.clause("RSTORE-018")
def test_an_unknown_id_is_404(stage: Stage) -> None:
    """Case B32 of the field's reports: never an answer without the missing context."""
    for path in ("", "/input_items"):
        answer = stage.get("resp_x", path)
        assert (answer.status, answer.error["code"]) == (404, "response_not_found")
    answer = stage.client.request("DELETE", f"{PATH}/resp_x")
    assert (answer.status, answer.error["code"]) == (404, "response_not_found")


@pytest.mark.clause("RSTORE-019", "RSTORE-020")
@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=true", "stream"),
        ("stream=true&starting_after=3", "stream"),
        ("starting_after=0", "starting_after"),
        ("include[]=reasoning.encrypted_content", "include"),
        ("include=reasoning.encrypted_content", "include"),
    ],
)
def test_retrieval_refuses_what_it_cannot_do(stage: Stage, query: str, param: str) -> None:
    answer = stage.get(stage.create()["id"], f"?{query}")
    assert (answer.status, answer.error["code"]) == (400, "unsupported_parameter")
    assert answer.error["param"] == param
    assert param in answer.error["message"]


def test_retrieval_takes_neutral_queries(stage: Stage) -> None:
    response_id = stage.create()["id"]
    for query in ("stream=false", "include[]=", "include_obfuscation=false"):
        assert stage.get(response_id, f"?{query}").status == 200


@pytest.mark.clause("HTTP-009", "RSTORE-021")
def test_deletion_ends_retrieval(stage: Stage) -> None:
    response_id = stage.create()["id"]
    answer = stage.client.request("DELETE", f"{PATH}/{response_id}")
    check_answer("DELETE", RESPONSE, 200, answer.json)
    assert answer.json == {"id": response_id, "object": "response.deleted", "deleted": True}
    assert not kept(stage, response_id)
    assert stage.client.request("DELETE", f"{PATH}/{response_id}").status == 404


@pytest.mark.clause("RSTORE-022")
def test_descendants_survive_their_ancestor(stage: Stage) -> None:
    root = stage.create(input="first")["id"]
    child = stage.create(input="second", previous_response_id=root)["id"]
    stage.client.request("DELETE", f"{PATH}/{root}")
    text = stage.prompt(input="third", previous_response_id=child)
    assert text.index("first") < text.index("second") < text.index("third")
    assert text.count("Hello") == 2


@pytest.mark.clause("RSTORE-029", "RSTORE-030")
def test_what_is_not_kept_cannot_be_continued(stage: Stage) -> None:
    never = stage.create(store=False)["id"]
    deleted = stage.create()["id"]
    stage.client.request("DELETE", f"{PATH}/{deleted}")
    for name in (never, deleted):
        assert not kept(stage, name)
        error = stage.refused(previous_response_id=name)
        assert (error["status"], error["code"]) == (400, "previous_response_not_found")
        assert name in error["message"]


@pytest.mark.clause("RSTORE-003")
def test_a_chain_is_the_conversation_spelled_out(stage: Stage) -> None:
    parent, items = None, []
    for text in ("one", "two", "three"):
        response = stage.create(input=text, previous_response_id=parent)
        parent, items = response["id"], [*items, message("user", text), *response["output"]]
    stage.create(input="four", previous_response_id=parent)
    chained = stage.engine.prompt()
    stage.create(input=[*items, message("user", "four")])
    assert stage.engine.prompt() == chained


@pytest.mark.clause("RSTORE-004", "RSTORE-005")
def test_instructions_are_not_carried_forward(stage: Stage) -> None:
    root = stage.create(input="one", instructions="XXX")["id"]
    first = stage.create(input="two", previous_response_id=root, instructions="YYY")
    assert "YYY" in stage.tokenizer.decode(stage.engine.prompt())
    second = stage.prompt(input="three", previous_response_id=first["id"])
    assert "XXX" not in second
    assert "YYY" not in second
    plain = stage.create(input="one")["id"]
    assert stage.count(input="two", previous_response_id=root) == stage.count(
        input="two", previous_response_id=plain
    )


@pytest.mark.clause("RSTORE-008", "RSTORE-009")
def test_preserve_thinking_is_inherited_until_it_is_said(stage: Stage) -> None:
    root = stage.create(input="one", preserve_thinking=False)["id"]
    kept_root = stage.create(input="one", preserve_thinking=True)["id"]

    def counted(parent: str, **members: Any) -> int:
        return stage.count(input="two", previous_response_id=parent, **members)

    assert counted(root) == counted(root, preserve_thinking=False)
    assert counted(kept_root) == counted(kept_root, preserve_thinking=True) > counted(root)
    assert counted(kept_root, preserve_thinking=False) == counted(root)
    assert counted(kept_root, chat_template_kwargs={"preserve_thinking": False}) == counted(root)
    child = stage.create(input="two", previous_response_id=root)["id"]
    grandchild = stage.prompt(input="three", previous_response_id=child)
    assert "I think" not in grandchild
    branch = stage.prompt(input="three", previous_response_id=child, preserve_thinking=True)
    assert branch.count("I think") == 2


def test_the_servers_default_is_not_what_is_inherited(opened: Opening) -> None:
    """A parent that chose for itself hands its choice on, whatever the server was started with."""
    for option, chosen in ((("--preserve-thinking",), False), ((), True)):
        stage = opened(*option)
        root = stage.create(input="one", preserve_thinking=chosen)["id"]
        text = stage.prompt(input="two", previous_response_id=root)
        assert ("I think" in text) == chosen


@pytest.mark.clause("RSTORE-016")
def test_nothing_of_the_servers_own_is_shown(stage: Stage) -> None:
    """Objects are closed by their schemas; Items have the members that the client sent and the defaults."""
    root = stage.create(input=[message("user", "a")])
    child = stage.stream(previous_response_id=root["id"])[-1]["response"]
    for response in (root, child, stage.get(child["id"]).json):
        assert not any(
            "session" in name or "cache" in name for name in response if name != "prompt_cache_key"
        )
        assert response["prompt_cache_key"] is None
    assert set(stage.items(root["id"])[0]) == {"id", "type", "status", "role", "content"}


@pytest.mark.clause("HTTP-010", "RSTORE-023")
def test_input_items_are_those_of_one_request(stage: Stage) -> None:
    root = stage.create(input="one")["id"]
    child = stage.create(input=[{**message("user", "two"), "id": "msg_two"}], previous_response_id=root)["id"]
    assert [item["id"] for item in stage.items(child)] == ["msg_two"]
    assert [item["content"][0]["text"] for item in stage.items(root)] == ["one"]


@pytest.fixture(scope="module")
def many(shared_stage: Stage) -> tuple[Stage, str, list[str]]:
    names = [f"msg_{index}" for index in range(25)]
    items = [{**message("user", name), "id": name} for name in names]
    return shared_stage, shared_stage.create(input=items)["id"], names


@pytest.mark.clause("RSTORE-024", "RSTORE-026")
def test_pages_of_input_items(many: tuple[Stage, str, list[str]]) -> None:
    stage, response_id, names = many

    def page(query: str) -> list[str]:
        return [item["id"] for item in stage.items(response_id, query)]

    assert page("") == page("?order=desc") == names[::-1][:20]
    assert page("?order=asc") == names[:20]
    assert page("?limit=25&order=asc") == page("?limit=100&order=asc") == names
    assert page("?limit=1") == names[-1:]
    for query, param in [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("limit=", "limit"),
        ("order=x", "order"),
        ("order=", "order"),
        ("after=&order=asc", "after"),
    ]:
        answer = stage.get(response_id, f"/input_items?{query}")
        assert (answer.status, answer.error["param"]) == (400, param)
    limits = spec.document("http/responses")["input_items"]
    assert (limits["minimum"], limits["maximum"], limits["default"]) == (1, 100, 20)


@pytest.mark.clause("RSTORE-025")
def test_pages_go_on_after_an_item(many: tuple[Stage, str, list[str]]) -> None:
    stage, response_id, names = many
    answer = stage.get(response_id, f"/input_items?after={names[2]}&order=asc&limit=5").json
    assert [item["id"] for item in answer["data"]] == names[3:8]
    assert (answer["first_id"], answer["last_id"], answer["has_more"]) == (names[3], names[7], True)
    answer = stage.get(response_id, f"/input_items?after={names[2]}").json
    assert [item["id"] for item in answer["data"]] == [names[1], names[0]]
    assert not answer["has_more"]
    answer = stage.get(response_id, f"/input_items?after={names[0]}").json
    assert answer == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    for after in ("msg_none", ""):
        answer = stage.get(response_id, f"/input_items?after={after}")
        if after:
            assert (answer.status, answer.error["param"]) == (400, "after")


def test_every_item_stands_on_exactly_one_page(many: tuple[Stage, str, list[str]]) -> None:
    stage, response_id, names = many
    seen: list[str] = []
    after, more = "", True
    while more:
        answer = stage.get(response_id, f"/input_items?limit=7&order=asc{after}").json
        seen += [item["id"] for item in answer["data"]]
        after, more = f"&after={answer['last_id']}", answer["has_more"]
    assert seen == names


@pytest.mark.clause("RSTORE-027")
def test_nothing_can_be_cancelled(stage: Stage) -> None:
    whole = stage.post()
    response_id = whole.json["id"]
    for name in (response_id, "resp_x"):
        answer = stage.client.request("POST", f"{PATH}/{name}/cancel", {})
        assert (answer.status, answer.error["code"]) == (400, "background_not_supported")
        assert "background" in answer.error["message"]
    assert stage.get(response_id).body == whole.body


@pytest.mark.clause("RSTORE-028")
def test_nothing_can_be_compacted(stage: Stage) -> None:
    answer = stage.client.request("POST", f"{PATH}/compact", {"model": "nano", "input": "x"})
    assert (answer.status, answer.error["code"]) == (400, "compaction_not_supported")


@pytest.mark.clause("RSTORE-002", "OPT-040")
def test_the_least_recently_used_leaves_first(opened: Opening) -> None:
    stage = opened("--response-store-max-records", "2")
    names = [stage.create()["id"] for _ in range(3)]
    for name, there in zip(names, (False, True, True), strict=True):
        assert kept(stage, name) == there
    assert stage.get(names[0]).error["code"] == "response_not_found"
    first, second = stage.create()["id"], stage.create()["id"]
    assert kept(stage, first)  # which makes it the newer one
    third = stage.create()["id"]
    assert [kept(stage, name) for name in (first, second, third)] == [True, False, True]
    assert stage.refused(previous_response_id=second)["code"] == "previous_response_not_found"


@pytest.mark.clause("OPT-041")
def test_bytes_make_the_oldest_leave(opened: Opening) -> None:
    stage = opened("--response-store-max-mib", "1")
    stage.say("</think>\n\n", "x" * 150_000)  # in the object and in the context
    names = [stage.create()["id"] for _ in range(5)]
    assert [kept(stage, name) for name in names] == [False, False, True, True, True]


@pytest.mark.clause("RSTORE-031", "RSTORE-032", "RSTORE-033", "OPT-041")
def test_what_does_not_fit_is_an_error_and_not_returned(opened: Opening) -> None:
    stage = opened("--response-store-max-mib", "1")
    stage.engine.play = Play((Step(text="</think>\n\n"), *[Step(text="y" * 40_000)] * 30))
    answer = stage.post()
    assert (answer.status, answer.error["code"]) == (400, "response_store_capacity_exceeded")
    assert b"yyyy" not in answer.body
    assert "store false" in answer.error["message"]
    assert "--response-store-max-mib" in answer.error["message"]
    events = stage.stream()
    assert any(event["type"] == "response.output_text.delta" for event in events)
    last = events[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "response_store_capacity_exceeded"
    assert last["response"]["output"] == []
    assert not kept(stage, last["response"]["id"])
    assert stage.create(store=False)["status"] == "completed"
    larger = opened("--response-store-max-mib", "8")
    larger.engine.play = stage.engine.play
    assert kept(larger, larger.create()["id"])


@pytest.mark.parametrize("option", ["--response-store-max-records", "--response-store-max-mib"])
def test_a_server_that_keeps_nothing_says_so_before_it_works(opened: Opening, option: str) -> None:
    stage = opened(option, "0")
    error = stage.refused()
    assert (error["code"], error["param"]) == ("response_store_capacity_exceeded", "store")
    assert not kept(stage, stage.create(store=False)["id"])
    assert stage.count() > 0


@pytest.mark.clause("RSTORE-001")
def test_a_restart_forgets(nano: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text("{}")
    engine = {"engine": "scripted", "script": str(script)}
    body = {"model": "nano", "input": "hi"}
    clients: list[Client] = []
    names = []
    for _ in range(2):
        with ServerProcess(tmp_path, (str(nano), *MODEL), engine=engine) as server:
            clients.append(server.wait_ready())
            names.append(clients[-1].request("POST", PATH, body).json["id"])
            assert clients[-1].get(f"{PATH}/{names[-1]}").status == 200
            answer = clients[-1].get(f"{PATH}/{names[0]}")
            server.stop()
    assert (answer.status, answer.error["code"]) == (404, "response_not_found")


def test_results_continue_a_stored_call(stage: Stage) -> None:
    items = [message("user", "go"), call("c1"), result("c1", "first")]
    root = stage.create(input=items)["id"]
    text = stage.prompt(input=[message("user", "on")], previous_response_id=root)
    assert text.index("<function=f>") < text.index("first") < text.index("Hello")
