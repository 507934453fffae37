"""How work and parameters are cut: among servers, over unequal devices, into stages of equal cost (pure)."""

from collections.abc import Sequence

from unisono.collectives.placement import cut
from unisono.errors import ConfigError


def share_out(sizes: Sequence[int], parts: int) -> list[int]:
    """Return the part of each item, so that the parts' totals are as even as largest-first makes them.

    Source: longest processing time first (Graham, "Bounds on Multiprocessing Timing Anomalies", 1969).

    Example:
        >>> share_out([4, 3, 3, 2], 2)
        [0, 1, 1, 0]
    """
    totals, found = [0] * parts, [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        found[index] = min(range(parts), key=lambda part: (totals[part], part))
        totals[found[index]] += sizes[index]
    return found


def balanced_sizes(batch: int, first: int, devices: int) -> list[int]:
    """Return how many samples each device gets when the first one takes `first` of them, the others equal shares.

    The others' shares differ by one at most, the earlier ones longer. The first device takes what there is where the
    batch is smaller than `first`; with one device it takes everything.

    Example:
        >>> balanced_sizes(10, 2, 4), balanced_sizes(10, 0, 4), balanced_sizes(3, 5, 2), balanced_sizes(7, 2, 1)
        ([2, 3, 3, 2], [0, 4, 3, 3], [3, 0], [7])
    """
    if devices == 1:
        return [batch]
    own = min(first, batch)
    return [own, *(len(part) for part in cut(batch - own, devices - 1))]


def cut_by_cost(costs: Sequence[float], parts: int) -> list[range]:
    """Cut a row of items into contiguous parts, none empty, so that the dearest part is as cheap as it can be.

    Dynamic programming over the last cut: O(parts * items**2).

    Raises:
        ConfigError: Fewer items than parts.

    Example:
        >>> cut_by_cost([5, 1, 1, 1, 4], 3)
        [range(0, 1), range(1, 4), range(4, 5)]
    """
    if not 1 <= parts <= len(costs):
        raise ConfigError(f"expected 1 to {len(costs)} stages for {len(costs)} layers, got {parts}.")
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    # best[j]: the dearest part where the first j items are cut into the parts so far; cuts[p][j]: where the last begins
    best = [sums[j] for j in range(len(costs) + 1)]
    cuts: list[list[int]] = []
    for part in range(1, parts):
        row, starts = [float("inf")] * (len(costs) + 1), [0] * (len(costs) + 1)
        for stop in range(part + 1, len(costs) + 1):
            row[stop], starts[stop] = min(
                (max(best[start], sums[stop] - sums[start]), start) for start in range(part, stop)
            )
        best = row
        cuts.append(starts)
    stops = [len(costs)]
    for starts in reversed(cuts):
        stops.append(starts[stops[-1]])
    edges = [0, *reversed(stops)]
    return [range(edges[index], edges[index + 1]) for index in range(parts)]
