"""Rendered pieces to units: ordinary text and the control tokens that the template wrote between it.

Owns the cut into units and the marks at which a later rendering can go on; tokenising stands in
``tokenizer.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ninfer import spec
from ninfer.errors import RequestError
from ninfer.prompt.prepared import Text
from ninfer.prompt.provenance import Traced, regions

Unit = int | str
_REMEMBERED_RUNS = 1024
# A mark keeps the text since the last control token, so it is only taken where that is short.
_LONGEST_REST = 4096


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the rendering: ``units`` so far, then ``text`` and ``run`` since the last control token.

    ``text`` is settled ordinary text, ``run`` template text that may still grow into a control token.
    """

    units: int
    characters: int
    text: str
    run: str


class Units:
    """The control spellings of one tokenizer, and how template text falls apart into units."""

    def __init__(self, pattern: re.Pattern[str], ids: Mapping[str, int]) -> None:
        self._split = re.compile(f"({pattern.pattern})").split
        self._ids = ids
        self._known: dict[str, list[Unit]] = {}

    def of(self, template_text: str) -> list[Unit]:
        """``[text, id, text, id, …, text]``; templates repeat few strings, so they are remembered."""
        units = self._known.get(template_text)
        if units is None:
            parts = self._split(template_text)
            units = [self._ids[part] if index % 2 else part for index, part in enumerate(parts)]
            if len(self._known) < _REMEMBERED_RUNS and len(template_text) < _REMEMBERED_RUNS:
                self._known[template_text] = units
        return units


class Collector:
    """Takes a rendering piece by piece; ``units`` alternate text and control id."""

    def __init__(self, splitter: Units) -> None:
        self.units: list[Unit] = []
        self.characters = 0
        self._before: Text = ()
        self._pieces: list[str] = []
        self._splitter = splitter
        self._limit: int = spec.document("prompt")["template"]["maximum_output_characters"]
        self._text: list[str] = []
        self._run: list[str] = []
        self._rest = 0  # characters since the last control token

    def feed(self, piece: str) -> None:
        """Add one piece; its template spans may hold control tokens, also together with their neighbours.

        Errors: ``RequestError`` ``invalid_prompt`` when the text passes the limit of ``spec/prompt.yaml``.
        """
        self._pieces.append(piece)
        self.characters += len(piece)
        if self.characters > self._limit:
            raise RequestError(
                "invalid_prompt", f"the chat template wrote more than {self._limit} characters", "messages"
            )
        if not isinstance(piece, Traced):
            self._add(False, piece)
            return
        for of_template, text in regions(piece):
            self._add(of_template, text)

    def mark(self) -> Mark | None:
        """Where the rendering stands now; None where too much text follows the last control token."""
        if self._rest > _LONGEST_REST:
            return None
        return Mark(len(self.units), self.characters, "".join(self._text), "".join(self._run))

    def resume(self, text_so_far: Text, mark: Mark) -> None:
        """Go on as if everything up to ``mark`` had been fed; ``units`` starts anew there."""
        self.units = []
        self._before, self._pieces = text_so_far, []
        self.characters = mark.characters
        self._rest = len(mark.text) + len(mark.run)
        self._text = [mark.text] if mark.text else []
        self._run = [mark.run] if mark.run else []

    def finish(self) -> None:
        """Close the last unit, which is text."""
        self._end_run()
        self.units.append("".join(self._text))
        self._text = []

    def text(self) -> Text:
        """The whole text: the chunks resumed from, which are shared, and what was fed since."""
        fed = "".join(self._pieces)
        return (*self._before, (fed, len(fed)))

    def _add(self, of_template: bool, text: str) -> None:
        if not text:
            return
        if of_template:
            self._run.append(text)
        else:
            if self._run:
                self._end_run()
            self._text.append(text)
        self._rest += len(text)

    def _end_run(self) -> None:
        first, *rest = self._splitter.of("".join(self._run))
        self._run = []
        self._text.append(str(first))
        if rest:
            self.units.append("".join(self._text))
            self.units += rest[:-1]
            self._text = [str(rest[-1])]
            self._rest = len(self._text[0])
