"""The help text of a program, made from its option table: each option once, with range and default.

Owns wording and layout; ``tools/docs.py`` uses the same words for the tables under ``docs/``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from ninfer.cli.option_values import range_text
from ninfer.spec.options import Option, OptionTable, Requirement, Variable

_WIDTH = 100
_INDENT = 30


def render_help(table: OptionTable) -> str:
    """The whole ``--help`` text, at most 100 columns wide, ending in a line break."""
    lines = [f"Usage: {table.program} {table.usage}", "", *textwrap.wrap(table.summary, _WIDTH)]
    for title, options in table.by_topic():
        lines += ["", f"{title}:"]
        for option in options:
            lines += _entry(label(option), _text(table, option))
    if table.environment:
        lines += ["", "Environment:"]
        for variable in table.environment:
            lines += _entry(variable.name, _variable_text(table, variable))
    return "\n".join(lines) + "\n"


def label(option: Option) -> str:
    """Names and value of an option as they are typed, such as ``--port N``."""
    names = ", ".join((*option.aliases, option.name))
    return f"{names} {option.metavar}" if option.takes_value and not option.positional else names


def values_text(option: Option) -> str:
    """What may be given, in words; empty where anything may."""
    if option.choices:
        return "one of " + ", ".join(choice.value for choice in option.choices)
    bounds = range_text(option)
    return f"{option.unit}, {bounds}" if bounds and option.unit else bounds


def default_text(option: Option) -> str:
    """The default in words."""
    if option.default_text is not None:
        return option.default_text
    if option.repeatable or option.default in (None, ()):
        return "none" if option.repeatable else "unset"
    if isinstance(option.default, bool):
        return "on" if option.default else "off"
    if isinstance(option.default, tuple):
        return ",".join(str(item) for item in option.default)
    if isinstance(option.default, float):
        return f"{option.default:g}"
    return str(option.default)


def relations(option: Option) -> Iterator[str]:
    """What the option needs and excludes, other options named without their dashes."""
    for requirement in option.requires:
        yield _requirement_text(requirement)
    if option.conflicts:
        yield "not with " + ", ".join(_bare(conflict.option) for conflict in option.conflicts)
    if option.repeatable:
        yield "may be repeated"
    if option.required_unless:
        yield "required unless " + " or ".join(_bare(name) for name in option.required_unless) + " is given"


def availability(table: OptionTable, option: Option) -> str:
    """Empty when everything about the option works, else what does not and what brings it."""
    if not option.works:
        return f"not available yet: comes with {table.owners[option.owner]}"
    missing: dict[str, list[str]] = {}
    for choice in option.choices:
        if not choice.works:
            missing.setdefault(choice.owner, []).append(choice.value)
    return "; ".join(
        f"{', '.join(values)} not available yet: comes with {table.owners[owner]}"
        for owner, values in missing.items()
    )


def _text(table: OptionTable, option: Option) -> str:
    facts = [values_text(option), *relations(option)]
    if option.name not in ("--help", "--version") and not option.required_unless:
        facts.append(f"default: {default_text(option)}")
    stated = "; ".join(fact for fact in facts if fact)
    missing = availability(table, option)
    return option.help + (f" [{stated}]" if stated else "") + (f" ({missing})" if missing else "")


def _variable_text(table: OptionTable, variable: Variable) -> str:
    text = f"{variable.help} [one of {', '.join(variable.choices)}; default: {variable.default}]"
    return text if variable.works else f"{text} (no effect yet: comes with {table.owners[variable.owner]})"


def _requirement_text(requirement: Requirement) -> str:
    other = " or ".join(_bare(name) for name in requirement.any_of)
    if requirement.refused:
        return f"not with {other} " + " or ".join(str(value) for value in requirement.refused)
    values = " or ".join(str(value) for value in requirement.allowed)
    return f"needs {other} {values}".rstrip()


def _bare(name: str) -> str:
    return name.lstrip("-")


def _entry(head: str, text: str) -> list[str]:
    body = textwrap.wrap(text, _WIDTH - _INDENT, break_long_words=False, break_on_hyphens=False)
    if len(head) + 4 > _INDENT:
        return [f"  {head}", *(" " * _INDENT + line for line in body)]
    first, *rest = body
    return [f"  {head}".ljust(_INDENT) + first, *(" " * _INDENT + line for line in rest)]
