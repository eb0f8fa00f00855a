"""``ninfer``: one answer in the terminal. The answer goes to stdout, everything else to stderr.

Owns the program's flow; preparation and resolution are the server's, the engine runs in its own process.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ninfer.cli.engine_options import engine_settings
from ninfer.cli.parser import run
from ninfer.engine.events import Delta, Failed, Finished, RequestEvent, Usage
from ninfer.engine.host import EngineProcess
from ninfer.engine.requests import GenerationRequest
from ninfer.errors import EngineError, OptionError, RequestError

if TYPE_CHECKING:
    from ninfer.prompt.conversation import Message

_log = logging.getLogger("ninfer.cli")
_EXIT_INTERRUPTED = 130
_EXIT_UNREAD = 1
_REQUEST_ID = "answer"


def main(argv: Sequence[str] | None = None) -> int:
    """The console script; the exit status."""
    return run("ninfer", argv, answer)


def answer(options: Mapping[str, Any]) -> int:
    """Answer the prompt that ``options`` gives; 0 when the answer ended by itself or at its limit.

    Errors: ``OptionError``, ``ArtifactError``, ``RequestError``, ``EngineError``.
    """
    from ninfer.server import log

    log.configure(options["log_level"])
    artifact = _artifact(options)
    host = EngineProcess(engine_settings(options, artifact))
    try:
        request = _request(options, artifact)  # while the engine loads
        host.wait_ready()
        return _print(host, request, options["print_token_ids"])
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of the answer has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_UNREAD
    finally:
        host.close()


def _artifact(options: Mapping[str, Any]) -> Path:
    if options["artifact"] is not None:
        return Path(options["artifact"])
    from ninfer import bundled
    from ninfer.server.served_model import DEMONSTRATION_WARNING

    print(DEMONSTRATION_WARNING, file=sys.stderr)
    return bundled.path()


def _request(options: Mapping[str, Any], artifact: Path) -> GenerationRequest:
    from ninfer.prompt.conversation import Conversation, TemplateOptions
    from ninfer.server.resolution import GenerationFields, generation_defaults, resolve
    from ninfer.server.served_model import ModelChoices, open_served_model

    template = options["chat_template"]
    choices = ModelChoices(
        chat_template=None if template is None else Path(template), max_context=options["max_context"]
    )
    model = open_served_model(artifact, choices)
    thinking = TemplateOptions(
        enable_thinking=False if options["no_thinking"] else None,
        reasoning_effort=options["reasoning_effort"],
    )
    prompt = model.preparer.prepare(Conversation(_messages(options), options=thinking))
    fields = GenerationFields(stops=options["stop"], thinking_budget=options["thinking_budget"])
    return resolve(model, generation_defaults(options, options["max_new"]), _REQUEST_ID, prompt, fields)


def _messages(options: Mapping[str, Any]) -> tuple[Message, ...]:
    from ninfer.prompt.conversation import Message, TextPart

    if options["messages"] is None:
        return (Message("user", (TextPart(options["prompt"]),)),)
    path = Path(options["messages"])
    try:
        return _read_messages(path.read_bytes())
    except OSError as error:
        raise OptionError("--messages", f"cannot read {path}: {error.strerror}") from error
    except RequestError as error:
        raise OptionError("--messages", f"{path}: {error.message}") from error


def _read_messages(data: bytes) -> tuple[Message, ...]:
    """An array of messages, or an object with ``messages``; read as a chat request's history."""
    from ninfer.server.chat.messages import read_messages
    from ninfer.server.chat.refusals import refuse_unsupported
    from ninfer.server.json_body import parse_object
    from ninfer.server.members import Members

    if data.lstrip().startswith(b"["):
        data = b'{"messages":' + data + b"}"
    body = Members(parse_object(data))
    refuse_unsupported(body)
    if body.value("tools"):
        raise body.invalid("tools", "is not supported: ninfer answers without tools", "unsupported_parameter")
    return read_messages(body)


def _print(host: EngineProcess, request: GenerationRequest, print_token_ids: bool) -> int:
    events: queue.SimpleQueue[RequestEvent] = queue.SimpleQueue()
    host.submit(request, events.put)
    output = _Output()
    token_ids: list[int] = []
    while True:
        event = events.get()
        if isinstance(event, Delta):
            token_ids.extend(event.token_ids)
            output.write(event)
        elif isinstance(event, Failed):
            output.end_line()
            raise EngineError(event.code, event.message)
        elif isinstance(event, Finished):
            output.end_line()
            if print_token_ids:
                print("token_ids=" + ",".join(map(str, token_ids)), file=sys.stderr)
            print(_report(event), file=sys.stderr)
            return 0


class _Output:
    """Writes each channel to its stream; a stream is left at the start of a line."""

    def __init__(self) -> None:
        self._open: TextIO | None = None

    def write(self, delta: Delta) -> None:
        stream = sys.stdout if delta.channel == "content" else sys.stderr
        if self._open not in (None, stream):
            self.end_line()
        if delta.text:
            print(delta.text, end="", file=stream, flush=True)
            self._open = None if delta.text.endswith("\n") else stream

    def end_line(self) -> None:
        if self._open is not None:
            print(file=self._open, flush=True)
            self._open = None


def _report(finished: Finished) -> str:
    usage: Usage = finished.usage
    rate = (usage.completion_tokens - 1) / usage.decode_s if usage.decode_s > 0 else 0.0
    return (
        f"finish={finished.reason} prompt_tokens={usage.prompt_tokens}"
        f" completion_tokens={usage.completion_tokens} reasoning_tokens={usage.reasoning_tokens}"
        f" ttft={usage.time_to_first_token_s:.3f} s decode={max(rate, 0.0):.1f} tok/s"
    )


if __name__ == "__main__":
    sys.exit(main())
