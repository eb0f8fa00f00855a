"""Each pinned agent reads a file, edits it and runs a test, over the protocol it speaks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ninfer import bundled
from tests.agents.actor import Actor, Part
from tests.agents.clients import AGENTS, Agent, Setup, installed, run
from tests.server.inprocess import serving

TASK = "Fix add in calc.py and run test_calc.py"
FAREWELL = "Added instead of subtracted; the test passes."
BROKEN, FIXED = "return a - b", "return a + b"
SERVER = ("--max-context", "262144", "--max-concurrency", "4")
TIMEOUT_S = 240.0


@pytest.fixture(scope="session")
def programs() -> Path:
    """Where clients are kept between runs (``NINFER_AGENTS``)."""
    default = Path.home() / ".cache" / "ninfer" / "agents"
    return Path(os.environ.get("NINFER_AGENTS", default))


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_an_agent_finishes_its_task(agent: Agent, programs: Path, tmp_path: Path) -> None:
    try:
        program = installed(agent, programs)
    except LookupError as reason:
        pytest.skip(f"{agent.name} {agent.version}: {reason}")
    project = tmp_path / "project"
    project.mkdir()
    calc, proof = project / "calc.py", tmp_path / "proof"
    calc.write_text(f"def add(a, b):\n    {BROKEN}\n")
    (project / "test_calc.py").write_text(
        f"import pathlib\nfrom calc import add\nassert add(2, 3) == 5\n"
        f"pathlib.Path({str(proof)!r}).write_text('passed')\n"
    )
    calls = agent.calls(calc, BROKEN, FIXED, f"{sys.executable} test_calc.py")
    actor = Actor(bundled.path(), Part(TASK, calls, FAREWELL))
    with serving(bundled.path(), actor, SERVER) as client:
        printed = run(agent, program, Setup(client.base_url, project, tmp_path / "home"), TASK, TIMEOUT_S)
    print(f"\n{agent.name} {agent.version}: {len(actor.prompts)} turns, {len(actor.prompts[-1])} characters")
    assert FIXED in calc.read_text()
    assert proof.read_text() == "passed"
    assert FAREWELL in printed
    # The last prompt holds every call's result: what was read, what was edited, what was run.
    assert actor.prompts[-1].count("<tool_response>", actor.prompts[-1].rfind(TASK)) == len(calls)
