"""Drives the agentic workload against any OpenAI-compatible server: one thread a session.

Owns connections, order (main sessions go in lock-step) and what each request got. Whatever is answered, the
next observation is the plan's.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx2

from tools.bench.agentic_ideal import IdealCache, Renderer
from tools.bench.agentic_plan import Profile, Session, Turn

_TIMEOUT_S = 900.0
_CLEARED = "[cleared]"
_SUMMARY_REQUEST = "Summarise this session so that it can go on from your summary alone."


@dataclass(frozen=True, slots=True)
class Result:
    """One request: what it was, tokens and times (seconds from the start of the run).

    ``ideal`` tokens could have come from a cache, ``cached`` did. ``ttft`` is None for an aborted request,
    ``request_id`` the server's own.
    """

    session: str
    kind: str
    aborted: bool
    sent: float
    ttft: float | None
    seconds: float
    prompt_tokens: int
    ideal: int
    cached: int
    completion_tokens: int
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request as it was sent, or (with its answer) when it had ended."""

    messages: list[dict[str, str]]
    template: dict[str, bool]
    answer: dict[str, str] | None = None


class Lockstep:
    """Rounds of the main sessions: all that are in a round begin it together."""

    def __init__(self, members: Sequence[str]) -> None:
        self._members = set(members)
        self._ready: set[str] = set()
        self._round = 0
        self._changed = threading.Condition()

    def wait(self, name: str) -> None:
        """Return when every member is ready."""
        with self._changed:
            self._members.add(name)
            self._ready.add(name)
            entered = self._round
            self._release()
            self._changed.wait_for(lambda: self._round != entered)

    def leave(self, name: str) -> None:
        """The session waits for others, or has ended: rounds go on without it."""
        with self._changed:
            self._members.discard(name)
            self._release()

    def _release(self) -> None:
        if self._members and self._ready >= self._members:
            self._ready.clear()
            self._round += 1
            self._changed.notify_all()


class Run:
    """One pass of a plan against one server."""

    def __init__(self, url: str, profile: Profile, renderer: Renderer, seed: int) -> None:
        """Errors: ``httpx2.HTTPError`` when the server does not say what it serves."""
        # A connection for each request: a server may close an idle one at the moment it is used again.
        once = httpx2.Limits(max_keepalive_connections=0)
        self._client = httpx2.Client(base_url=url, timeout=_TIMEOUT_S, trust_env=False, limits=once)
        self._model = self._client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        self._profile, self._renderer, self._seed = profile, renderer, seed
        self._log: list[tuple[float, int, _Asked]] = []
        self._ended: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self.results: list[Result] = []
        self.failures: list[str] = []

    def play(self, sessions: Sequence[Session]) -> float:
        """Run everything; wall seconds. Failed requests stand in ``failures``: the run is then void."""
        self._ended = {one.name: threading.Event() for s in sessions for one in s.everyone()}
        lockstep = Lockstep([session.name for session in sessions])
        self._began = time.monotonic()
        opening = [_Player(self, session, lockstep) for session in sessions]
        for player in opening:  # resumes run one at a time: clean cold prefills
            player.next()
        self._together(opening)
        self._client.close()
        wall_s = time.monotonic() - self._began
        self._rate_ideal()
        return wall_s

    def _rate_ideal(self) -> None:
        """What an ideal cache would have reached, in the order of events; done when nothing is measured."""
        ideal, reached = IdealCache(), dict[int, int]()
        for _, number, asked in sorted(self._log, key=lambda entry: entry[0]):
            if asked.answer is None:
                tokens = self._renderer.prompt(asked.messages, asked.template)
                reached[number] = ideal.reach(tokens)
                ideal.add(tokens)
            else:
                ideal.add(self._renderer.whole(asked.messages, asked.answer, asked.template))
        self.results = [replace(one, ideal=reached[number]) for number, one in enumerate(self.results)]

    def _together(self, players: Sequence[_Player]) -> None:
        threads = [threading.Thread(target=self._finish, args=(player,)) for player in players]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _finish(self, player: _Player) -> None:
        try:
            while player.next():
                pass
        except (httpx2.HTTPError, KeyError, ValueError, RuntimeError) as error:
            self.failures.append(f"{player.session.name}: {error!r}")
        finally:
            player.end()
            self._ended[player.session.name].set()

    def fan_out(self, children: Sequence[Session]) -> None:
        """Run subagents beside each other until all have ended."""
        self._together([_Player(self, child, None) for child in children])

    def wait_for(self, names: Sequence[str]) -> None:
        """Until these sessions have ended."""
        for name in names:
            self._ended[name].wait()

    def request(self, session: Session, turn: Turn, messages: list[dict[str, str]]) -> dict[str, str]:
        """Send one request, note what it got; the answer as a message."""
        template = {"enable_thinking": True, "preserve_thinking": session.preserve}
        body = {
            "model": self._model,
            "messages": messages,
            "max_tokens": turn.answer,
            "temperature": 1.0,
            "top_p": 0.95,
            "top_k": 20,
            "seed": self._seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": template,
        }
        sent = time.monotonic()
        limit = self._profile.abort_s if turn.act == "abort" else None
        answer, ttft, usage, request_id = self._stream(body, sent, limit)
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        result = Result(
            session.name,
            turn.kind,
            not usage,
            sent - self._began,
            ttft,
            time.monotonic() - sent,
            usage.get("prompt_tokens", 0),
            0,
            cached,
            usage.get("completion_tokens", 0),
            request_id,
        )
        with self._lock:
            number = len(self.results)
            self.results.append(result)
            self._log.append((sent, number, _Asked(messages, template)))
            if usage:
                self._log.append((time.monotonic(), number, _Asked(messages, template, answer)))
        return answer

    def _stream(
        self, body: dict[str, Any], sent: float, limit: float | None
    ) -> tuple[dict[str, str], float | None, dict[str, Any], str]:
        """The answer, seconds to its first text, its usage (empty for an aborted request) and its id."""
        parts: dict[str, list[str]] = {"content": [], "reasoning_content": []}
        ttft, usage = None, {}
        with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                raise RuntimeError(f"{response.status_code}: {response.read()[:300]!r}")
            stop = None if limit is None else threading.Timer(limit, response.close)
            if stop is not None:
                stop.start()
            try:
                for chunk in _events(response):
                    usage = chunk.get("usage") or usage
                    for choice in chunk["choices"]:
                        for name, texts in parts.items():
                            texts.append(choice["delta"].get(name) or "")
                            if texts[-1] and ttft is None:
                                ttft = time.monotonic() - sent
            except (httpx2.HTTPError, httpx2.StreamError, OSError, AttributeError, ValueError):
                if stop is None:
                    raise
            finally:
                if stop is not None:
                    stop.cancel()
        if stop is None and not usage:
            raise RuntimeError("the stream ended without usage")
        answer = {"role": "assistant", "content": "".join(parts["content"])}
        if any(parts["reasoning_content"]):
            answer["reasoning_content"] = "".join(parts["reasoning_content"])
        return answer, ttft, usage, response.headers.get("x-request-id", "")


def _events(response: httpx2.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise RuntimeError(str(chunk["error"]))
            yield chunk


class _Player:
    """One session under way."""

    def __init__(self, run: Run, session: Session, lockstep: Lockstep | None) -> None:
        self._run, self.session, self._lockstep = run, session, lockstep
        self._turns = iter(session.turns)
        self._first = True
        self._messages: list[dict[str, str]] = [{"role": "system", "content": session.system}]
        for index, text in enumerate(session.history):
            self._messages.append({"role": ("user", "assistant")[index % 2], "content": text})

    def next(self) -> bool:
        """Play one turn; False after the last."""
        turn = next(self._turns, None)
        if turn is None:
            return False
        self._step(turn)
        self._play(turn)
        if turn.fan_out:
            self._leave()
            self._run.fan_out(turn.fan_out)
        return True

    def end(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._lockstep is not None:
            self._lockstep.leave(self.session.name)

    def _step(self, turn: Turn) -> None:
        if turn.waits_for:
            self._leave()
            self._run.wait_for(turn.waits_for)
        if self._lockstep is not None and not self._first:
            self._lockstep.wait(self.session.name)
            time.sleep(turn.delay_s)
        self._first = False

    def _play(self, turn: Turn) -> None:
        said = {"role": "user", "content": turn.text}
        if turn.act == "side":
            self._run.request(self.session, turn, [self._messages[0], said])
            return
        if turn.act == "compact":
            asked = {"role": "user", "content": _SUMMARY_REQUEST}
            self._run.request(self.session, turn, [*self._messages, asked])
            # What the summary says is the plan's, so that prompts grow alike on every server.
            self._messages = [self._messages[0], said, {"role": "assistant", "content": "Understood."}]
            return
        if (
            turn.act == "retry"
        ):  # the user takes back the answer and asks again, or sends an aborted turn again
            while self._messages[-1]["role"] == "assistant":
                self._messages.pop()
        else:
            self._messages.append(said)
        if turn.act == "clear":
            self._clear(turn.keep)
        answer = self._run.request(self.session, turn, list(self._messages))
        if turn.act != "abort":
            self._messages.append(answer)

    def _clear(self, keep: int) -> None:
        """The client drops the text of all but its last ``keep`` observations."""
        places = [index for index, message in enumerate(self._messages) if message["role"] == "user"]
        for index in places[:-keep]:
            self._messages[index] = {"role": "user", "content": _CLEARED}
