"""Host time from a round's end to the next launch while the server is busy with everything else.

    python -m tools.bench.rounds
    python -m tools.bench.rounds --tokens 20000 --lines 1        # a quick look

Starts a server at debug level. Eight clients read their streams and ask again when one ends; meanwhile
prompts of ``--tokens`` tokens are prepared one after another (longer than the server's context, so each is
prepared and then refused). The engine writes a line for every thousand gaps; the first one, begun before the
load, does not count. Prints each line and the median; exits 1 above ``--limit-us``.
"""

from __future__ import annotations

import argparse
import itertools
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.bench.prompts import copy_prompt
from tools.bench.serve import long_prompts
from tools.bench.server import running_server
from tools.bench.streams import Client, Stream

_LINE = re.compile(r"round_gap_us p50=(\d+) p95=(\d+) max=(\d+) rounds=(\d+)")
_CONTEXT = 8192
_ANSWER_TOKENS = 1000
_LIMIT_S = 600.0


class Load:
    """Streams that are read for ever, and long prompts that are prepared for nothing."""

    def __init__(self, client: Client, streams: int, tokens: int) -> None:
        self._client, self._seeds = client, itertools.count()
        self._long = long_prompts(client, tokens, self._seeds)
        self.prepared = self.answered = 0
        for _ in range(streams):
            self._ask()
        self._preparing = self._prepare()

    def _ask(self) -> None:
        self._client.start(self._client.body(copy_prompt(1000, next(self._seeds)), _ANSWER_TOKENS))

    def _prepare(self) -> Stream:
        return self._client.start(self._client.body(self._long(), 1))

    def follow(self, ended: Stream) -> None:
        """Replace what has ended. Errors: ``LoadError`` for an answer that is none."""
        if ended is self._preparing:
            refusal = b"".join(piece for _, piece in ended.pieces)
            assert b"context_length_exceeded" in refusal, refusal[:600]
            self.prepared += 1
            self._preparing = self._prepare()
        else:
            ended.answer()
            self.answered += 1
            self._ask()


def gap_lines(log: Path) -> Iterator[re.Match[str]]:
    """The engine's lines so far."""
    return _LINE.finditer(log.read_text(errors="replace"))


def measure(
    options: Sequence[str], streams: int, tokens: int, lines: int
) -> tuple[list[re.Match[str]], Load]:
    """The lines that were written under load, and the load."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        served = ["--max-concurrency", str(streams), "--max-context", str(_CONTEXT), "--log-level", "debug"]
        with running_server([*served, *options], log) as url:
            client = Client(url)
            load = Load(client, streams, tokens)
            deadline, looked = time.monotonic() + _LIMIT_S, time.monotonic()

            def done() -> bool:
                nonlocal looked
                if time.monotonic() < looked + 1:
                    return False
                looked = time.monotonic()
                return looked > deadline or len(list(gap_lines(log))) > lines

            client.run(done, load.follow)
            client.close()
        return list(gap_lines(log))[1:], load


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--artifact", type=Path, help="default: the bundled model")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=100_000, help="of each prompt that is prepared")
    parser.add_argument("--lines", type=int, default=3, help="thousands of rounds")
    parser.add_argument("--limit-us", type=float, default=500.0)
    arguments = parser.parse_args(argv)
    options = [str(arguments.artifact)] if arguments.artifact else []
    lines, load = measure(options, arguments.streams, arguments.tokens, arguments.lines)
    for line in lines:
        print(line[0])
    print(f"answers={load.answered} prompts_prepared={load.prepared} tokens={arguments.tokens}")
    if not lines or not load.prepared:
        sys.exit("rounds: too few rounds or no prompt prepared: nothing is shown")
    median = statistics.median(int(line[1]) for line in lines)
    print(f"median_us={median:.0f} limit_us={arguments.limit_us:.0f}")
    sys.exit(int(median > arguments.limit_us))


if __name__ == "__main__":
    main()
