"""Curves in a terminal (pure): numbers to lines of blocks."""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence

from unisono.report.content import log_ends, mean_of

EIGHTHS = " ▁▂▃▄▅▆▇█"
PALE = "░"


def curve(points: Sequence[tuple[float, float]], width: int, height: int) -> list[str]:
    """Return a smooth curve as lines of text, the newest point at the right; logarithmic as `log_ends` says.

    Where there are more points than columns, a column shows the mean of its stretch; where there are fewer, each point
    takes several columns. Above it single points are pale: the highest of each column, as far as the scale reaches.

    Args:
        points: (x, y); what is not finite is left out.
        width: Columns, of which ten are for the numbers at the left.
        height: Lines.
    """
    values = means(points, width)
    if not values:
        return []
    low, high = min(values), max(values)
    single = spread([y for _, y in points if math.isfinite(y)], len(values), max)
    heights = eighths([*values, *(min(high, max(low, value)) for value in single)], height, log=is_log(values))
    lines = []
    for row in reversed(range(height)):
        label = high if row == height - 1 else low if row == 0 else None
        cells = "".join(
            PALE if mine <= 8 * row < 8 * row + 4 < top else EIGHTHS[max(0, min(8, mine - 8 * row))]
            for mine, top in zip(heights[: len(values)], heights[len(values) :], strict=True)
        )
        lines.append(f"{'' if label is None else f'{label:.4g}':>9} {cells}")
    return lines


def means(points: Sequence[tuple[float, float]], width: int) -> list[float]:
    """Return what each column of a curve shows."""
    return spread([y for _, y in mean_of(points)[0]], max(8, width - 10))


def is_log(values: Sequence[float]) -> bool:
    """Say whether the axis of these values is logarithmic."""
    return log_ends([(0.0, value) for value in values]) is not None


def spread(
    values: Sequence[float], number: int, of: Callable[[Sequence[float]], float] = statistics.fmean
) -> list[float]:
    """Return one value for each column, the mean of its stretch, or what `of` says; nothing of nothing."""
    ends = [n * len(values) // number for n in range(number + 1 if values else 0)]
    return [of(values[first : max(last, first + 1)]) for first, last in itertools.pairwise(ends)]


def eighths(values: Sequence[float], height: int, *, log: bool = False) -> list[int]:
    """Return how high each value stands, in eighths of a line: the lowest 1, the highest 8 times `height`."""
    heights = [math.log10(value) for value in values] if log else values
    low, high = min(heights), max(heights)
    return [round((value - low) / ((high - low) or 1.0) * (8 * height - 1)) + 1 for value in heights]
