"""The fast engine beside others on the same weights, in turns: transformers, and llama.cpp where it is there.

    python -m tools.bench.peers --directory /tmp/peers        # random 0.8B, bf16; needs 5 GB there
    python -m tools.bench.peers --checkpoint build/ninfer-tiny --contexts 0 --prompts 64
    NINFER_LLAMA_BENCH=…/llama-bench python -m tools.bench.peers --gguf random-0.8b.gguf …

Every phase runs on ours, then on each other engine, then on ours again …, ``--repetitions`` times; medians,
and the median of the ratios. Weights are the checkpoint's: bf16 in transformers, ``--recipe`` in ours.
llama.cpp reads its own file format, which its ``convert_hf_to_gguf.py`` makes of the checkpoint directory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch

from tools.bench import scratch
from tools.bench.phases import Phases, passive_threads, settings_for

LLAMA = "NINFER_LLAMA_BENCH"
OURS = "ninfer"


class Engine(Protocol):
    """One engine with the weights loaded; both return seconds."""

    def decode(self, context: int, tokens: int) -> float:
        """``tokens`` rounds of one row, the first at ``context``."""
        ...

    def prefill(self, tokens: int) -> float:
        """A fresh prompt up to its first output token."""
        ...


class Transformers:
    """transformers in bf16, eager attention, its own cache; greedy."""

    def __init__(self, checkpoint: Path, contexts: Sequence[int]) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.bfloat16, attn_implementation="eager"
        ).eval()
        self._vocabulary = self._model.config.get_text_config().vocab_size
        self._caches: dict[int, Any] = {}
        for context in contexts:
            cache = self._cache()
            if context:
                self._forward(self._tokens(context), cache)
            self._caches[context] = cache

    def decode(self, context: int, tokens: int) -> float:
        """A cache cannot be cut back here, so later repetitions decode a little further on."""
        token, cache = torch.ones(1, 1, dtype=torch.long), self._caches[context]
        began = time.perf_counter()
        for _ in range(tokens):
            token = self._forward(token, cache)
        return time.perf_counter() - began

    def prefill(self, tokens: int) -> float:
        prompt, cache = self._tokens(tokens), self._cache()
        began = time.perf_counter()
        self._forward(prompt, cache)
        return time.perf_counter() - began

    def _cache(self) -> Any:
        from transformers.cache_utils import DynamicCache

        return DynamicCache(config=self._model.config)

    def _tokens(self, count: int) -> torch.Tensor:
        return torch.randint(self._vocabulary, (1, count))

    @torch.inference_mode()
    def _forward(self, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
        logits = self._model(tokens, cache=cache, use_cache=True, logits_to_keep=1).logits
        return logits.argmax(-1)


class LlamaBench:
    """llama.cpp's own benchmark program, one process per phase."""

    def __init__(self, program: str, model: Path, threads: int) -> None:
        self._command = [program, "-m", str(model), "-t", str(threads), "-r", "1", "-o", "json"]

    def decode(self, context: int, tokens: int) -> float:
        return tokens / self._rate("-p", "0", "-n", str(tokens), "-d", str(context))

    def prefill(self, tokens: int) -> float:
        return tokens / self._rate("-p", str(tokens), "-n", "0")

    def _rate(self, *arguments: str) -> float:
        done = subprocess.run([*self._command, *arguments], check=True, stdout=subprocess.PIPE)
        (row,) = json.loads(done.stdout)
        return float(row["avg_ts"])


Phase = tuple[str, int, Callable[[Engine], float]]


def planned(contexts: Sequence[int], prompts: Sequence[int], tokens: int) -> Iterator[Phase]:
    """Name, tokens and action of every phase."""
    for context in contexts:
        yield f"decode @{context}", tokens, _decode(context, tokens)
    for prompt in prompts:
        yield f"prefill {prompt}", prompt, _prefill(prompt)


def _decode(context: int, tokens: int) -> Callable[[Engine], float]:
    return lambda engine: engine.decode(context, tokens)


def _prefill(tokens: int) -> Callable[[Engine], float]:
    return lambda engine: engine.prefill(tokens)


Rates = dict[str, dict[str, list[float]]]


def alternate(engines: Mapping[str, Engine], phases: Sequence[Phase], repetitions: int) -> Rates:
    """Phase → engine → tokens per second of each repetition; each phase once unmeasured, to warm up."""
    rates: Rates = {name: {engine: [] for engine in engines} for name, _, _ in phases}
    for repetition in range(repetitions + 1):
        print(f"repetition {repetition} of {repetitions}", file=sys.stderr, flush=True)
        for name, tokens, action in phases:
            for label, engine in engines.items():
                rate = tokens / action(engine)
                if repetition:
                    rates[name][label].append(rate)
    return rates


def table(rates: Rates) -> str:
    """Medians in tokens per second; ``×``: median of ours over theirs, repetition by repetition."""
    others = [name for name in next(iter(rates.values())) if name != OURS]
    head = f"{'phase':<14} {OURS:>10}" + "".join(f" {name:>14} {'×':>6}" for name in others)
    lines = [head]
    for phase, row in rates.items():
        line = f"{phase:<14} {statistics.median(row[OURS]):10.1f}"
        for name in others:
            ratios = [ours / theirs for ours, theirs in zip(row[OURS], row[name], strict=True)]
            line += f" {statistics.median(row[name]):14.1f} {statistics.median(ratios):6.2f}"
        lines.append(line)
    return "\n".join(lines)


def llama(gguf: Path | None, threads: int, environ: Mapping[str, str]) -> LlamaBench | str:
    """llama.cpp, or why it is skipped."""
    program = environ.get(LLAMA)
    if program is None:
        return f"{LLAMA} does not name llama-bench"
    if gguf is None:
        return "--gguf does not name the same weights in llama.cpp's format"
    for path in (Path(program), gguf):
        if not path.is_file():
            return f"{path} is no file"
    return LlamaBench(program, gguf, threads)


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, help="Hugging Face directory (default: a random 0.8B)")
    parser.add_argument("--recipe", default="bf16", help="how ours stores the weights")
    parser.add_argument("--gguf", type=Path, help="the same weights for llama.cpp")
    parser.add_argument("--directory", type=Path, help="keep what is made there and use it again")
    parser.add_argument("--contexts", type=_integers, default=(0, 512, 4096))
    parser.add_argument("--prompts", type=_integers, default=(512, 2048))
    parser.add_argument("--tokens", type=int, default=32, help="decoded per phase")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cpu-activations", choices=["float32", "bf16"], default="float32")
    parser.add_argument("--json", type=Path, help="write everything there")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Load every engine, alternate, print."""
    arguments = arguments_of(argv)
    torch.set_num_threads(arguments.threads)
    with ExitStack() as stack:
        folder = arguments.directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        source = arguments.checkpoint or scratch.checkpoint(folder)
        path = scratch.artifact(folder, arguments.recipe, source)
        settings = settings_for(
            path,
            arguments.contexts,
            arguments.prompts,
            threads=arguments.threads,
            activations=arguments.cpu_activations,
        )
        ours = Phases(path, arguments.contexts, settings)
        stack.callback(ours.close)
        engines: dict[str, Engine] = {OURS: ours, "transformers": Transformers(source, arguments.contexts)}
        other = llama(arguments.gguf, arguments.threads, os.environ)
        if isinstance(other, str):
            print(f"llama.cpp: skipped, {other}", file=sys.stderr)
        else:
            engines["llama.cpp"] = other
        phases = list(planned(arguments.contexts, arguments.prompts, arguments.tokens))
        rates = alternate(engines, phases, arguments.repetitions)
    print(table(rates))
    if arguments.json:
        arguments.json.write_text(json.dumps(rates, indent=1) + "\n")


if __name__ == "__main__":
    passive_threads("tools.bench.peers")
    main()
