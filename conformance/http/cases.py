"""The cases under ``cases/``: requests as data, what must come back, and the clauses that each proves.

Owns their reading; a folder is a protocol (``transport`` uses chat). ``checks.py`` judges the answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "cases"
SCHEMA = Path(__file__).parent / "cases.schema.json"
_DEFAULT_PROTOCOL = "chat"
# The seed of a request chooses its play; the output limit where a protocol has no seed.
_FIRST_SEED = 1000


@dataclass(frozen=True, slots=True)
class Case:
    """One request and its expectation.

    ``says`` are the tokens that the model behind the server gives; ``server`` the options that it needs. A
    case without either can be tried on any server.
    """

    name: str
    protocol: str
    expect: Mapping[str, Any]
    clauses: tuple[str, ...] = ()
    method: str = "POST"
    path: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    ask: Mapping[str, Any] | None = None
    json: Any = None
    text: str | None = None
    says: tuple[str, ...] | None = None
    server: tuple[str, ...] | None = None
    seed: int | None = None

    @property
    def anywhere(self) -> bool:
        return self.says is None and self.server is None


def read_cases() -> list[Case]:
    """Every case, in the order of files and groups; scripted ones with a seed of their own."""
    cases: list[Case] = []
    for path in case_files():
        for group in json.loads(path.read_text(encoding="utf-8")):
            for test in group["tests"]:
                seed = _FIRST_SEED + len(cases) if "says" in test else None
                cases.append(_case(path, group, test, seed))
    return cases


def case_files() -> list[Path]:
    return sorted(CASES.rglob("*.json"))


def _case(path: Path, group: Mapping[str, Any], test: Mapping[str, Any], seed: int | None) -> Case:
    folder = path.parent.name
    shared = {name: group[name] for name in ("method", "path", "headers", "server") if name in group}
    members: dict[str, Any] = shared | dict(test)
    description = members.pop("description")
    clauses = (*group.get("clauses", ()), *members.pop("clauses", ()))
    for name in ("says", "server"):
        if name in members:
            members[name] = tuple(members[name])
    return Case(
        name=f"{folder}/{path.stem}: {group['description']}: {description}",
        protocol=_DEFAULT_PROTOCOL if folder == "transport" else folder,
        clauses=tuple(dict.fromkeys(clauses)),
        seed=seed,
        **members,
    )


def script(cases: Iterable[Case], more: Mapping[int, Sequence[str]] | None = None) -> dict[str, Any]:
    """What the scripted engine plays: each case's tokens by its seed, ``ok`` for all else."""
    spoken = {case.seed: case.says for case in cases if case.says is not None} | dict(more or {})
    plays = {
        name: {"steps": list(_steps(tokens))}
        for seed, tokens in spoken.items()
        for name in (str(seed), f"limit {seed}")
    }
    return {"plays": plays, "default": {"steps": [{"text": "</think>\n"}, {"text": "ok"}]}}


def _steps(tokens: Sequence[str]) -> Iterator[dict[str, Any]]:
    for token in tokens:
        told = re.fullmatch(r"\[(fail|wait|progress) ([\w.]+)\]", token)
        if told is None:
            yield {"text": token}
        elif told[1] == "fail":
            yield {"fail": told[2]}
        else:
            yield {"wait_s": float(told[2])} if told[1] == "wait" else {"progress": int(told[2])}
