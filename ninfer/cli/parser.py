"""argv → options of one program, against ``spec/options.yaml``; help, version and one-line errors.

Owns the command-line grammar and what holds between options. ``option_values`` reads one value; what it means
belongs to the program. An option that does not work yet is refused by name, whatever its value.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ninfer
from ninfer.cli.option_help import render_help
from ninfer.cli.option_values import parse_value, shown
from ninfer.errors import NinferError, OptionError
from ninfer.spec.options import Condition, Option, OptionTable, Requirement, option_table, programs

_NAME = re.compile(r"--[A-Za-z]|--$")

EXIT_FAILURE = 1
EXIT_USAGE = 2


class ParsedOptions(Mapping[str, Any]):
    """Option key → effective value. ``argv`` is the command line, ``explicit`` holds the keys given there.

    Values: flags and on|off are bool, repeatable options tuples, unset options None, ``KEY=VALUE`` pairs,
    decimal MiB whole bytes.
    """

    __slots__ = ("_values", "argv", "explicit", "program")

    def __init__(
        self, program: str, values: Mapping[str, Any], explicit: frozenset[str], argv: Sequence[str] = ()
    ) -> None:
        self.program = program
        self.argv = tuple(argv)
        self.explicit = explicit
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"ParsedOptions({self.program!r}, explicit={sorted(self.explicit)})"


def parse(program: str, argv: Sequence[str]) -> ParsedOptions:
    """The options of ``program`` as ``argv`` (without the program's name) gives them.

    ``--help`` and ``--version`` print to stdout and raise ``SystemExit(0)``.
    Errors: ``OptionError`` whose message starts with the option's name.
    """
    return parse_table(option_table(program), argv)


def parse_table(table: OptionTable, argv: Sequence[str]) -> ParsedOptions:
    """As ``parse``, for any table."""
    given: dict[str, Any] = {}
    for option, raw in _words(table, argv):
        _print_and_leave(table, option)
        if not option.works:
            raise OptionError(option.name, f"not available yet: it comes with {table.owners[option.owner]}")
        value = True if raw is None else parse_value(option, raw, table.owners)
        _store(given, option, value)
    if not table.works:
        raise OptionError("this program", f"not available yet: it comes with {table.owners[table.owner]}")
    _check_presence(table, given)
    values = _with_defaults(table, given)
    options = [option for option in table.options if option.key in given]
    for option in options:
        _check_limits(table, option, values)
        _check_conflicts(table, option, given)
    for option in options:
        _check_requirements(table, option, values)
    return ParsedOptions(table.program, values, frozenset(given), argv)


def check_environment(program: str, environ: Mapping[str, str]) -> None:
    """Refuse an environment variable whose value is none of its choices. Errors: ``OptionError``."""
    for variable in option_table(program).environment:
        value = environ.get(variable.name)
        if value is not None and value not in variable.choices:
            raise OptionError(variable.name, f"{shown(value)} is not one of {', '.join(variable.choices)}")


def run(program: str, argv: Sequence[str] | None, main: Callable[[ParsedOptions], int]) -> int:
    """Parse ``argv`` (None: the process's own) and call ``main``; the exit status.

    A wrong option is one line on stderr and status 2, any other error raised on purpose is one and status 1.
    """
    try:
        options = parse(program, sys.argv[1:] if argv is None else argv)
        check_environment(program, os.environ)
        return main(options)
    except NinferError as error:
        message = " ".join(str(error).splitlines())
        print(f"{program}: {message}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, OptionError) else EXIT_FAILURE


def _words(table: OptionTable, argv: Sequence[str]) -> Iterator[tuple[Option, str | None]]:
    """Each option in argv with its raw value (None for flags), in order."""
    places = iter([option for option in table.options if option.positional])
    words = iter(argv)
    for word in words:
        if word == "--":
            for rest in words:
                yield _place(table, places, rest), rest
        elif not word.startswith("-") or word == "-":
            yield _place(table, places, word), word
        else:
            option, raw = _named(table, word)
            if option.takes_value and raw is None:
                raw = _following(table, option, next(words, None))
            yield option, raw


def _place(table: OptionTable, places: Iterator[Option], word: str) -> Option:
    option = next(places, None)
    if option is None:
        raise OptionError(shown(word), f"unexpected argument; usage: {table.program} {table.usage}")
    return option


def _named(table: OptionTable, word: str) -> tuple[Option, str | None]:
    name, equals, raw = word.partition("=")
    option = table.find(name)
    if option is None:
        raise OptionError(name, _unknown(table, name))
    if equals and not option.takes_value:
        raise OptionError(option.name, "takes no value")
    return option, raw if equals else None


def _following(table: OptionTable, option: Option, word: str | None) -> str:
    if word is None:
        raise OptionError(option.name, f"needs a value ({option.metavar})")
    if _NAME.match(word) or table.find(word) is not None:
        raise OptionError(
            option.name,
            f"needs a value ({option.metavar}); one that starts with dashes as {option.name}={word}",
        )
    return word


def _unknown(table: OptionTable, name: str) -> str:
    others = [p for p in programs() if p != table.program and option_table(p).find(name) is not None]
    if others:
        return f"is an option of {' and '.join(others)}, not of {table.program}"
    known = [option.name for option in table.options if not option.positional]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"see {table.program} --help"
    return f"unknown option; {hint}"


def _print_and_leave(table: OptionTable, option: Option) -> None:
    if option.name == "--help":
        sys.stdout.write(render_help(table))
    elif option.name == "--version":
        sys.stdout.write(f"{table.program} {ninfer.__version__}\n")
    else:
        return
    raise SystemExit(0)


def _store(given: dict[str, Any], option: Option, value: Any) -> None:
    if option.repeatable:
        before = given.get(option.key, ())
        if option.type == "key_value" and any(value[0] == key for key, _ in before):
            raise OptionError(option.name, f"names {value[0]} twice")
        given[option.key] = (*before, value)
    elif option.key in given:
        raise OptionError(option.name, "given twice")
    else:
        given[option.key] = value


def _check_presence(table: OptionTable, given: Mapping[str, Any]) -> None:
    for group in table.exactly_one_of:
        names = [name for name in group if table.named(name).key in given]
        if len(names) > 1:
            raise OptionError(names[0], f"cannot be combined with {names[1]}")
        if not names:
            raise OptionError(group[0], f"exactly one of {' and '.join(group)} is needed")
    for option in table.options:
        excused = any(table.named(name).key in given for name in option.required_unless)
        if option.required_unless and not excused and option.key not in given:
            raise OptionError(option.name, f"is needed; usage: {table.program} {table.usage}")


def _with_defaults(table: OptionTable, given: Mapping[str, Any]) -> dict[str, Any]:
    values = {option.key: given.get(option.key, option.default) for option in table.options}
    for option in table.options:
        if option.key in given:
            continue
        for case in option.default_cases:
            if case.when is None or _holds(table, case.when, values):
                values[option.key] = values[table.named(case.same_as).key] if case.same_as else case.value
                break
    return values


def _holds(table: OptionTable, condition: Condition, values: Mapping[str, Any]) -> bool:
    value = values[table.named(condition.option).key]
    return bool(value) if condition.above is None else value > condition.above


def _check_limits(table: OptionTable, option: Option, values: Mapping[str, Any]) -> None:
    for limit in option.limits:
        if values[option.key] > limit.maximum and _holds(table, limit.when, values):
            raise OptionError(
                option.name,
                f"{values[option.key]} is above {limit.maximum}, the most while {limit.when.option} is above "
                f"{limit.when.above}",
            )


def _check_conflicts(table: OptionTable, option: Option, given: Mapping[str, Any]) -> None:
    for conflict in option.conflicts:
        if table.named(conflict.option).key in given and given[option.key] not in conflict.unless:
            raise OptionError(conflict.option, f"cannot be combined with {option.name}")


def _check_requirements(table: OptionTable, option: Option, values: Mapping[str, Any]) -> None:
    for requirement in option.requires:
        if values[option.key] in requirement.unless:
            continue
        effective = [values[table.named(name).key] for name in requirement.any_of]
        names = " or ".join(requirement.any_of)
        if not _satisfied(requirement, effective):
            raise OptionError(option.name, _needed(requirement, names))


def _satisfied(requirement: Requirement, effective: Sequence[Any]) -> bool:
    if requirement.refused:
        return all(value not in requirement.refused for value in effective)
    if requirement.allowed:
        return any(value in requirement.allowed for value in effective)
    return any(bool(value) for value in effective)


def _needed(requirement: Requirement, names: str) -> str:
    if requirement.refused:
        return f"cannot be used with {names} {' or '.join(map(str, requirement.refused))}"
    if requirement.allowed:
        return f"requires {names} {' or '.join(map(str, requirement.allowed))}"
    return f"requires {names}"
