"""What islands are asked for: after how many steps they meet, how many there are, and how they meet (no torch)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unisono.collectives.placement import place_by_shares, place_evenly
from unisono.errors import ConfigError
from unisono.options.fields import option
from unisono.options.quantities import DECAY, LEARNING_RATE, REPLICAS, STEPS
from unisono.strategies.islands.cut import island_size
from unisono.strategies.parts.sending import SendingOptions

OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9
"""DiLoCo's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IslandOptions(SendingOptions):
    """The options of a strategy that may train on islands; none of them without `island_steps`."""

    island_steps: int | None = option(
        None, "DiLoCo: islands of replicas train alone and meet after so many steps.", of=STEPS, usual="no islands"
    )
    islands: int | None = option(None, "Islands, equal parts of the replicas.", of=REPLICAS, usual="one a replica")
    outer_lr: float | None = option(
        None, "Learning rate of the islands' meetings.", of=LEARNING_RATE, usual=f"{OUTER_LR}"
    )
    outer_momentum: float | None = option(
        None, "Nesterov momentum of the islands' meetings.", of=DECAY, usual=f"{OUTER_MOMENTUM}"
    )

    def check_islands(self) -> None:
        """Refuse (`ConfigError`) what says something of islands where there are none, and what they cannot do."""
        alone = [name for name in ("islands", "outer_lr", "outer_momentum") if getattr(self, name) is not None]
        if self.island_steps is None and alone:
            raise ConfigError(
                f"strategy exact: {alone[0]} says something of islands, which there are none of. "
                "Hint: island_steps (--island-steps K) too."
            )
        if self.island_steps is not None and self.overlap == "on":
            raise ConfigError(
                "strategy exact: between their meetings islands send no gradients that could overlap, got overlap on "
                "and island_steps. Hint: leave one of them out."
            )
        if self.island_steps is not None and self.compress != "none":
            raise ConfigError(
                "strategy exact: between their meetings islands send no gradients that could be rounded, and what they "
                f"have moved by is not rounded, got compress {self.compress} and island_steps. Hint: leave one of them "
                "out."
            )

    @property
    def outer(self) -> tuple[float, float]:
        """The learning rate and the momentum with which islands meet."""
        lr, momentum = self.outer_lr, self.outer_momentum
        return OUTER_LR if lr is None else lr, OUTER_MOMENTUM if momentum is None else momentum

    def score_islands(self) -> dict[str, Any]:
        """Return what of islands belongs to the score: all of it, or nothing where there are none."""
        if self.island_steps is None:
            return {}
        lr, momentum = self.outer
        return {
            "island_steps": self.island_steps, "islands": self.islands, "outer_lr": lr, "outer_momentum": momentum,
        }  # fmt: skip

    def place_islands(self, replicas: int, world_size: int, shares: Sequence[float] | None = None) -> list[range]:
        """Return each rank's replicas: whole islands, as even as possible or in proportion to `shares`."""
        size = island_size(replicas, self.islands)
        count = replicas // size
        if world_size > count:
            raise ConfigError(
                f"expected at most {count} processes, since each of {count} island{'s' if count > 1 else ''} is "
                f"computed by one, got {world_size}. Hint: --workers {count}, or a new run with more --islands."
            )
        placed = place_evenly(count, world_size) if shares is None else place_by_shares(count, shares)
        return [range(hosted.start * size, hosted.stop * size) for hosted in placed]
