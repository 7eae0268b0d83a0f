"""A chart of ratios in text: one line per architecture, the interval around its median, the anchor at 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 48


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A ratio with its interval."""

    label: str
    low: float
    median: float
    high: float


def draw(bars: Sequence[Bar], width: int = WIDTH) -> list[str]:
    """Return the lines: a scale, then `├──●──┤` for each bar, with `│` where the anchor is."""
    finite = [value for bar in bars for value in (bar.low, bar.median, bar.high) if 0 < value < float("inf")]
    low, high = min([1.0, *finite]), max([1.0, *finite])
    margin = max((high - low) * 0.05, 0.005)
    low, high = max(0.0, low - margin), high + margin

    def column(value: float) -> int:
        return round((min(max(value, low), high) - low) / (high - low) * (width - 1))

    name = max(len(bar.label) for bar in bars)
    left, right = f"{low:.3f}", f"{high:.3f}"
    lines = [f"{'':{name}}  {left}{right:>{width - len(left)}}"]
    for bar in bars:
        cells = [" "] * width
        cells[column(1.0)] = "│"
        for place in range(column(bar.low), column(bar.high) + 1):
            cells[place] = "─"
        cells[column(bar.low)], cells[column(bar.high)] = "├", "┤"
        cells[column(bar.median)] = "●"
        lines.append(f"{bar.label:{name}}  {''.join(cells)}")
    return lines
