"""The bench of drafts: what counts, what is marked, how modes are spelled."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from ninfer.engine.events import DraftUsage, Usage
from ninfer.fast.draft.speculation import RoundTrace
from tools.bench.draft.__main__ import Figures, draft_settings, plot, row
from tools.bench.draft.runs import Answer
from tools.bench.draft.served import Served, ask, summary


def answer(seconds: float, tokens: int, draft: DraftUsage | None = None, rounds: int = 0) -> Answer:
    usage = Usage(100, 20, tokens, 0, 0.5, seconds, 0.5, draft=draft)
    traces = [RoundTrace(4, (4,), (number % 2 == 0,), (2,)) for number in range(rounds)]
    return Answer("text", True, list(range(tokens)), usage, 0.5 + seconds, traces, 1e-4)


def figures(accepted: int, mode: str = "mtp+15") -> Figures:
    draft = DraftUsage("mtp", 3, 10, 30, 12, 0, (10, 10, 10), (8, 3, 1), 5, 15, accepted)
    return Figures("copy", mode, [(answer(2.0, 129), answer(1.0, 129, draft, 64))], wrong=2)


@pytest.mark.clause("NGRAM-040")
def test_a_run_without_an_accepted_copy_is_marked_and_wrong_answers_do_not_count() -> None:
    assert "NO COPY ACCEPTED" not in row(figures(9))
    assert "NO COPY ACCEPTED" in row(figures(0))
    assert "NO COPY ACCEPTED" not in row(figures(0, "mtp"))
    assert "no right answer" in row(Figures("copy", "mtp", [], wrong=3))
    assert figures(9).members()["not_counted"] == 2


@pytest.mark.clause("NGRAM-041", "NGRAM-042")
def test_rates_leave_out_the_first_token_and_prefill_is_split() -> None:
    found = figures(9).members()
    assert found["decode_tok_s_off"] == 64
    assert found["decode_tok_s_on"] == 128
    assert (found["decode_speedup"], found["request_speedup"]) == (2.0, 2.5 / 1.5)
    assert (found["computed_prefill_tokens"], found["reused_tokens"]) == (80, 20)
    assert found["tokens_per_round"] == 2
    assert found["acceptance"] == [(8, 10), (3, 10), (1, 10)]


def test_a_whole_request_is_told_with_and_without_its_prompt_in_the_cache() -> None:
    one = figures(9)
    assert (one.members()["cached_request_speedup"], one.members()["cached_request_ms"]) == (None, None)
    assert one.members()["request_ms"] == [2500, 1500]
    assert " 1.67       - " in row(one)
    draft = one.pairs[0][1].usage.draft
    one.cached.append((answer(3.5, 129), answer(0.5, 129, draft, 64)))
    found = one.members()
    assert (found["request_speedup"], found["cached_request_speedup"]) == (2.5 / 1.5, 4)
    assert (found["cached_computed_prefill_tokens"], found["cached_reused_tokens"]) == (80, 20)
    assert " 1.67    4.00 " in row(one)


def test_served_copies_are_compared_as_a_client_sees_them() -> None:
    def served(seconds: float) -> Served:
        return Served("text", True, 100, seconds / 10, seconds, int(seconds))

    pairs = [[(served(3.0), served(1.0)), (served(4.0), served(1.0))], [(served(2.0), served(2.0))]]
    found = summary(pairs)
    assert (found["answers"], found["speedup"], found["median_speedup"]) == (3, 9 / 4, 2.25)
    assert found["off_ms"] == 3000
    assert found["tokens"] == 100
    assert (found["off_cached"], found["on_cached"]) == (3, 4 / 3)


def test_a_served_copy_is_read_from_its_stream() -> None:
    """The text, the reason, and when the first text came, not the first event, which has none."""
    events = (
        {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
        {"choices": [{"delta": {"content": "one "}, "finish_reason": None}]},
        {"choices": [{"delta": {"content": "two"}, "finish_reason": "stop"}]},
        {
            "choices": [],
            "usage": {"completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}},
        },
    )
    pauses = (0.0, 0.2, 0.0, 0.0)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            for event, pause in zip(events, pauses, strict=True):
                time.sleep(pause)
                self.wfile.write(b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        found = ask(("127.0.0.1", server.server_port), {})
        thread.join()
    assert (found.text, found.stopped, found.tokens, found.cached) == ("one two", True, 7, 5)
    assert 0.2 <= found.first_s <= found.whole_s


def test_modes() -> None:
    assert draft_settings("mtp").tokens == 3
    assert draft_settings("mtp5a+31").copy_tokens == 31
    assert draft_settings("mtp5ah").adaptive
    assert draft_settings("mtp5ah").proposal_head
    with pytest.raises(ValueError, match="is no mode"):
        draft_settings("dflash")


def test_the_plot_is_svg() -> None:
    assert plot([figures(9)]).startswith("<svg")
