"""The generators between computations: what a loop's body or a callback draws is keyed by the step alone."""

from typing import final

from unisono.determinism.seeding import mix
from unisono.determinism.switches import set_generators


@final
class Between:
    """Puts the process-wide generators into the state named by a purpose and a place, which begins with the step.

    Args:
        seed: The run's seed.

    Attributes:
        is_lazy: Whether `at` only remembers; whoever lets foreign code run calls `settle` first. For loops that know
            all the code they run between steps: most of it draws nothing.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._pending: tuple[str, *tuple[int, ...]] | None = None
        self.is_lazy = False

    def at(self, purpose: str, *place: int) -> None:
        """Set the generators for what comes now: in a step, and after so many of its updates where there are more."""
        self._pending = (purpose, *place)
        if not self.is_lazy:
            self.settle()

    def settle(self) -> None:
        """Do what `at` has put off."""
        if self._pending is not None:
            set_generators(mix(self._seed, *self._pending))
            self._pending = None
