"""A chart of grouped bars as SVG text: one group per phase, one bar per model, a line where a target lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_COLOURS = ("#3b6ea5", "#d98c3f", "#5f9e6e", "#8c6bb1", "#b1555b", "#4a9aa5", "#9a8c5a")
_BAR, _GAP, _LEFT, _TOP, _HEIGHT, _BELOW = 26, 28, 56, 48, 260, 56
_TICKS = 5


@dataclass(frozen=True, slots=True)
class Bar:
    """A share of its group's floor, ``low`` to ``high`` over the repetitions; ``target`` if there is one."""

    group: str
    series: str
    value: float
    low: float
    high: float
    target: float | None


def bars_svg(title: str, bars: Sequence[Bar]) -> str:
    """The chart; groups and series in order of appearance, the scale from 0 to 1 (more where needed)."""
    groups, series = (
        list(dict.fromkeys(names)) for names in ((b.group for b in bars), (b.series for b in bars))
    )
    top = max(1.0, *(bar.high for bar in bars))
    step = _BAR * len(series) + _GAP
    width, height = (
        max(_LEFT + step * len(groups) + _GAP, _LEFT + 115 * len(series), 520),
        _TOP + _HEIGHT + _BELOW,
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(_LEFT, 18, title, "start", 'font-weight="bold"'),
        *_axis(width, top),
    ]
    for bar in bars:
        left = _LEFT + _GAP // 2 + step * groups.index(bar.group) + _BAR * series.index(bar.series)
        parts += _bar(bar, left, _COLOURS[series.index(bar.series) % len(_COLOURS)], top)
    for place, group in enumerate(groups):
        middle = _LEFT + _GAP // 2 + step * place + _BAR * len(series) // 2
        parts.append(_text(middle, _TOP + _HEIGHT + 18, group, "middle"))
    width_of_name = max(90, *(15 + 7 * len(name) + 10 for name in series))
    for place, name in enumerate(series):
        left, below = _LEFT + width_of_name * place, _TOP + _HEIGHT + 44
        colour = _COLOURS[place % len(_COLOURS)]
        parts.append(f'<rect x="{left}" y="{below - 10}" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(left + 15, below, name, "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _y(value: float, top: float) -> float:
    return round(_TOP + _HEIGHT * (1 - value / top), 1)


def _axis(width: int, top: float) -> Iterator[str]:
    for tick in range(_TICKS + 1):
        value = top * tick / _TICKS
        y = _y(value, top)
        yield f'<line x1="{_LEFT}" x2="{width}" y1="{y}" y2="{y}" stroke="#dddddd"/>'
        yield _text(_LEFT - 6, y + 4, f"{100 * value:.0f} %", "end")


def _bar(bar: Bar, left: int, colour: str, top: float) -> Iterator[str]:
    y, middle, width = _y(bar.value, top), left + _BAR / 2 - 1, _BAR - 3
    yield f'<rect x="{left}" y="{y}" width="{width}" height="{_TOP + _HEIGHT - y:.1f}" fill="{colour}"/>'
    yield (
        f'<line x1="{middle}" x2="{middle}" y1="{_y(bar.high, top)}" y2="{_y(bar.low, top)}" stroke="black"/>'
    )
    yield _text(middle, y - 4, f"{100 * bar.value:.0f}", "middle", 'font-size="10"')
    if bar.target is not None:
        mark = _y(bar.target, top)
        yield (
            f'<line x1="{left - 2}" x2="{left + width + 2}" y1="{mark}" y2="{mark}" '
            'stroke="#c00000" stroke-width="2"/>'
        )


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" {more}>{escape(text)}</text>'
