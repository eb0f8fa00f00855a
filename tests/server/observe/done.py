"""Finished requests for tests of what adds them up."""

from __future__ import annotations

from typing import Any

from ninfer.engine.events import DraftUsage, Usage
from ninfer.engine.request_work import RequestWork
from ninfer.sampling.parameters import SamplingParameters
from ninfer.server.observe.records import Done, Errored, Preparation, PreparedRequest, RequestShape

SAMPLING = SamplingParameters(1.0, 0.95, 20, 0.0, 0.0, 0.0, 1)


def prepared(number: int = 1, **members: Any) -> PreparedRequest:
    values: dict[str, Any] = {
        "number": number,
        "http_id": f"req_{number}",
        "answer_id": f"chatcmpl-{number}",
        "shape": RequestShape("openai_chat", "nano"),
        "prompt_tokens": 10,
        "max_tokens": 100,
        "context_bound": False,
        "sampling": SAMPLING,
        "thinking": False,
        "thinking_budget": None,
        "preparation": Preparation(0.001),
    }
    return PreparedRequest(**values | members)


def done(
    number: int = 1,
    *,
    prompt: int = 10,
    cached: int = 0,
    output: int = 5,
    ttft_s: float | None = 0.5,
    prefill_s: float = 0.25,
    decode_s: float = 1.0,
    share_s: float | None = None,
    reason: Any = "stop",
    draft: DraftUsage | None = None,
    **members: Any,
) -> Done:
    """``decode_s`` of full rounds; ``share_s`` where they were shared."""
    share = decode_s if share_s is None else share_s
    usage = Usage(prompt, cached, output, 0, prefill_s, decode_s, ttft_s or 0.0, draft)
    work = RequestWork(computed_prefill_tokens=prompt - cached, decode_s=decode_s, decode_share_s=share)
    stop = "cancelled" if reason == "cancelled" else "stop_token"
    total_s = (ttft_s or 0.0) + decode_s
    return Done(prepared(number), reason, stop, usage, work, (), ttft_s, total_s, **members)  # type: ignore[arg-type]


def failed(number: int = 1, code: str | None = "internal_error") -> Errored:
    return Errored(prepared(number), code, "no", 1.0, 0.0)
