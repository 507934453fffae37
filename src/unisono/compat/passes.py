"""A loader as a script's loop sees it: the micro-batches that this rank hosts while training, else whole batches."""

import abc
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader

from unisono.compat.torch_loaders import Filled, told_by
from unisono.compat.turns import Turns
from unisono.data.batches import XY, move
from unisono.data.loader import Fetcher, Task, fetch_all
from unisono.data.plans.plan import Plan
from unisono.data.sampler import ExactSampler
from unisono.determinism.seeding import mix
from unisono.determinism.switches import set_generators
from unisono.errors import ConfigError, StepError
from unisono.train.run import Run


class Passes(abc.ABC):
    """Passes over the data of a torch ``DataLoader``.

    Args:
        loader: As the program has made it.
        run: That trains.
        turns: Over its training data.
        processes: V.
        accumulation: Batches of each process in a step.
        is_training: Asked when a pass begins.

    Attributes:
        batch_size: Of one process.
    """

    def __init__(
        self, loader: DataLoader[Any], run: Run, turns: Turns, *, processes: int, accumulation: int,
        is_training: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._told = told = told_by(loader)
        self.dataset, self.batch_size = loader.dataset, told.batch_size
        self._run, self._turns, self._is_training = run, turns, is_training
        self._processes, self._accumulation = processes, accumulation
        self._training: Any = None
        self._epoch, self._skipped = 0, 0
        self._start: int | None = None
        self._has_rest = True

    @property
    def total_batch_size(self) -> int:
        """Samples of all processes in a turn."""
        return self.batch_size * self._processes

    def __len__(self) -> int:
        """Return the turns of a pass as each of the processes would have them, whatever the number of ranks."""
        whole = self._places // self.total_batch_size
        return whole if self._told.drop_last and whole else -(-self._places // self.total_batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next pass over the training data is, from 0; it must be the one that comes."""
        self._epoch = epoch

    def start_at(self, step: int, *, has_rest: bool = True) -> None:
        """Let the next pass over the training data be the one in which this many steps have been done.

        Args:
            step: Steps done.
            has_rest: Whether the state also has what the script did after a pass that ended with that step.
        """
        self._start, self._has_rest = step, has_rest

    def __iter__(self) -> Iterator[Any]:
        skipped, self._skipped = self._skipped, 0
        if not self._is_training():
            yield from self._evaluate(skipped)
            return
        if self._start is not None:
            step, self._start = self._start, None
            self._epoch, within = divmod(step, len(self.training()))
            if step and not within and not self._has_rest:
                raise StepError(
                    f"step {step} is the last of its pass, after which the run directory was saved: what the script "
                    "does between that pass and this one (a schedule, a learning rate set by hand) is not in it. "
                    "Hint: leave out load_state(), and begin with the first epoch: the passes that are done hand out "
                    "nothing; or save_state(folder) and load_state(folder)."
                )
        epoch = self._epoch
        self._epoch += 1
        for data in self._train(epoch, skipped):
            yield self._like_torchs(data)

    @property
    def _places(self) -> int:
        order = self._told.plan and self._told.plan.order(self.dataset, seed=0, shuffle=True)
        return order.num_samples if order else len(self._told.dataset)

    @abc.abstractmethod
    def _places_to_fill(self, leaves: int) -> int:
        """Return how many places an epoch has, with what fills it up or is left out.

        Raises:
            ConfigError: It cannot be cut into steps of so many micro-batches.
        """

    @abc.abstractmethod
    def _evaluate(self, skipped: int) -> Iterator[Any]:
        """Yield batches to evaluate, on this rank's device."""

    def training(self) -> Any:
        """Return the run's loader of this data."""
        if self._training is None:
            told, leaves = self._told, self._run.replicas
            plan: Plan | None = told.plan
            places = self._places_to_fill(leaves)
            if plan is not None and places != self._places:
                raise ConfigError(f"expected a WeightedRandomSampler of whole batches. Hint: num_samples={places}.")
            if places != len(told.dataset) and plan is None:
                plan = Filled(places)
            self._training = self._run.loader(
                told.dataset, batch_size=self.batch_size * leaves, shuffle=told.shuffle, plan=plan, **told.options
            )
        return self._training

    def _train(self, epoch: int, skipped: int) -> Iterator[Any]:
        loader, turns, accumulation = self.training(), self._turns, self._accumulation
        if skipped % accumulation:
            raise StepError(
                f"expected to skip whole steps of {accumulation} batches, got {skipped} batches. "
                "Hint: save and skip where accelerator.sync_gradients is true."
            )
        turns.open(loader)
        per_epoch = len(loader)
        first, last = epoch * per_epoch + skipped // accumulation, (epoch + 1) * per_epoch
        limit = self._run.world.last_step
        turns.stand_at(first)
        if turns.done >= min(last, limit or last):
            turns.stand_at(last)
            return
        if turns.done < first:
            raise StepError(
                f"this pass is that of epoch {epoch}, from step {first + 1} on, but the run stands at step "
                f"{turns.done}: an exact run does its steps one after the other. Hint: do not leave a pass and begin "
                "another one (torch's Subset makes epochs shorter), skip no batches that were not trained on."
            )
        yield from turns.of_epochs(loader, epoch + 1)

    def _evaluated(self, batch_size: int, numbers: Sequence[int]) -> Generator[Any]:
        """Yield batches of the data, by their numbers from 0; what is drawn meanwhile is keyed by the number."""
        run, told = self._run, self._told
        sampler = ExactSampler(len(told.dataset), batch_size, seed=run.seed, shuffle=told.shuffle)
        fetcher = Fetcher(told.dataset, run.seed, collate=told.options.get("collate"))
        tasks = [Task(-1, sampler.batch(number + 1)) for number in numbers]
        workers = {name: told.options[name] for name in ("num_workers", "prefetch") if name in told.options}
        try:
            for number, data in zip(numbers, fetch_all(fetcher, tasks, **workers), strict=True):
                set_generators(mix(run.seed, "evaluate", number))
                yield self._like_torchs(move(data, run.device))
        finally:
            run.between.at("evaluated", self._turns.done)

    def _number_of_batches(self, batch_size: int) -> int:
        total = len(self._told.dataset)
        return total // batch_size if self._told.drop_last else -(-total // batch_size)

    def _like_torchs(self, data: Any) -> Any:
        """Return a pair as the list that torch's collation makes of it."""
        return [*data] if self._told.is_plain and type(data) is XY else data
