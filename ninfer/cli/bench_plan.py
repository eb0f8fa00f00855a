"""What ``ninfer-bench`` asks of the engine: the tests with their exact token counts, and the prompts.

Owns counts and token ids only; knows nothing of time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.errors import OptionError

Ids = npt.NDArray[np.int32]

_GENERATED_TOKENS = 65_536
_SEED = 0
_LEAST_CONTEXT = 64
_SEPARATORS = re.compile(r"[\s,\[\]]+")


@dataclass(frozen=True, slots=True)
class BenchTest:
    """One test: each of its requests takes ``prompt_tokens`` in and gives ``output_tokens``, never fewer."""

    name: str
    prompt_tokens: int
    output_tokens: int


def tests_asked(options: Mapping[str, Any]) -> list[BenchTest]:
    """The tests in the order -p, -n, -pg; the defaults of -p and -n hold where none of the three is given."""
    explicit: frozenset[str] = getattr(options, "explicit", frozenset())
    keys = {"prompt_tokens", "generated_tokens", "prompt_and_generated_tokens"}
    chosen = keys & explicit or keys
    tests = []
    if "prompt_tokens" in chosen:
        tests += [BenchTest(f"pp{count}", count, 1) for count in options["prompt_tokens"]]
    if "generated_tokens" in chosen:
        # The first output token belongs to the prompt: it is not counted.
        tests += [BenchTest(f"tg{count}", 1, count + 1) for count in options["generated_tokens"]]
    if "prompt_and_generated_tokens" in chosen:
        pairs = options["prompt_and_generated_tokens"]
        tests += [BenchTest(f"pp{prompt}+tg{output}", prompt, output) for prompt, output in pairs]
    return tests


def context_needed(tests: Sequence[BenchTest]) -> int:
    """Tokens of the largest request, at least what an engine may be started with."""
    return max(_LEAST_CONTEXT, *(test.prompt_tokens + test.output_tokens for test in tests))


class Prompts:
    """Cuts prompts from a sequence of token ids: each begins where the last one ended, round and round."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids

    def cuts(self, count: int) -> Iterator[Ids]:
        """Prompts of ``count`` tokens without end, the same ones at each call."""
        place = 0
        while True:
            yield self._ids.take(range(place, place + count), mode="wrap")
            place = (place + count) % len(self._ids)


def read_prompts(corpus: str | None, vocabulary: int, longest: int) -> Prompts:
    """Prompts from the file ``corpus``, else from a sequence drawn uniformly, always the same.

    The file holds decimal ids below ``vocabulary``, separated by white space or commas (a JSON array will
    do). Errors: ``OptionError`` ``--corpus``, also for one shorter than the ``longest`` prompt.
    """
    if corpus is None:
        count = max(_GENERATED_TOKENS, longest)
        return Prompts(np.random.default_rng(_SEED).integers(0, vocabulary, count, np.int32))
    ids = _read_ids(Path(corpus))
    if len(ids) < longest:
        raise OptionError("--corpus", f"{corpus} has {len(ids)} tokens, the longest prompt takes {longest}")
    outside = ids[(ids < 0) | (ids >= vocabulary)]
    if outside.size:
        raise OptionError("--corpus", f"{corpus}: {outside[0]} is no token id of 0..{vocabulary - 1}")
    return Prompts(ids.astype(np.int32))


def _read_ids(path: Path) -> npt.NDArray[np.int64]:
    try:
        words = [word for word in _SEPARATORS.split(path.read_text(encoding="utf-8")) if word]
    except OSError as error:
        raise OptionError("--corpus", f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise OptionError("--corpus", f"{path} is no text of decimal token ids") from None
    for word in words:
        if not re.fullmatch(r"[0-9]{1,18}", word):
            raise OptionError("--corpus", f"{path}: {word[:40]!r} is no decimal token id")
    return np.array(words or [], dtype=np.int64)
