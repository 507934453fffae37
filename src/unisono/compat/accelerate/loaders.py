"""Accelerate's prepared loader: passes in which, while evaluating, ranks take whole batches in turn."""

from collections.abc import Callable, Iterator
from typing import Any, final

from torch.utils.data import DataLoader

from unisono.compat.passes import Passes
from unisono.compat.torch_loaders import places_of
from unisono.compat.turns import Turns
from unisono.errors import ConfigError
from unisono.train.run import Run


class Evaluation:
    """The pass over data that is not trained on, as far as it has come; what `gather_for_metrics` has to know."""

    #: Whether each rank's batch counts in this round; the others have it to keep step.
    counts: list[bool] | None = None


@final
class PreparedLoader(Passes):
    """What `Accelerator.prepare` returns for a ``DataLoader``; see `Passes` and `DataLoaderConfiguration`."""

    def __init__(
        self, loader: DataLoader[Any], run: Run, turns: Turns, evaluation: Evaluation, *, processes: int,
        accumulation: int, split_batches: bool, even_batches: bool, is_training: Callable[[], bool],
    ) -> None:  # fmt: skip
        super().__init__(
            loader, run, turns, processes=processes, accumulation=accumulation, is_training=is_training
        )  # fmt: skip
        if split_batches and self.batch_size % processes:
            raise ConfigError(
                f"expected with split_batches a batch_size that {processes} processes divide, got {self.batch_size}."
            )
        self.batch_size //= processes if split_batches else 1
        self._evaluation, self._even = evaluation, even_batches

    def skipping(self, num_batches: int) -> "PreparedLoader":
        """Return this loader with the first turns of its next pass left out."""
        self._skipped = num_batches
        return self

    def _places_to_fill(self, leaves: int) -> int:
        return places_of(
            self._places, self.batch_size, self._processes, leaves,
            drop_last=self._told.drop_last, even=self._even and self._told.plan is None,
        )  # fmt: skip

    def _evaluate(self, skipped: int) -> Iterator[Any]:
        rank, ranks = self._run.world.rank, self._run.world.world_size
        numbers = range(skipped * self._processes, self._number_of_batches(self.batch_size))
        rounds = [numbers[start : start + ranks] for start in range(0, len(numbers), ranks)]
        mine = [batches[rank] if rank < len(batches) else numbers[0] for batches in rounds]
        batches = self._evaluated(self.batch_size, mine)
        try:
            for numbers in rounds:
                self._evaluation.counts = [place < len(numbers) for place in range(ranks)]
                yield next(batches)
        finally:
            batches.close()
            self._evaluation.counts = None
