"""Pinned command-line agents: how each is installed, configured and which of its tools do what.

Owns facts about clients, each seen with the version named here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.agents.actor import Call

MODEL = "ninfer-tiny"
INSTALL_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Setup:
    """Where a run happens and which server answers."""

    origin: str
    project: Path
    home: Path


@dataclass(frozen=True, slots=True)
class Agent:
    """One client. ``files`` are written before a run; ``calls`` read, edit and run in its own tools."""

    name: str
    package: str
    version: str
    program: str
    arguments: Callable[[str], Sequence[str]]
    environment: Callable[[Setup], Mapping[str, str]]
    files: Callable[[Setup], Mapping[Path, str]]
    calls: Callable[[Path, str, str, str], Sequence[Call]]


def installed(agent: Agent, cache: Path) -> Path:
    """The client's program, installed from the npm registry on first use. Raises ``LookupError``."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise LookupError("node and npm are not installed")
    directory = cache / f"{agent.name}-{agent.version}"
    program = directory / "node_modules" / ".bin" / agent.program
    if not program.exists():
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "package.json").write_text('{"private": true}')
        command = [npm, "install", "--no-audit", "--no-fund", f"{agent.package}@{agent.version}"]
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise LookupError(f"npm cannot install {agent.package}@{agent.version}: {done.stderr[-300:]}")
    return program


def run(agent: Agent, program: Path, setup: Setup, task: str, timeout_s: float) -> str:
    """Give the client the task; what it printed. Errors: ``AssertionError`` when it fails."""
    setup.home.mkdir()
    for path, text in agent.files(setup).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    keep = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    done = subprocess.run(
        [str(program), *agent.arguments(task)],
        cwd=setup.project,
        env=keep | {"HOME": str(setup.home), "NO_COLOR": "1"} | dict(agent.environment(setup)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    printed = done.stdout + done.stderr
    assert done.returncode == 0, f"{agent.name} ended with {done.returncode}:\n{printed[-3000:]}"
    return printed


def _no_files(setup: Setup) -> Mapping[Path, str]:
    return {}


def _codex_files(setup: Setup) -> Mapping[Path, str]:
    lines = (
        f'model = "{MODEL}"',
        'model_provider = "ninfer"',
        'web_search = "disabled"',
        "[model_providers.ninfer]",
        'name = "NInfer"',
        f'base_url = "{setup.origin}/v1"',
        'wire_api = "responses"',
    )
    return {setup.home / ".codex" / "config.toml": "\n".join(lines) + "\n"}


def _opencode_files(setup: Setup) -> Mapping[Path, str]:
    model = {
        "name": MODEL,
        "tool_call": True,
        "reasoning": True,
        "limit": {"context": 262144, "output": 8192},
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "NInfer",
        "options": {"baseURL": f"{setup.origin}/v1", "apiKey": "none"},
        "models": {MODEL: model},
    }
    config = {
        "autoupdate": False,
        "share": "disabled",
        "model": f"ninfer/{MODEL}",
        "small_model": f"ninfer/{MODEL}",
        "provider": {"ninfer": provider},
    }
    return {setup.home / ".config" / "opencode" / "opencode.json": json.dumps(config)}


def _codex_calls(file: Path, before: str, after: str, command: str) -> Sequence[Call]:
    return (
        ("exec_command", {"cmd": f"cat {file}"}),
        ("exec_command", {"cmd": f"sed -i 's/{before}/{after}/' {file}"}),
        ("exec_command", {"cmd": command}),
    )


AGENTS: Sequence[Agent] = (
    Agent(
        name="claude-code",
        package="@anthropic-ai/claude-code",
        version="2.1.332",
        program="claude",
        arguments=lambda task: ("-p", task, "--allowedTools", "Read,Edit,Bash"),
        environment=lambda setup: {
            "ANTHROPIC_BASE_URL": setup.origin,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
        files=_no_files,
        calls=lambda file, before, after, command: (
            ("Read", {"file_path": str(file)}),
            ("Edit", {"file_path": str(file), "old_string": before, "new_string": after}),
            ("Bash", {"command": command}),
        ),
    ),
    Agent(
        name="codex",
        package="@openai/codex",
        version="0.171.0",
        program="codex",
        arguments=lambda task: (
            *("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            task,
        ),
        environment=lambda setup: {},
        files=_codex_files,
        calls=_codex_calls,
    ),
    Agent(
        name="qwen-code",
        package="@qwen-code/qwen-code",
        version="0.24.4",
        program="qwen",
        arguments=lambda task: ("--auth-type", "openai", "--yolo", "-p", task),
        environment=lambda setup: {
            "OPENAI_BASE_URL": f"{setup.origin}/v1",
            "OPENAI_API_KEY": "none",
            "OPENAI_MODEL": MODEL,
        },
        files=_no_files,
        calls=lambda file, before, after, command: (
            ("read_file", {"file_path": str(file)}),
            ("edit", {"file_path": str(file), "old_string": before, "new_string": after}),
            ("run_shell_command", {"command": command, "is_background": "false"}),
        ),
    ),
    Agent(
        name="opencode",
        package="opencode-ai",
        version="1.18.33",
        program="opencode",
        arguments=lambda task: ("run", task),
        environment=lambda setup: {"OPENCODE_DISABLE_MODELS_FETCH": "1"},
        files=_opencode_files,
        calls=lambda file, before, after, command: (
            ("read", {"filePath": str(file)}),
            ("edit", {"filePath": str(file), "oldString": before, "newString": after}),
            ("bash", {"command": command}),
        ),
    ),
)
