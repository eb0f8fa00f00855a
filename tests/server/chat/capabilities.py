"""Fields of a chat body that ask for nothing, for a missing capability, or only give advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NEUTRAL: Mapping[str, Sequence[Any]] = {
    "logit_bias": [{}, {"5": 0, "6": 0.0}],
    "logprobs": [False],
    "top_logprobs": [0],
    "n": [1],
    "best_of": [1],
    "verbosity": ["medium"],
    "store": [False],
    "functions": [[]],
    "function_call": ["none", "auto"],
    "modalities": [["text"]],
    "repetition_penalty": [1, 1.0],
    "mm_processor_kwargs": [{}, {"a": None}],
    "web_search_options": [],
    "moderation": [],
    "grammar": [],
    "guided_json": [],
    "guided_regex": [],
    "guided_choice": [],
    "guided_grammar": [],
    "structured_outputs": [],
}
ACTIVE: Mapping[str, Sequence[Any]] = {
    "logit_bias": [{"5": 1}, {"5": True}, [], "x"],
    "logprobs": [True, 0],
    "top_logprobs": [3, 10**6],
    "n": [2, 0, 10**6, "1", True],
    "best_of": [2],
    "verbosity": ["low", "high"],
    "store": [True],
    "functions": [[{"name": "f"}]],
    "function_call": [{"name": "f"}],
    "modalities": [["audio"], ["text", "audio"], "text"],
    "repetition_penalty": [1.1, True],
    "mm_processor_kwargs": [{"a": 1}, []],
    "web_search_options": [{}],
    "moderation": [{}],
    "grammar": ["root ::= x"],
    "guided_json": [{}],
    "guided_regex": ["x"],
    "guided_choice": [["x"]],
    "guided_grammar": ["x"],
    "structured_outputs": [{"regex": "x"}],
}
ADVISORY: Mapping[str, Any] = {
    "zzz": 1,
    "metadata": {"a": "b"},
    "user": "u",
    "safety_identifier": "s",
    "service_tier": "auto",
    "prompt_cache_key": "k",
    "prediction": {"type": "content", "content": "x"},
    "parallel_tool_calls": True,
    "modalities": ["text"],
    "audio": {"voice": "v"},
}
