"""torch's DistributedSampler for loops written by hand, with an order that a pass moves on and a place to resume from.

In: a data set's length, a world. Out: this rank's sample indices, epoch by epoch. The order is `ExactSampler`'s.
"""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, final

import torch.distributed as dist
from torch.utils import data

from unisono.collectives.places import current_world
from unisono.data.sampler import ExactSampler
from unisono.errors import ConfigError


@final
class DistributedSampler(data.DistributedSampler[int]):
    """A drop-in for ``torch.utils.data.DistributedSampler``: its signature, attributes and equal lengths.

    Rank r gets every ``num_replicas``-th sample of the epoch's order, which is that of a `Run` with this seed. As
    torch's, it gives all ranks equally many samples: the first ones of the order come again at its end, or with
    `drop_last` the tail is left out. `exact_once` does neither: ranks may then differ by one sample, and so by one
    batch, and a loop over ``DistributedDataParallel`` must allow for that::

        with torch.distributed.algorithms.join.Join([model]):
            for batch in loader: ...

    Other than torch's, the order moves on by itself: when the last sample of a pass has been handed out, the next pass
    is the next epoch. `set_epoch` chooses it as usual. A pass that is left earlier (``next(iter(loader))``, a
    ``break``) does not count: the next one has the same order, and a warning says so, because ranks that leave at
    different samples would go through different epochs from then on.

    `state_dict` and `load_state_dict` keep the place within a pass, as torchdata's ``StatefulDistributedSampler`` and
    its ``StatefulDataLoader`` expect; the state is JSON-able.

    Args:
        dataset: Anything with a length.
        num_replicas: Number of ranks that share the data; unset: of the process group, else of the launched world.
        rank: This rank; unset likewise.
        shuffle: Whether each epoch has its own order.
        seed: Equal on all ranks.
        drop_last: Leave out the tail that is no sample for every rank.
        exact_once: Each sample once over all ranks, none repeated or left out.

    Attributes:
        epoch: Of the next pass, 0-based.
        yielded: Samples of the present pass that have been handed out on this rank.
        num_samples: Samples of one pass on this rank.
        total_size: Over all ranks, repeated ones counted.

    Raises:
        ConfigError: Not ``0 <= rank < num_replicas``, an empty data set, `drop_last` with `exact_once`; from
            `load_state_dict`: the state of another sampler.

    Source: https://docs.pytorch.org/data/main/torchdata.stateful_dataloader.html (the contract of the state)
    """

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        exact_once: bool = False,
    ) -> None:
        if num_replicas is None or rank is None:
            found = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else _launched()
            num_replicas = found[0] if num_replicas is None else num_replicas
            rank = found[1] if rank is None else rank
        if not 0 <= rank < num_replicas:
            raise ConfigError(f"expected 0 <= rank < num_replicas, got rank={rank}, num_replicas={num_replicas}.")
        if drop_last and exact_once:
            raise ConfigError(
                "expected drop_last=True or exact_once=True, got both: the first leaves samples out, the second none."
            )
        self._order = ExactSampler(len(dataset), len(dataset), seed=seed, shuffle=shuffle)
        super().__init__(dataset, num_replicas, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
        self.exact_once = exact_once
        if exact_once:
            self.num_samples, self.total_size = len(range(rank, len(dataset), num_replicas)), len(dataset)
        self.epoch = self.yielded = 0
        self._resume_at: int | None = None
        self._is_epoch_set = self._is_warned = False

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass; without this call it is the one after the last full pass."""
        if epoch != self.epoch:
            self.yielded, self._resume_at = 0, None  # a place belongs to its epoch
        self.epoch, self._is_epoch_set = epoch, True

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        start, self._resume_at = self._resume_at or 0, None
        if 0 < self.yielded != start and not self._is_epoch_set:
            self._warn()
        self.yielded = start
        return self._pass(self.epoch, start)

    def state_dict(self) -> dict[str, int]:
        """Return where this rank is: plain whole numbers."""
        yielded = self.yielded if self._resume_at is None else self._resume_at
        return {
            "epoch": self.epoch, "yielded": yielded, "num_replicas": self.num_replicas,
            "num_samples": self._order.num_samples, "seed": self.seed,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on where `state_dict` was taken, also on another number of ranks.

        Args:
            state: Of a sampler over the same data with the same seed; ``{"yielded": n}`` alone is enough, the epoch is
                then `set_epoch`'s to say. With another `num_replicas`, the ranks' states must be those of one step.

        Raises:
            ConfigError: Another data set or seed, or a place that these ranks cannot share.
        """
        yielded = state.get("yielded")
        if not isinstance(yielded, int) or yielded < 0:
            raise ConfigError(f"expected a state with yielded >= 0, as state_dict() gives, got {dict(state)}.")
        for name, mine in (("num_samples", self._order.num_samples), ("seed", self.seed)):
            if state.get(name, mine) != mine:
                raise ConfigError(f"expected the state of a sampler with {name}={mine}, got {name}={state[name]}.")
        done, rest = divmod(yielded * int(state.get("num_replicas", self.num_replicas)), self.num_replicas)
        if rest or done > self.num_samples:
            raise ConfigError(
                f"{yielded} samples on each of {state.get('num_replicas')} ranks are no whole number on each of "
                f"{self.num_replicas}. Hint: resume on as many ranks as before, or at the start of an epoch."
            )
        self.epoch = int(state.get("epoch", self.epoch))
        self.yielded = self._resume_at = done

    def _pass(self, epoch: int, start: int) -> Iterator[int]:
        order = self._order.batch(epoch + 1)
        for place in range(start, self.num_samples):
            sample = int(order[(self.rank + place * self.num_replicas) % len(order)])
            self.yielded = place + 1
            if self.yielded == self.num_samples:  # the pass ends with its last sample, whether or not more are asked
                self.epoch, self.yielded = epoch + 1, 0
            yield sample

    def _warn(self) -> None:
        if not self._is_warned:
            self._is_warned = True
            warnings.warn(
                f"rank {self.rank} left a pass over DistributedSampler after {self.yielded} of {self.num_samples} "
                f"samples; the next pass has the order of epoch {self.epoch} again. If other ranks went on, they see "
                "other epochs from now on. Hint: call sampler.set_epoch(epoch) before each pass.",
                stacklevel=3,
            )


def _launched() -> tuple[int, int]:
    world = current_world()
    return world.world_size, world.rank
