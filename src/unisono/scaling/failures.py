"""How often to save, and what failures cost (pure).

Sources: Young, "A first order approximation to the optimum checkpoint interval", Comm. ACM 17 (1974); Daly, "A higher
order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22 (2006),
equations for the interval and for the expected time with exponential failures.
"""

import math
from dataclasses import dataclass, replace
from typing import final

from unisono.options.fields import check, option
from unisono.scaling.machine import TIME


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Reliability:
    """How a machine fails, and what saving and starting again cost."""

    rank_mtbf_s: float = option(
        text="Mean time between failures of one rank; they fail independently.", of=replace(TIME, above=True)
    )
    checkpoint_s: float = option(text="Training time lost to one checkpoint.", of=replace(TIME, above=True))
    restart_s: float = option(text="From a failure to the first new step, lost steps left out.", of=TIME)

    def __post_init__(self) -> None:
        check(self)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Losses:
    """What failures cost a run on some ranks, saving every `interval_s`."""

    mtbf_s: float  #: Mean time between failures of any rank.
    young_s: float  #: Young's interval of training between two checkpoints.
    interval_s: float  #: Daly's, which holds also where a checkpoint is not short against the time between failures.
    useful: float  #: Part of the time that is training which counts; 0 where the run never gets anywhere.
    lost_s: float  #: Training thrown away by one failure, on average.
    failures_per_day: float  #: How often.


def young_interval_s(mtbf_s: float, checkpoint_s: float) -> float:
    """Return ``sqrt(2 C M)``."""
    return math.sqrt(2 * checkpoint_s * mtbf_s)


def daly_interval_s(mtbf_s: float, checkpoint_s: float) -> float:
    """Return ``sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C`` for C < 2M, else M."""
    if checkpoint_s >= 2 * mtbf_s:
        return mtbf_s
    x = checkpoint_s / (2 * mtbf_s)
    return math.sqrt(2 * checkpoint_s * mtbf_s) * (1 + math.sqrt(x) / 3 + x / 9) - checkpoint_s


def useful_part(mtbf_s: float, interval_s: float, checkpoint_s: float, restart_s: float) -> float:
    """Return the part of the time that counts: ``tau / (M e^(R/M) (e^((tau+C)/M) - 1))`` (Daly)."""
    exponent = (interval_s + checkpoint_s) / mtbf_s
    if exponent > 500 or restart_s / mtbf_s > 500:
        return 0.0
    return interval_s / (mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1(exponent))


def lost_per_failure_s(mtbf_s: float, interval_s: float, checkpoint_s: float) -> float:
    """Return the mean time since the last commit at a failure, for exponential failures.

    Within a segment of ``w = tau + C`` in which a failure comes, it comes on average after ``M - w / (e^(w/M) - 1)``.
    """
    segment = interval_s + checkpoint_s
    if segment / mtbf_s > 500:
        return mtbf_s
    return mtbf_s - segment / math.expm1(segment / mtbf_s)


def expected_losses(ranks: int, reliability: Reliability) -> Losses:
    """Return what failures cost on so many ranks, when saving as often as is best."""
    mtbf_s = reliability.rank_mtbf_s / ranks
    saving, restart = reliability.checkpoint_s, reliability.restart_s
    interval = daly_interval_s(mtbf_s, saving)
    return Losses(
        mtbf_s=mtbf_s, young_s=young_interval_s(mtbf_s, saving), interval_s=interval,
        useful=useful_part(mtbf_s, interval, saving, restart), lost_s=lost_per_failure_s(mtbf_s, interval, saving),
        failures_per_day=86400 / mtbf_s,
    )  # fmt: skip
