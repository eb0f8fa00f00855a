"""Prompt caching over Chat Completions, on the fast engine: what is reused, and what hints do."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Client
from conformance.http.streams import named_payloads, payloads
from ninfer.engine.statistics import EngineStatistics
from ninfer.prompt import Conversation, Message, TextPart
from ninfer.prompt.frontiers import Frontiers
from ninfer.server.served_model import ModelChoices, open_served_model
from tests.fast.conftest import COLD_LIMIT_S, compiled  # noqa: F401  (kernels before any server)
from tests.server.fast_host import FastHost, serving_fast

pytestmark = pytest.mark.timeout(COLD_LIMIT_S)

SIZES = ("--device-snapshot-slots", "64", "--cache-taps-per-request", "8")
MARK = {"prompt_cache_breakpoint": {"mode": "explicit"}}
WORDS = (
    "river",
    "stone",
    "lamp",
    "green",
    "walk",
    "seven",
    "paper",
    "cloud",
    "metal",
    "garden",
    "old",
    "cat",
)
_seeds = itertools.count(1)


@pytest.fixture(scope="module")
def served(nano: Path) -> Iterator[tuple[Client, FastHost]]:
    with serving_fast(nano, SIZES, kv_format="float32") as both:
        yield both


@pytest.fixture(scope="module")
def client(served: tuple[Client, FastHost]) -> Client:
    return served[0]


@pytest.fixture(scope="module")
def off(nano: Path) -> Iterator[Client]:
    """A server without reuse, whose answers are the yardstick."""
    with serving_fast(nano, ("--no-prefix-reuse",), kv_format="float32") as (client, _):
        yield client


def text(words: int = 60, seed: int | None = None) -> str:
    """Words that no other test has said."""
    chosen = random.Random(next(_seeds) if seed is None else seed)
    return f"{chosen.randrange(10**9)} " + " ".join(chosen.choices(WORDS, k=words)) + "."


def user(*parts: str, marked: tuple[int, ...] = ()) -> dict[str, Any]:
    """A user message of several parts, some of them marked."""
    return {
        "role": "user",
        "content": [
            {"type": "text", "text": part, **(MARK if index in marked else {})}
            for index, part in enumerate(parts)
        ],
    }


def ask(client: Client, *messages: dict[str, Any], **members: Any) -> dict[str, Any]:
    answer = client.chat(messages=list(messages), temperature=0, **({"max_tokens": 4} | members))
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def cached(answer: dict[str, Any]) -> int:
    tokens: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def said(answer: dict[str, Any]) -> tuple[Any, ...]:
    message = answer["choices"][0]["message"]
    return message.get("reasoning_content"), message["content"], answer["usage"]["prompt_tokens"]


@pytest.fixture(scope="module")
def frontiers(nano: Path) -> Any:
    """Where the prompt of a user message may be shared."""
    prepare = open_served_model(nano, ModelChoices()).preparer.prepare

    def find(*parts: str, marked: tuple[int, ...] = ()) -> Frontiers:
        made = tuple(TextPart(part, index in marked) for index, part in enumerate(parts))
        return prepare(Conversation((Message("user", made),))).frontiers

    return find


# --- reuse ---------------------------------------------------------------------------------------------


@pytest.mark.clause("START-006")
def test_reuse_is_on_without_any_option(nano: Path) -> None:
    with serving_fast(nano) as (client, host):
        first, second = (ask(client, user(text(300, seed=1))) for _ in range(2))
        assert (cached(first), cached(second) > 0) == (0, True)
        assert any(record.startswith("prefix_cache hybrid snapshot_slots=3 ") for record in host.records)


@pytest.mark.clause("CACHE-005")
def test_a_second_turn_reuses_the_first(client: Client, off: Client) -> None:
    said_first = text(100)
    for server, reuses in ((client, True), (off, False)):
        first = ask(server, user(said_first), max_tokens=60)
        reply = first["choices"][0]["message"]
        turns = [user(said_first), {"role": "assistant", "content": reply["content"]}, user("And now?")]
        assert (cached(ask(server, *turns)) > 0) == reuses


@pytest.mark.clause("TIMING-003")
@pytest.mark.clause("TIMING-004")
@pytest.mark.clause("CACHE-009")
def test_timings_split_the_prompt(client: Client) -> None:
    message = user(text(200))
    for warm in (False, True):
        answer = ask(client, message)
        timings, total = answer["timings"], answer["usage"]["prompt_tokens"]
        assert timings["cache_n"] + timings["prompt_n"] == total
        assert timings["cache_n"] == cached(answer)
        assert (timings["cache_n"] > 0) == warm
        assert timings["cache_n"] <= total - 1


@pytest.mark.clause("TIMING-016")
def test_progress_begins_with_what_was_cached(client: Client) -> None:
    message = user(text(400))
    for warm in (False, True):
        answer = client.chat(messages=[message], stream=True, return_progress=True, max_tokens=2)
        events = [payload for payload in payloads(answer.body) if isinstance(payload, dict)]
        progress = [event["prompt_progress"] for event in events if event.get("prompt_progress")]
        assert progress[0]["processed"] == progress[0]["cache"]
        assert (progress[0]["cache"] > 0) == warm
        assert progress[-1]["processed"] == progress[-1]["total"]


@pytest.mark.clause("CACHE-012")
def test_a_changed_effort_leaves_the_old_prefix_usable(client: Client) -> None:
    message = user(text(200))
    efforts = ["xhigh", "low", "xhigh"]
    first, other, back = (ask(client, message, reasoning_effort=effort) for effort in efforts)
    assert cached(first) == 0
    assert cached(other) < 30
    assert cached(back) > 150


@pytest.mark.clause("CACHE-013")
def test_an_appended_system_message_is_a_suffix_and_an_edit_goes_back(client: Client, frontiers: Any) -> None:
    texts = [text(80) for _ in range(6)]
    turns = [
        {"role": ("user", "assistant")[index % 2], "content": words} for index, words in enumerate(texts)
    ][:5]
    first = ask(client, *turns)
    appended = [*turns, {"role": "assistant", "content": texts[5]}, {"role": "system", "content": "Short."}]
    after = ask(client, *appended, user("Go on."))
    assert cached(after) >= first["usage"]["prompt_tokens"] - 16, "all but the assistant's opener"
    edited = [*turns]
    edited[1] = {"role": "assistant", "content": text(80)}
    assert cached(ask(client, *edited)) <= frontiers(texts[0]).opener


@pytest.mark.clause("CACHE-011")
@pytest.mark.clause("START-009")
def test_two_clients_share_a_system_prompt(served: tuple[Client, FastHost]) -> None:
    client, host = served
    system = {"role": "system", "content": text(1500)}

    def blocks() -> int:
        statistics = [event for event in host.published if isinstance(event, EngineStatistics)][-1]
        return 0 if statistics.cache.hybrid is None else statistics.cache.hybrid.device_blocks

    before = blocks()
    first = ask(client, system, user(text(20)))
    middle = blocks()
    second = ask(client, system, user(text(20)))
    assert middle - before >= 20
    assert blocks() - middle <= 4
    assert cached(second) > 0.9 * first["usage"]["prompt_tokens"] - 60


@pytest.mark.clause("CACHE-001")
@pytest.mark.clause("HTTP-026")
def test_a_paused_stream_goes_on_as_if_nothing_had_been(nano: Path, off: Client) -> None:
    """Two streams over memory for one and a half: no text twice, none missing, a calm run's tokens."""
    bodies = [
        {"model": "nano", "input": text(40), "temperature": 0, "max_output_tokens": 600} for _ in range(2)
    ]
    tight = ("--max-concurrency", "2", "--max-context", "1024", "--kv-capacity", "1024")
    with serving_fast(nano, tight, kv_format="float32") as (client, host):

        def stream(body: dict[str, Any]) -> list[dict[str, Any]]:
            answer = client.request("POST", "/v1/responses", {**body, "stream": True})
            return [payload for payload in named_payloads(answer.body) if isinstance(payload, dict)]

        with ThreadPoolExecutor(2) as pool:
            streams = list(pool.map(stream, bodies))
        statistics = [event for event in host.published if isinstance(event, EngineStatistics)][-1]
        assert statistics.recovery.preemptions > 0
    for body, events in zip(bodies, streams, strict=True):
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        deltas = "".join(event["delta"] for event in events if event["type"].endswith("text.delta"))
        calm = off.request("POST", "/v1/responses", body).json
        assert deltas == "".join(
            part["text"] for item in calm["output"] for part in item.get("content") or item.get("summary", ())
        )


@pytest.mark.clause("HTTP-026")
def test_tokens_do_not_depend_on_hits(client: Client, off: Client) -> None:
    message = user(text(250))
    members = {"temperature": 1.0, "seed": 5, "max_tokens": 40}
    answers = [server.chat(messages=[message], **members).json for server in (off, client, client)]
    assert [cached(answer) > 0 for answer in answers] == [False, False, True]
    assert len({said(answer) for answer in answers}) == 1


# --- hints ---------------------------------------------------------------------------------------------


@pytest.mark.clause("HINT-002")
@pytest.mark.clause("HINT-003")
@pytest.mark.clause("HINT-005")
def test_the_end_of_the_body_is_kept_unless_the_mode_is_explicit(client: Client, frontiers: Any) -> None:
    """The boundary lies before the closing tokens: a body that grows still matches."""
    reached = {}
    for number, options in enumerate((None, {"mode": "implicit"}, {"mode": "explicit"})):
        body = f"{number}00 " + text(100, seed=77)
        members = {} if options is None else {"prompt_cache_options": options}
        ask(client, user(body), **members)
        reached[number] = cached(ask(client, user(body + " And more of it.")))
        expected = frontiers(body).automatic
    assert reached[0] == reached[1] == expected
    assert reached[2] < expected - 64


@pytest.mark.clause("HINT-004")
@pytest.mark.clause("HINT-007")
@pytest.mark.clause("HINT-012")
def test_a_mark_is_honoured_where_it_stands_and_read_without_one(client: Client, frontiers: Any) -> None:
    a, b, c = text(70), " " + text(70), " " + text(70)
    (place,) = frontiers(a, b, c, marked=(0,)).explicit
    ask(client, user(a, b, c, marked=(0,)))
    assert cached(ask(client, user(a, " " + text(90)))) == place


@pytest.mark.clause("HINT-006")
def test_a_seam_that_is_tokenised_anew_changes_no_answer(client: Client, off: Client, frontiers: Any) -> None:
    body = text(90) + " hel"
    ask(client, user(body))
    grown = ask(client, user(body + "lo there"), max_tokens=12)
    assert cached(grown) <= frontiers(body).automatic
    assert said(grown) == said(ask(off, user(body + "lo there"), max_tokens=12))


@pytest.mark.clause("HINT-009")
def test_three_marks_leave_the_automatic_one(client: Client, frontiers: Any) -> None:
    parts = [text(70), *(" " + text(70) for _ in range(3))]
    found = frontiers(*parts, marked=(0, 1, 2))
    ask(client, user(*parts, marked=(0, 1, 2)))
    for count, place in enumerate(found.explicit, 1):
        assert cached(ask(client, user(*parts[:count], " " + text(70)))) == place
    assert cached(ask(client, user(*parts, " and more"))) == found.automatic


@pytest.mark.clause("HINT-010")
def test_four_marks_leave_no_room_for_the_automatic_one(client: Client, frontiers: Any) -> None:
    parts = [text(70), *(" " + text(70) for _ in range(3)), " " + text(120)]
    found = frontiers(*parts, marked=(0, 1, 2, 3))
    assert found.automatic is None
    ask(client, user(*parts, marked=(0, 1, 2, 3)))
    assert cached(ask(client, user(*parts, " and more"))) == found.explicit[-1]


@pytest.mark.clause("HINT-011")
def test_of_six_marks_the_latest_four_count(client: Client, frontiers: Any) -> None:
    parts = [text(70), *(" " + text(70) for _ in range(6))]
    found = frontiers(*parts, marked=tuple(range(6)))
    assert len(found.explicit) == 4
    ask(client, user(*parts, marked=tuple(range(6))))
    for count in range(1, 7):
        reached = cached(ask(client, user(*parts[:count], " " + text(70))))
        assert reached == (0 if count < 3 else found.explicit[count - 3])


@pytest.mark.clause("HINT-013")
def test_a_mark_inside_a_token_is_skipped(client: Client, off: Client) -> None:
    parts = text(80) + " hel", "lo there."
    marked = ask(client, user(*parts, marked=(0,)), max_tokens=12)
    assert said(marked) == said(ask(off, user(*parts), max_tokens=12))


@pytest.mark.clause("HINT-014")
@pytest.mark.clause("FIELD-040")
@pytest.mark.clause("HINT-017")
def test_hints_change_no_prompt_and_no_answer(client: Client, off: Client) -> None:
    parts = text(70), " " + text(70)
    plain = ask(off, user(*parts), max_tokens=12)
    for number, ttl in enumerate(("30m", "24h")):
        hinted = ask(
            client,
            user(*parts, marked=(0, 1)),
            max_tokens=12,
            prompt_cache_key=f"key {number}",
            prompt_cache_options={"mode": "implicit", "ttl": ttl},
            prompt_cache_retention=("24h", "in_memory")[number],
        )
        assert said(hinted) == said(plain)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"prompt_cache_options": {"mode": "sometimes"}}, "prompt_cache_options.mode"),
        ({"prompt_cache_options": {"ttl": "soon"}}, "prompt_cache_options.ttl"),
        ({"prompt_cache_retention": "forever"}, "prompt_cache_retention"),
        ({"prompt_cache_key": 5}, "prompt_cache_key"),
    ],
)
def test_a_malformed_hint_is_named(client: Client, members: dict[str, Any], param: str) -> None:
    answer = client.chat(messages=[user("x")], **members)
    assert (answer.status, answer.error["param"]) == (400, param)


@pytest.mark.clause("HINT-015")
@pytest.mark.clause("HINT-016")
def test_a_key_is_no_identity_and_no_session(client: Client, off: Client) -> None:
    message = user(text(150))
    ask(client, message, prompt_cache_key="k1")
    same = ask(client, message, prompt_cache_key="k2")
    assert cached(same) > 100
    assert cached(ask(client, user(text(150)), prompt_cache_key="k1")) < 30
    talks = [[user(text(120))], [user(text(120))]]
    reached = []
    for keyed in (True, True, False):
        for talk in talks:
            answer = ask(client, *talk, **({"prompt_cache_key": "k"} if keyed else {}))
            reached.append(cached(answer))
            talk += [{"role": "assistant", "content": "So it is."}, user(text(30))]
    assert all(later > 80 for later in reached[2:])
