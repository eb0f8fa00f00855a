"""Rounds that could hang a team of threads, for a process of their own that a test may end.

    python -m tests.fast.program.team_stress   # a line for every scenario and number of threads

Scenarios: ``busy`` (rounds beside a thread that keeps a core busy), ``asleep`` (rounds so far apart that
helpers sleep), ``closing`` (teams that end at once), ``empty`` (thousands of ranges without operations, real
rounds between).
"""

from __future__ import annotations

import hashlib
import threading
import time

import numpy as np

from ninfer.fast.program.round import RoundRunner
from tests.fast.program.tables import ROWS, Stream


def wanted(stream: Stream, rounds: int) -> np.ndarray:
    """The stream after ``rounds`` whole rounds by one thread."""
    runner = RoundRunner(stream.table(), 1)
    stream.reset()
    for _ in range(rounds):
        runner.run(0, stream.operations, ROWS, 0)
    result = stream.values
    stream.reset()
    return result


def check(stream: Stream, expected: np.ndarray) -> None:
    """The stream holds what one thread would have made."""
    assert (stream.values.view(np.uint32) == expected.view(np.uint32)).all(), (
        "an operation ran more or less than once"
    )


def empty(threads: int) -> None:
    """Ranges without operations must neither hang nor make a late helper run another round's operations."""
    stream = Stream()
    expected = wanted(stream, 40)
    runner = RoundRunner(stream.table(), threads)
    for _ in range(40):
        for _ in range(250):
            runner.run(3, 3, ROWS, 0)  # 10,000 in all
        runner.run(0, stream.operations, ROWS, 0)
    runner.close()
    check(stream, expected)


def busy(threads: int) -> None:
    """Another thread holds a core without the GIL."""
    stream, stop = Stream(), threading.Event()
    expected = wanted(stream, 120)

    def work() -> None:
        data = bytes(1 << 20)
        while not stop.is_set():
            hashlib.sha256(data).digest()

    worker = threading.Thread(target=work)
    worker.start()
    runner = RoundRunner(stream.table(), threads)
    for _ in range(120):
        runner.run(0, stream.operations, ROWS, 0)
    runner.close()
    stop.set()
    worker.join()
    check(stream, expected)


def asleep(threads: int) -> None:
    """Pauses around the time after which a helper falls asleep: none, some and long."""
    stream = Stream()
    expected = wanted(stream, 150)
    runner = RoundRunner(stream.table(), threads)
    for index in range(150):
        time.sleep((index % 50) * 5e-5)
        runner.run(0, stream.operations, ROWS, 0)
    runner.close()
    check(stream, expected)


def closing(threads: int) -> None:
    """Teams that end before, while and after their helpers begin to wait."""
    stream = Stream()
    expected = wanted(stream, 60)
    for index in range(60):
        runner = RoundRunner(stream.table(), threads)
        time.sleep((index % 4) * 1e-3)
        runner.run(0, stream.operations, ROWS, 0)
        if index % 2:
            time.sleep(1e-3)
        runner.close()
        runner.close()
    check(stream, expected)
    RoundRunner(stream.table(), threads).close()


SCENARIOS = {"busy": busy, "asleep": asleep, "closing": closing, "empty": empty}
THREADS = (2, 3)


def report(name: str, threads: int) -> str:
    """Run one scenario; ``ok`` or what went wrong, and seconds."""
    begin, result = time.perf_counter(), "ok"
    try:
        SCENARIOS[name](threads)
        left = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        assert not left, f"threads left behind: {left}"
    except AssertionError as error:
        result = str(error)
    return f"{name}-{threads}: {result} ({time.perf_counter() - begin:.2f} s)"


if __name__ == "__main__":
    for scenario in SCENARIOS:
        for count in THREADS:
            print(report(scenario, count), flush=True)
