"""What an index of copy sources costs: building it, looking up, and its memory.

    python -m tools.bench.draft.index [--tokens 100000] [--repeats 5]

Prints medians. The prompt repeats itself in places, as agents' prompts do.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from ninfer.fast.draft.ngram.index import NgramIndex, Tokens, warm_up

_VOCABULARY, _ROOM, _LOOKUPS = 151_936, 8192, 200


def prompt(tokens: int) -> Tokens:
    """Fresh text, then stretches of it again."""
    random = np.random.default_rng(0)
    text = random.integers(100, _VOCABULARY, tokens).astype(np.int32)
    for begin in range(tokens // 2, tokens - 2000, 5000):
        text[begin : begin + 1000] = text[begin // 2 : begin // 2 + 1000]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools.bench.draft.index", description=__doc__)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    settings = parser.parse_args()
    special = np.zeros(_VOCABULARY, np.bool_)
    special[:100] = True
    warm_up(special)
    text = prompt(settings.tokens)
    built, looked, sizes = [], [], 0
    for _ in range(settings.repeats):
        began = time.perf_counter()
        index = NgramIndex(text, _ROOM, special)
        built.append(time.perf_counter() - began)
        sizes = index.bytes
        times = []
        for place in range(_LOOKUPS):
            index.append(text[place * 400 : place * 400 + 20])
            began = time.perf_counter()
            found = index.propose(15, 12, 3)
            times.append(time.perf_counter() - began)
            assert len(found) == 15
        looked.append(statistics.median(times))
    print(
        f"tokens={settings.tokens} build_ms={1e3 * statistics.median(built):.1f} "
        f"lookup_us={1e6 * statistics.median(looked):.1f} index_mib={sizes / 2**20:.1f}"
    )


if __name__ == "__main__":
    main()
