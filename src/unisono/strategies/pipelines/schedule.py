"""Pipeline schedules as plain lists of moves (pure).

A model is cut into ``ranks * chunks`` stages; rank r has the stages r, r + ranks, r + 2 * ranks, ... A move is one
micro-batch going forward or backward through one stage. Every rank does its moves in the order of its list and waits
for what a move needs; what it makes is sent on without waiting. The tests prove that no rank waits for ever.

``gpipe`` does all forward moves first (Huang et al., "GPipe", 2019). ``1f1b`` goes backward as soon as it can, so that
a rank keeps at most as many micro-batches as there are ranks (Narayanan et al., "PipeDream", 2019). ``interleaved`` is
1f1b with several stages a rank, which divides the bubble by their number (Narayanan et al., "Efficient Large-Scale
Language Model Training on GPU Clusters Using Megatron-LM", 2021); here for any number of micro-batches.
"""

from dataclasses import dataclass
from typing import Literal, final

from unisono.collectives.placement import cut
from unisono.errors import ConfigError

SCHEDULES = ("gpipe", "1f1b", "interleaved")

Direction = Literal["forward", "backward"]


@final
@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One micro-batch through one stage."""

    direction: Direction  #: ``forward`` or ``backward``.
    stage: int  #: From 0, the model's first layers, on.
    micro: int  #: Index of the micro-batch in this pipeline's part of the step.

    def __str__(self) -> str:
        return f"{self.direction} of micro-batch {self.micro} in stage {self.stage}"


Plan = tuple[tuple[Action, ...], ...]
"""The moves of every rank, in order."""


def plan(schedule: str, ranks: int, chunks: int, micros: int) -> Plan:
    """Return the moves of every rank of one pipeline.

    Args:
        schedule: One of `SCHEDULES`; ``1f1b`` and ``interleaved`` differ in nothing but the number of chunks.
        ranks: Processes of the pipeline.
        chunks: Stages of each process.
        micros: Micro-batches, any number; with 0 there are no moves.

    Raises:
        ConfigError: No such schedule, or numbers that it does not fit.

    Example:
        >>> [f"{move.direction[0]}{move.micro}" for move in plan("1f1b", 2, 1, 3)[0]]
        ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    if schedule not in SCHEDULES:
        raise ConfigError(f"expected a schedule: {', '.join(SCHEDULES)}; got {schedule!r}.")
    # Groups of at least as many micro-batches as ranks: none waits between two chunks for its own group's first.
    groups = cut(micros, 1 if schedule == "gpipe" else max(1, micros // ranks))
    forward = [(chunk, micro) for group in groups for chunk in range(chunks) for micro in group]
    backward = [(chunk, micro) for group in groups for chunk in reversed(range(chunks)) for micro in group]
    return tuple(
        _merge(
            [Action("forward", chunk * ranks + rank, micro) for chunk, micro in forward],
            [Action("backward", chunk * ranks + rank, micro) for chunk, micro in backward],
            len(forward) if schedule == "gpipe" else _warmup(ranks, chunks, rank, len(groups[0])),
        )
        for rank in range(ranks)
    )


def _warmup(ranks: int, chunks: int, rank: int, group: int) -> int:
    """Return the forward moves of a rank before its first pair of a forward and a backward one."""
    if chunks == 1:
        return ranks - 1 - rank
    return (chunks - 1) * group + 2 * (ranks - 1 - rank)


def _merge(forward: list[Action], backward: list[Action], warmup: int) -> tuple[Action, ...]:
    first, rest = forward[:warmup], forward[warmup:]
    pairs = [action for pair in zip(rest, backward, strict=False) for action in pair]
    return (*first, *pairs, *backward[len(rest) :])


def bubble(ranks: int, chunks: int, micros: int) -> float:
    """Return the idle share that the formula predicts: (p - 1) / (m + p - 1), with v chunks (p - 1) / (v m + p - 1).

    Source: Narayanan et al. 2021, section 2.2, as a share of the whole time. For equal stages, without messages.
    """
    return (ranks - 1) / (chunks * micros + ranks - 1) if micros else 0.0
