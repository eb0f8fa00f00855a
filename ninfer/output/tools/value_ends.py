"""Where each parameter's value ends.

Owns the rule of ``spec/tools.yaml``: inner parameters must be balanced, and a closer ends the value only
where the call goes on or the text ends behind it. One pass in each direction finds the ends of all openers.
"""

from __future__ import annotations

from collections.abc import Sequence

from ninfer.output.tools.tags import Tag, TagForms

_GOES_ON = ("parameter", "call_end")


class ValueEnds:
    """``closer_of`` gives the closing tag of an opening one, both as indices of ``tags``."""

    def __init__(self, text: str, tags: Sequence[Tag], forms: TagForms) -> None:
        self._tags = tags
        self._forms = forms
        self._text = text
        self._kind_at = {tag.start: tag.kind for tag in tags}
        self._inner = self._inner_closers()
        self._closers = self._value_closers()

    def closer_of(self, opener: int) -> int | None:
        """None where the value never ends."""
        return self._closers.get(opener)

    def _inner_closers(self) -> dict[int, int]:
        """For every opener the closer that balances it as a part of another value."""
        found: dict[int, int] = {}
        opened: list[int] = []
        for index, tag in enumerate(self._tags):
            if tag.kind == "parameter":
                opened.append(index)
            elif tag.kind == "parameter_end" and opened and self._closes(index, self._tags[opened[-1]].word):
                found[opened.pop()] = index
        return found

    def _value_closers(self) -> dict[int, int]:
        """From the last tag back: what ends a value that reaches a tag is known before the tag is."""
        ends: dict[str, int | None] = dict.fromkeys(self._forms.closers)  # by opener, from the current tag on
        beyond: dict[int, dict[str, int | None]] = {len(self._tags): dict(ends)}
        found: dict[int, int] = {}
        for index in range(len(self._tags) - 1, -1, -1):
            tag = self._tags[index]
            if tag.kind == "parameter":
                closer = ends[tag.word]
                if closer is not None:
                    found[index] = closer
                inner = self._inner.get(index)
                ends = dict.fromkeys(ends) if inner is None else beyond[inner + 1]
            elif tag.kind == "parameter_end" and self._may_end(tag.end):
                ends = {word: index if self._closes(index, word) else end for word, end in ends.items()}
            beyond[index] = ends
        return found

    def _may_end(self, at: int) -> bool:
        """Whether what follows a closer makes it the end of a value."""
        at = self._forms.after_space(self._text, at)
        return self._kind_at.get(at) in _GOES_ON or self._forms.unfinished(self._text, at)

    def _closes(self, closer: int, opener: str) -> bool:
        return self._tags[closer].word in self._forms.closers[opener]
