"""The worker over a program on a device: the bundled model answers, memory is what the options say.

    python -m tools.gpu_check.worker [--only plain | speculation]

Greedy answers must be equal with graphs and without, alone and beside others, and seeded ones too with any
drafter and without; automatic KV sizing must leave the headroom free. Exits non-zero otherwise.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ninfer.artifact import Artifact
from ninfer.bundled import path as bundled_path
from ninfer.engine.events import Delta, EngineEvent, Failed, Finished, LogRecord
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.settings import CacheSettings, DraftSettings, EngineSettings
from ninfer.engine.statistics import DraftCounters
from ninfer.fast.start import open_worker
from ninfer.prompt import Tokenizer
from ninfer.sampling.parameters import SamplingParameters

GREEDY = SamplingParameters(0.0, 1.0, 0, 0.0, 0.0, 0.0, 1)
# Room set aside for graphs that were never captured stays free beside the headroom.
ROUGHLY_MIB = 256
QUESTIONS = ("What is 12 + 30?", "Write the numbers from 1 to 9.", "Say hello.", "What is 7 * 6?")


@dataclass(slots=True)
class Heard:
    """Texts and ends by request, the log, and the device's free MiB while the worker held its own."""

    texts: dict[str, str] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    drafts: DraftCounters | None = None
    free_mib: float = 0.0

    def publish(self, event: EngineEvent) -> None:
        """The worker's outlet."""
        if isinstance(event, Delta):
            self.texts[event.id] = self.texts.get(event.id, "") + event.text
        elif isinstance(event, Finished):
            self.ended[event.id] = event.reason
        elif isinstance(event, Failed):
            self.ended[event.id] = f"FAILED {event.code}: {event.message}"
        elif isinstance(event, LogRecord):
            self.log.append(event.message)


def answers(
    together: bool,
    path: Path,
    tokenizer: Tokenizer,
    questions: Sequence[str] = QUESTIONS,
    sampling: SamplingParameters = GREEDY,
    **members: object,
) -> Heard:
    """Every question answered by one worker."""
    heard = Heard()
    lanes = len(questions) if together else 1
    settings = EngineSettings("fast", str(path), 4096, lanes=lanes, prefill_chunk=256, **members)  # type: ignore[arg-type]
    worker = open_worker(settings, lambda loaded, total: None, heard.publish)
    for index, question in enumerate(questions):
        text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        ids = np.array(tokenizer.encode(text, control=True), "<i4")
        request = GenerationRequest(
            id=str(index), tokens=ids.tobytes(), positions=b"", initial_channel="content", max_tokens=48,
            stop_token_ids=tuple(tokenizer.encode("<|im_end|>", control=True)),
            sampling=sampling,
        )  # fmt: skip
        worker.submit(request)
        while not together and str(index) not in heard.ended:
            worker.step()
    while len(heard.ended) < len(questions):
        worker.step()
    if worker._speculation is not None:
        heard.drafts = worker._speculation.counters
    heard.free_mib = torch.cuda.mem_get_info()[0] / 2**20
    # Its memory is the next one's.
    del worker
    gc.collect()
    torch.cuda.empty_cache()
    return heard


def speculation(path: Path, tokenizer: Tokenizer) -> bool:
    """Answers with drafts are those without, greedy and with seeds and penalties, alone and together."""
    text = "The quick brown fox jumps over the lazy dog, then sleeps until noon in the warm yellow grass."
    questions = (*QUESTIONS, f"Repeat this text exactly: {text}", f"Repeat this twice: {text} {text}")
    good, seeded = True, SamplingParameters(0.8, 0.95, 20, 0.0, 1.2, 0.2, 7)
    for name, sampling in (("seeded", seeded), ("greedy", GREEDY)):
        base = answers(
            True, path, tokenizer, questions, sampling, kv_capacity=16384, deterministic=True
        ).texts  # fmt: skip
        for together, draft in (
            (True, DraftSettings("mtp", 3, copy_tokens=15)),
            (False, DraftSettings("mtp", 7, copy_tokens=31, lookup=3)),
            (True, DraftSettings("mtp", 3, adaptive=True, copy_tokens=15)),
        ):
            began = time.monotonic()
            other = answers(
                together, path, tokenizer, questions, sampling, kv_capacity=16384, deterministic=True,
                draft=draft, cache=CacheSettings(),
            )  # fmt: skip
            same = other.texts == base
            good = good and same
            print(
                f"drafts {name} together={together} {draft}: {'equal' if same else 'DIFFERENT'} "
                f"{other.drafts} {time.monotonic() - began:.1f} s",
                flush=True,
            )
            if not same:
                for index in base:
                    print(f"  {base[index]!r} | {other.texts.get(index)!r} {other.ended.get(index)}")
    return good


def main(argv: Sequence[str] | None = None) -> None:
    """Run every check."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("plain", "speculation"))
    only = parser.parse_args(argv).only
    path = bundled_path()
    with Artifact.open(path) as artifact:
        tokenizer = Tokenizer.from_resources(
            artifact.resource("text", "tokenizer.json"), artifact.resource("text", "tokenizer_config.json")
        )
    good = True
    if only != "plain":
        good = speculation(path, tokenizer)
    if only == "speculation":
        sys.exit(0 if good else 1)
    began = time.monotonic()
    base = answers(True, path, tokenizer, kv_capacity=16384)
    for index, question in enumerate(QUESTIONS):
        print(f"{question!r} -> {base.texts.get(str(index))!r} {base.ended[str(index)]}", flush=True)
        good = good and not base.ended[str(index)].startswith("FAILED")
    for line in base.log:
        print(f"log {line}")
    for name, together, members in (
        ("without graphs", True, {"cuda_graph": False}),
        ("one by one", False, {}),
        ("deterministic", True, {"deterministic": True}),
    ):
        other = answers(together, path, tokenizer, kv_capacity=16384, **members)
        same = other.texts == base.texts
        good = good and same
        print(f"answers {name}: {'equal' if same else 'DIFFERENT'}", flush=True)
    for kv_format in ("int8", "fp8", "nvfp4", "k8v4"):
        other = answers(True, path, tokenizer, kv_capacity=16384, kv_format=kv_format)
        sound = not any(reason.startswith("FAILED") for reason in other.ended.values())
        good = good and sound
        print(
            f"kv {kv_format}: {list(other.texts.values())[:2]} {'ok' if sound else other.ended}", flush=True
        )
    for headroom in (1024, 2048):
        other = answers(True, path, tokenizer, vram_headroom_mib=headroom)
        ledger = next(line for line in other.log if line.startswith("device_memory_mib"))
        left = headroom <= other.free_mib + 1 and other.free_mib < headroom + ROUGHLY_MIB
        good = good and left
        free = f"free={other.free_mib:.0f} MiB {'ok' if left else 'WRONG'}"
        print(f"auto, headroom {headroom}: {free} {ledger}", flush=True)
    print(f"seconds={time.monotonic() - began:.1f} {'ok' if good else 'FAIL'}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
