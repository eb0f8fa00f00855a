"""The tags of tool-call markup: how they are spelled and where they stand in a text.

Knows nothing of which orders of tags make a call (``regions.py``). Words and limits come from
``spec/tools.yaml``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast

from ninfer import spec

Kind = Literal["container", "container_end", "call", "cut_call", "call_end", "parameter", "parameter_end"]


@dataclass(frozen=True, slots=True)
class Tag:
    """One tag, ``text[start:end]``; ``name`` is what the opener of a call or parameter names.

    A ``cut_call`` is the opener of a call without its ``>``.
    """

    kind: Kind
    word: str
    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RepairedOpener:
    """The opener of a call as it was meant; ``word_lost``: only the name tells that it is one."""

    tag: Tag
    word_lost: bool


class TagForms:
    """The compiled rules; ``tag_forms`` gives the one instance."""

    def __init__(self, rules: Any) -> None:
        calls, containers = tuple(rules["calls"]), tuple(rules["containers"])
        self.closers = {opener: frozenset(closers) for opener, closers in rules["parameters"].items()}
        self.space_characters: str = rules["white_space"]
        self.name = re.compile(rules["names"]["pattern"])
        self.longest_name: int = rules["names"]["max_bytes"]
        self.longest_opener: int = rules["max_opener_characters"]
        self._name_attribute: str = rules["name_attribute"]
        space = f"[{re.escape(self.space_characters)}]"
        attributes = rf"{space}[^<>\n]{{0,{self.longest_opener}}}"
        closers = sorted(set[str]().union(*self.closers.values()))
        forms: dict[Kind, str] = {
            "container": f"<{_words(containers)}>",
            "container_end": f"</{_words(containers)}>",
            "call": rf"<{_words(calls)}(?:=(?P<call_name>[^<>\n]+)|(?P<call_attributes>{attributes}))>",
            "cut_call": f"<{_words(calls)}=(?P<cut_name>{self.name.pattern})",
            "call_end": f"</{_words(calls)}>",
            "parameter": rf"<{_words(self.closers)}"
            rf"(?:=(?P<parameter_name>[^<>\n]+)|(?P<parameter_attributes>{attributes}))>",
            "parameter_end": f"</{_words(closers)}>",
        }
        self._tag = re.compile("|".join(f"(?P<{kind}>{form})" for kind, form in forms.items()))
        self._word_groups = {kind: self._tag.groupindex[kind] + 1 for kind in forms}
        self._space = re.compile(f"{space}*")
        self._attribute = re.compile(rf"([\w:.-]+){space}*={space}*(\"[^\"]*\"|'[^']*'|[^\s\"']+)|\S+")
        # What begins a marker: complete at once, or an opener whose attributes must be looked through.
        literals = [*(f"<{word}>" for word in containers), *(f"<{word}=" for word in calls)]
        self.literal_marker = re.compile("|".join(map(re.escape, literals)))
        self.attribute_marker = re.compile(f"<{_words(calls)}{space}")
        self.opener_stop = re.compile(r"[<>\n]")
        self.marker_beginnings = _beginnings(literals)
        tags = [*literals, *(f"</{word}>" for word in (*containers, *calls, *closers))]
        self._tag_beginnings = _beginnings([*tags, *(f"<{word}=" for word in self.closers)])
        openers = _words([*calls, *self.closers])
        self._unfinished_opener = re.compile(rf"<{openers}(?:=|{space})[^<>\n]{{0,{self.longest_opener}}}\Z")
        self._repaired = re.compile(
            f"{_words(calls)}=(?P<name>{self.name.pattern})>?|(?:<=?|=)(?P<bare>{self.name.pattern})>"
        )
        self._first_call_word = calls[0]

    def tags(self, text: str) -> list[Tag]:
        """Every tag of ``text``, in order."""
        return [tag for match in self._tag.finditer(text) if (tag := self._read(match)) is not None]

    def after_space(self, text: str, at: int) -> int:
        """The first place from ``at`` on that holds no white space."""
        found = self._space.match(text, at)
        return at if found is None else found.end()

    def name_in(self, attributes: str) -> str | None:
        """The value of the name attribute; None where there is none."""
        for found in self._attribute.finditer(attributes):
            if found[1] == self._name_attribute:
                value: str = found[2]
                return value[1:-1] if value[0] in "\"'" else value
        return None

    def unfinished(self, text: str, at: int) -> bool:
        """Whether the text ends at ``at``, or inside a tag that begins there."""
        rest = text[at : at + self.longest_opener]
        return not rest or rest in self._tag_beginnings or self._unfinished_opener.match(text, at) is not None

    def without_unfinished(self, text: str) -> str:
        """``text`` without the beginning of a tag at its end."""
        start = text.rfind("<", max(0, len(text) - self.longest_opener))
        return text[:start] if start >= 0 and self.unfinished(text, start) else text

    def repaired_opener(self, text: str, at: int) -> RepairedOpener | None:
        """The opener of a call that lost its ``<`` or its word."""
        found = self._repaired.match(text, at)
        if found is None:
            return None
        named = found["name"]
        return RepairedOpener(
            Tag("call", found[1] or self._first_call_word, named or found["bare"], at, found.end()),
            word_lost=named is None,
        )

    def _read(self, match: re.Match[str]) -> Tag | None:
        kind = cast(Kind, match.lastgroup)
        name: str | None = ""
        if kind in ("call", "parameter"):
            name = match[f"{kind}_name"]
            if name is None:
                name = self.name_in(match[f"{kind}_attributes"])
        elif kind == "cut_call":
            name = match["cut_name"]
        if name is None:
            return None
        return Tag(kind, match[self._word_groups[kind]], name, match.start(), match.end())


@functools.cache
def tag_forms() -> TagForms:
    """The forms of ``spec/tools.yaml``."""
    return TagForms(spec.document("tools"))


def _words(words: Iterable[str]) -> str:
    """Any of ``words``, captured."""
    return f"({'|'.join(sorted(words, key=len, reverse=True))})"


def _beginnings(texts: Iterable[str]) -> frozenset[str]:
    """Every proper nonempty beginning of the texts."""
    return frozenset(text[:length] for text in texts for length in range(1, len(text)))
