"""What scraping costs an answer: decode rate of one stream alone and beside 100 scrapes a second.

    python -m tools.bench.scrape                        # the bundled model, medians of five, alternating
    python -m tools.bench.scrape --tokens 2000 --repetitions 9

Server, engine, reader and scraper share this machine. The rate is the engine's own (``timings``), so that the
reader's work does not count; the ratio of both medians is printed beside the spread of the runs alone.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from conformance.http.client import Client
from tools.bench.server import running_server

SCRAPES_PER_S = 100


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1500, help="of one answer")
    parser.add_argument("--repetitions", type=int, default=5)
    chosen = parser.parse_args(argv)
    alone: list[float] = []
    beside: list[float] = []
    asked: list[int] = []
    with tempfile.TemporaryDirectory() as directory, running_server([], Path(directory) / "log") as url:
        client = Client(url)
        model = client.get("/v1/models").json["data"][0]["id"]
        rate(client, model, chosen.tokens)
        for _ in range(chosen.repetitions):
            alone.append(rate(client, model, chosen.tokens))
            with scraped(client) as count:
                beside.append(rate(client, model, chosen.tokens))
            asked.append(count[0])
    ratio = statistics.median(beside) / statistics.median(alone)
    print(
        f"scrapes={sum(asked)} alone tok_s={_spread(alone)} scraped tok_s={_spread(beside)} ratio={ratio:.3f}"
    )
    return 0


def rate(client: Client, model: str, tokens: int) -> float:
    """Tokens a second of one answer after its first token."""
    asked = {"model": model, "temperature": 0, "max_tokens": tokens, "ignore_eos": True}
    found: float = client.chat(**asked).json["timings"]["predicted_per_second"]
    return found


@contextmanager
def scraped(client: Client) -> Iterator[list[int]]:
    """Scrape at the given rate until the block ends; the number of scrapes."""
    ended, count = threading.Event(), [0]

    def scrape() -> None:
        due = time.monotonic()
        while not ended.is_set():
            assert client.get("/metrics").status == 200
            count[0] += 1
            due += 1 / SCRAPES_PER_S
            ended.wait(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield count
    finally:
        ended.set()
        thread.join()


def _spread(rates: Sequence[float]) -> str:
    return f"{statistics.median(rates):.0f} ({min(rates):.0f}..{max(rates):.0f})"


if __name__ == "__main__":
    raise SystemExit(main())
