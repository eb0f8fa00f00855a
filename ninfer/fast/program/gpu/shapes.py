"""Shapes of the rounds that are captured as graphs: plain steps, verification of drafts and of copies.

Owns which shapes there are for each batch size, which of them a round takes, and how many graphs they make.
A round's rows are rounded up to its shape's; the rows beyond are padding that nobody reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer.fast.ops.control import MAX_COLUMNS

if TYPE_CHECKING:
    from ninfer.engine.settings import DraftSettings

# Columns of a captured block: powers of two up to those of the widest verification.
WIDTHS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a launch sequence is fixed to: rows, blocks, and columns of the widest block."""

    rows: int
    blocks: int
    widest: int = 1


def bucket(columns: int) -> int:
    """The least captured width that holds ``columns``."""
    return next(width for width in WIDTHS if width >= columns)


def widths_of(draft: DraftSettings | None) -> tuple[int, ...]:
    """Widths of the verifications that ``draft`` asks for, ascending: neural ones, and the copies' own."""
    if draft is None:
        return ()
    neural = bucket(1 + draft.tokens)
    widths = {width for width in WIDTHS[1:] if width <= neural} if draft.adaptive else {neural}
    if draft.copy_tokens:
        widths.add(bucket(1 + draft.copy_tokens))
    return tuple(sorted(widths))


@dataclass(frozen=True, slots=True)
class Families:
    """The shapes of ``lanes`` lanes at most; ``widths`` of verification blocks, none without speculation."""

    lanes: int
    widths: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Rows of the largest shape."""
        return max(shape.rows for shape in self.shapes())

    def shapes(self) -> list[Shape]:
        """All of them."""
        return [shape for blocks in range(1, self.lanes + 1) for shape in self._of(blocks)]

    @property
    def folds(self) -> range:
        """Batch sizes of the calls that commit what was verified."""
        return range(1, self.lanes + 1) if self.widths else range(0)

    def choose(self, rows: int, blocks: int, widest: int) -> Shape | None:
        """The least shape of ``blocks`` blocks that holds ``rows`` rows and a block of ``widest``."""
        if blocks > self.lanes:
            return None
        fitting = (shape for shape in self._of(blocks) if shape.rows >= rows and shape.widest >= widest)
        return next(fitting, None)

    def graphs(self, head: bool = False) -> int:
        """Executables: Forward and Finish of every shape, the fold, and a ``head``'s."""
        shapes = self.shapes()
        finish = len({shape.rows for shape in shapes})
        # Pairs taken in, in rounded numbers; the first draft and the next ones, each batch size.
        draft = len(WIDTHS) + 2 * self.lanes if head else 0
        return len(shapes) + finish + len(self.folds) + draft

    def _of(self, blocks: int) -> list[Shape]:
        """Shapes of one batch size, the least first."""
        wide = [Shape(min(MAX_COLUMNS, blocks * width), blocks, width) for width in self.widths]
        return [Shape(blocks, blocks), *wide]
