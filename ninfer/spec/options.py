"""The typed view of ``spec/options.yaml``: which options each program has, and what each one allows.

Owns names, ranges, defaults and dependencies as frozen values; ``ninfer/cli/parser.py`` carries them out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ninfer.errors import SpecError
from ninfer.spec.documents import document

OptionType = Literal[
    "flag",
    "string",
    "file",
    "integer",
    "number",
    "choice",
    "on_off",
    "integer_or_auto",
    "mebibytes",
    "tree_nodes",
    "key_value",
    "integer_list",
    "pair_list",
]


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of a choice option; ``owner`` names the work that brings it when it does not work yet."""

    value: str
    works: bool
    owner: str


@dataclass(frozen=True, slots=True)
class Condition:
    """Holds when the effective value of ``option`` is set, or more exactly is above ``above``."""

    option: str
    above: int | None = None


@dataclass(frozen=True, slots=True)
class DefaultCase:
    """A default that applies when ``when`` holds: ``value``, or the value of the option ``same_as``."""

    when: Condition | None
    value: Any
    same_as: str | None


@dataclass(frozen=True, slots=True)
class Limit:
    """A narrower maximum that applies when ``when`` holds."""

    when: Condition
    maximum: int


@dataclass(frozen=True, slots=True)
class Requirement:
    """What must hold when the option is given with a value outside ``unless``.

    One of ``any_of`` must be set; with ``allowed`` its effective value must be one of these, with
    ``refused`` none of these.
    """

    any_of: tuple[str, ...]
    allowed: tuple[Any, ...] = ()
    refused: tuple[Any, ...] = ()
    unless: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Conflict:
    """The option may not be given beside ``option``, but for its own values in ``unless``."""

    option: str
    unless: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Option:
    """One option of one program; the columns are described at the head of ``spec/options.yaml``."""

    name: str
    key: str
    metavar: str
    topic: str
    type: OptionType
    help: str
    works: bool
    owner: str
    default: Any = None
    default_text: str | None = None
    default_cases: tuple[DefaultCase, ...] = ()
    minimum: int | float | None = None
    maximum: int | float | None = None
    maximum_text: str | None = None
    limits: tuple[Limit, ...] = ()
    unit: str | None = None
    choices: tuple[Choice, ...] = ()
    requires: tuple[Requirement, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    required_unless: tuple[str, ...] = ()
    repeatable: bool = False
    allow_empty: bool = False
    secret: bool = False
    aliases: tuple[str, ...] = ()
    clauses: tuple[str, ...] = ()

    @property
    def positional(self) -> bool:
        """Whether the option is given by place, not by name."""
        return not self.name.startswith("-")

    @property
    def takes_value(self) -> bool:
        """Whether a value follows the name."""
        return self.type != "flag"


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable that a program reads."""

    name: str
    choices: tuple[str, ...]
    default: str
    works: bool
    owner: str
    help: str


@dataclass(frozen=True, slots=True)
class OptionTable:
    """Everything one program accepts, in the order of its help."""

    program: str
    works: bool
    owner: str
    usage: str
    summary: str
    topics: Mapping[str, str]
    owners: Mapping[str, str]
    options: tuple[Option, ...]
    environment: tuple[Variable, ...] = ()
    exactly_one_of: tuple[tuple[str, ...], ...] = ()

    def find(self, name: str) -> Option | None:
        """The option of that name or alias, or None."""
        return next(
            (option for option in self.options if name == option.name or name in option.aliases), None
        )

    def named(self, name: str) -> Option:
        """The option of that name. Errors: ``SpecError`` when the table has none."""
        option = self.find(name)
        if option is None:
            raise SpecError(f"options: {self.program} has no option {name}")
        return option

    def by_topic(self) -> Iterator[tuple[str, tuple[Option, ...]]]:
        """Topic title → its options, topics without options left out."""
        for topic, title in self.topics.items():
            options = tuple(option for option in self.options if option.topic == topic)
            if options:
                yield title, options


def programs() -> tuple[str, ...]:
    """The names of all programs."""
    return tuple(document("options")["programs"])


@functools.cache
def option_table(program: str) -> OptionTable:
    """The options of ``program``. Errors: ``SpecError`` for an unknown program or an inconsistent row."""
    source = document("options")
    if program not in source["programs"]:
        raise SpecError(f"options: no program {program!r}")
    about = source["programs"][program]
    rows = [_for_program(row, program) for row in source["options"] if program in row["programs"]]
    table = OptionTable(
        program=program,
        works=about["works"],
        owner=about["owner"],
        usage=about["usage"],
        summary=about["summary"],
        topics=source["topics"],
        owners=source["owners"],
        options=tuple(_option(row) for row in rows),
        environment=tuple(_variable(row) for row in source["environment"] if program in row["programs"]),
        exactly_one_of=tuple(tuple(group) for group in about.get("exactly_one_of", ())),
    )
    _check_references(table)
    return table


def _for_program(row: Mapping[str, Any], program: str) -> dict[str, Any]:
    return {**row, **row.get("per_program", {}).get(program, {})}


def _option(row: Mapping[str, Any]) -> Option:
    name: str = row["name"]
    bounds = _bounds(row)
    repeatable = row.get("repeatable", False)
    return Option(
        name=name,
        key=row.get("key", name.lstrip("-").replace("-", "_").lower()),
        metavar=row.get("metavar", "" if row["type"] == "flag" else name),
        topic=row["topic"],
        type=row["type"],
        help=row["help"],
        works=row["works"],
        owner=row["owner"],
        default=() if repeatable else _default(row),
        default_text=row.get("default_text"),
        default_cases=tuple(_default_case(case) for case in row.get("default_cases", ())),
        minimum=bounds.get("minimum"),
        maximum=bounds.get("maximum"),
        maximum_text=bounds.get("maximum_text"),
        limits=tuple(Limit(Condition(**limit["when"]), limit["maximum"]) for limit in row.get("limits", ())),
        unit=row.get("unit"),
        choices=tuple(_choice(choice, row) for choice in row.get("choices", ())),
        requires=tuple(_requirement(entry) for entry in row.get("requires", ())),
        conflicts=tuple(_conflict(entry) for entry in row.get("conflicts", ())),
        required_unless=tuple(row.get("required_unless", ())),
        repeatable=repeatable,
        allow_empty=row.get("allow_empty", False),
        secret=row.get("secret", False),
        aliases=tuple(row.get("aliases", ())),
        clauses=tuple(row.get("clauses", ())),
    )


def _bounds(row: Mapping[str, Any]) -> Mapping[str, Any]:
    if "range_of" in row:
        ranges: Mapping[str, Mapping[str, Any]] = document("sampling")["ranges"]
        return ranges[row["range_of"]]
    bounds: Mapping[str, Any] = row.get("range", {})
    if "maximum_of" in bounds:
        return {**bounds, "maximum": _elsewhere(bounds["maximum_of"])}
    return bounds


def _default(row: Mapping[str, Any]) -> Any:
    return _elsewhere(row["default_of"]) if "default_of" in row else _frozen(row["default"])


def _elsewhere(path: Sequence[str]) -> Any:
    """The value at ``[document, member, …]``."""
    value = document(path[0])
    for member in path[1:]:
        value = value[member]
    return value


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    return value


def _choice(choice: str | Mapping[str, Any], row: Mapping[str, Any]) -> Choice:
    if isinstance(choice, str):
        return Choice(choice, row["works"], row["owner"])
    return Choice(choice["value"], False, choice["owner"])


def _default_case(case: Mapping[str, Any]) -> DefaultCase:
    when = Condition(**case["when"]) if "when" in case else None
    return DefaultCase(when, case.get("value"), case.get("same_as"))


def _requirement(entry: Mapping[str, Any]) -> Requirement:
    return Requirement(
        any_of=tuple(entry.get("any_of", ())) or (entry["option"],),
        allowed=tuple(entry.get("is", ())),
        refused=tuple(entry.get("is_not", ())),
        unless=tuple(entry.get("unless", ())),
    )


def _conflict(entry: str | Mapping[str, Any]) -> Conflict:
    if isinstance(entry, str):
        return Conflict(entry)
    return Conflict(entry["option"], tuple(entry.get("unless", ())))


def _variable(row: Mapping[str, Any]) -> Variable:
    return Variable(
        row["name"], tuple(row["choices"]), row["default"], row["works"], row["owner"], row["help"]
    )


def _check_references(table: OptionTable) -> None:
    """Every option that another one speaks of exists in the same program, and no name or key stands twice."""
    for attribute in ("name", "key"):
        seen: set[str] = set()
        for option in table.options:
            value = getattr(option, attribute)
            if value in seen:
                raise SpecError(f"options: {table.program} has two options with {attribute} {value}")
            seen.add(value)
    for group in table.exactly_one_of:
        for name in group:
            table.named(name)
    for option in table.options:
        for name in _referenced(option):
            table.named(name)


def _referenced(option: Option) -> Iterator[str]:
    for requirement in option.requires:
        yield from requirement.any_of
    yield from (conflict.option for conflict in option.conflicts)
    yield from option.required_unless
    yield from (limit.when.option for limit in option.limits)
    for case in option.default_cases:
        if case.when:
            yield case.when.option
        if case.same_as:
            yield case.same_as
