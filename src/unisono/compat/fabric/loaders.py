"""Fabric's prepared loader: while evaluating, every rank has all the data, in batches of all processes."""

from collections.abc import Iterator
from typing import Any, final

from unisono.compat.fabric.schedules import Schedules
from unisono.compat.passes import Passes
from unisono.errors import ConfigError


@final
class FabricLoader(Passes):
    """What `Fabric.setup_dataloaders` returns for a ``DataLoader``; its batch size is that of one process.

    Attributes:
        schedules: Of the optimizer; those that are not known yet are looked for when a training pass begins.
    """

    schedules: Schedules

    def _places_to_fill(self, leaves: int) -> int:
        told, per_turn = self._told, self.total_batch_size
        places = self._places + (-self._places % self._processes if told.plan is None else 0)
        if told.drop_last and places >= per_turn:
            places -= places % per_turn
        whole = places // (self.batch_size * leaves) * self.batch_size * leaves
        if places == whole or (leaves == self._processes and (places - whole) % leaves == 0):
            return places
        raise ConfigError(
            f"the epoch's last step has {places - whole} samples for {leaves} micro-batches of {self.batch_size}, and "
            "Fabric would carry gradients over into the next epoch. Hint: drop_last=True with "
            f"torch.utils.data.Subset(dataset, range({whole}))."
            if leaves != self._processes
            else f"expected a WeightedRandomSampler with num_samples that {leaves} processes divide, got {places}."
        )

    def _train(self, epoch: int, skipped: int) -> Iterator[Any]:
        self.schedules.find()
        yield from super()._train(epoch, skipped)

    def _evaluate(self, skipped: int) -> Iterator[Any]:
        batch_size = self.total_batch_size
        yield from self._evaluated(batch_size, range(skipped, self._number_of_batches(batch_size)))
