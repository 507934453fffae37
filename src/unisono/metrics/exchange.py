"""Metrics over all ranks: gather the whole numbers, merge them in rank order, compute once everywhere."""

from collections.abc import Mapping, Sequence

from unisono.collectives.transport import Transport
from unisono.errors import ConfigError, RankDivergence
from unisono.metrics.base import Metric, Value


def merge_over_ranks(metrics: Mapping[str, Metric], transport: Transport) -> dict[str, float]:
    """Return every metric over the samples of all ranks, the same on all of them; collective.

    Ranks must have seen contiguous runs of the batches, in rank order. Metrics with several values are spread out as
    ``name/part``. Afterwards each metric holds the samples of all ranks.

    Raises:
        ConfigError: A metric's state holds something else than whole numbers.
        RankDivergence: The ranks hold metrics of other names or kinds; the same message on all ranks.
    """
    # Whole numbers of any size travel as hex text.
    mine = {name: [type(metric).__name__, list(map(hex, _whole(name, metric)))] for name, metric in metrics.items()}
    shards = transport.all_gather_json(mine, of="run.evaluate, its metrics")
    check_keys([list(shard) for shard in shards])
    check_keys([[f"{name} ({shard[name][0]})" for name in shards[0]] for shard in shards])
    scores: dict[str, float] = {}
    for name in shards[0]:
        metric = metrics[name]
        metric.reset()
        for shard in shards:
            metric.merge([int(number, 16) for number in shard[name][1]])
        scores |= spread(name, metric.compute())
    return scores


def _whole(name: str, metric: Metric) -> list[int]:
    """Return a metric's state, which must be whole numbers: sums of them are the same in any order."""
    for number in metric.state:
        if not hasattr(number, "__index__"):
            raise ConfigError(
                f"expected whole numbers in the state of metric {name!r}, got {number!r:.50} "
                f"({type(number).__name__}): sums of fractions depend on their order. Hint: unisono.Mean() for means "
                "of values; unisono.metrics.base.ExactSum adds without rounding, and its units go into the state."
            )
    return metric.state


def spread(name: str, value: Value) -> dict[str, float]:
    """Return a metric's value or values under the names they are recorded by."""
    return {f"{name}/{part}": number for part, number in value.items()} if isinstance(value, dict) else {name: value}


def check_keys(keys: Sequence[Sequence[str]]) -> None:
    """Compare what the ranks are about to log; every rank has all lists, so all decide alike."""
    for rank, theirs in enumerate(keys):
        if set(theirs) != set(keys[0]):
            sides = ((0, set(keys[0]) - set(theirs)), (rank, set(theirs) - set(keys[0])))
            only = "; ".join(f"only rank {side}: {_listed(names)}" for side, names in sides if names)
            raise RankDivergence(
                f"ranks log different metrics: rank 0 has {_listed(keys[0])}, rank {rank} has {_listed(theirs)} "
                f"({only}). Hint: log the same names on every rank, outside any `if` on the rank or the data."
            )


def _listed(names: Sequence[str] | set[str]) -> str:
    return "{" + ", ".join(sorted(names)) + "}"
