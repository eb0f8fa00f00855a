"""Running text up to the first tool-call marker: what may be published now, and what is held.

Owns one channel's text. White space is held until it is known what follows it, the possible beginning of a
marker until it is decided, everything from a marker on to the end.
"""

from __future__ import annotations

from ninfer.output.tools.tags import TagForms


class MarkerScanner:
    """``feed`` gives what can be published; ``held`` is what was not, ``marker_seen`` whether a marker came.

    Work is amortised constant per character; held text is joined only when it is asked for.
    """

    def __init__(self, forms: TagForms) -> None:
        self._forms = forms
        self._space: list[str] = []  # white space at the end of the text, before a possible marker
        self._opening = ""  # the possible beginning of a marker; after a marker, nothing
        self._looked_through = 0  # characters of an opener's attributes known to hold no end
        self._region: list[str] = []  # from the marker on
        self.marker_seen = False

    @property
    def space(self) -> str:
        """Held white space that stands in front of the marker or at the end of the text."""
        return "".join(self._space)

    @property
    def region(self) -> str:
        """Held text behind ``space``: from the marker on, or the possible beginning of one."""
        return "".join(self._region) if self.marker_seen else self._opening

    def feed(self, text: str) -> str:
        """Add text; returns what is decided to be no part of a tool call."""
        published: list[str] = []
        if self.marker_seen:
            self._region.append(text)
            return ""
        text, at = self._opening + text, 0
        searched = self._looked_through
        self._opening, self._looked_through = "", 0
        while True:
            start = text.find("<", at)
            if start < 0:
                self._plain(text[at:], published)
                break
            self._plain(text[at:start], published)
            end = self._opener_end(text, start, searched)
            searched = 0
            if end is None:
                self._opening = text[start:]
                self._looked_through = len(self._opening)
                break
            if end == start:
                self._plain("<", published)
                at = start + 1
                continue
            self.marker_seen = True
            self._region.append(text[start:])
            break
        return "".join(published)

    def _plain(self, text: str, published: list[str]) -> None:
        """Text without a marker: published up to the white space at its end."""
        bare = text.rstrip(self._forms.space_characters)
        if bare:
            published += (*self._space, bare)
            self._space.clear()
        if len(bare) < len(text):
            self._space.append(text[len(bare) :])

    def _opener_end(self, text: str, start: int, searched: int) -> int | None:
        """Where the marker at ``start`` is known as one; ``start`` where none is, None while undecided."""
        forms = self._forms
        if (literal := forms.literal_marker.match(text, start)) is not None:
            return literal.end()
        head = forms.attribute_marker.match(text, start)
        if head is None:
            undecided = text[start : start + forms.longest_opener]
            return None if undecided in forms.marker_beginnings else start
        limit = head.end() + forms.longest_opener
        stop = forms.opener_stop.search(text, max(head.end(), start + searched), limit + 1)
        if stop is not None:
            if stop.group() != ">" or forms.name_in(text[head.end() : stop.start()]) is None:
                return start
            return stop.end()
        return None if len(text) <= limit else start
