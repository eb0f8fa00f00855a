"""What a start leaves behind is no work for later collections."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from ninfer import collector

# Imports what an engine does, sets it aside, and counts what a collection would look at then.
_START = """
import gc, ninfer.fast.start
from ninfer import collector
before = len(gc.get_objects())
collector.set_aside()
print(before, gc.get_freeze_count(), len(gc.get_objects()))
"""

# An engine that loads, and what of its objects no collection looks at afterwards.
_ENGINE = """
import gc, socket
from ninfer import bundled
from ninfer.engine.child import Child
from ninfer.engine.settings import EngineSettings
ours, theirs = socket.socketpair()
Child(theirs)._load(EngineSettings("reference", str(bundled.path()), 1024))
print(len(gc.get_objects()) + gc.get_freeze_count(), gc.get_freeze_count())
"""


def test_a_start_is_set_aside_whole() -> None:
    printed = subprocess.run([sys.executable, "-c", _START], capture_output=True, text=True, check=True)
    before, frozen, left = map(int, printed.stdout.split())
    assert frozen > 0.8 * before > 50_000
    assert left < 0.01 * before


@pytest.mark.parametrize("enabled", [False, True])
def test_a_pause_ends_as_it_began(enabled: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with collector.paused():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()


def test_an_engine_sets_its_start_aside_before_it_serves() -> None:
    """In a process of its own: an engine's process ends when its socket does."""
    printed = subprocess.run([sys.executable, "-c", _ENGINE], capture_output=True, text=True, check=True)
    loaded, frozen = map(int, printed.stdout.split())
    assert frozen > 0.5 * loaded > 10_000
