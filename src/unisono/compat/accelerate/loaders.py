"""A prepared loader: the micro-batches that this rank hosts while training, whole batches in turn while evaluating."""

from collections.abc import Iterator
from typing import Any, final

from torch.utils.data import DataLoader

from unisono.compat.torch_loaders import Filled, places_of, told_by
from unisono.compat.turns import Turns
from unisono.data.batches import XY, move
from unisono.data.loader import Fetcher, Task, fetch_all
from unisono.data.plans.plan import Plan
from unisono.data.sampler import ExactSampler
from unisono.determinism.seeding import mix
from unisono.determinism.switches import set_generators
from unisono.errors import ConfigError, StepError
from unisono.train.run import Run


class Evaluation:
    """The pass over data that is not trained on, as far as it has come; what `gather_for_metrics` has to know."""

    #: Whether each rank's batch counts in this round; the others have it to keep step.
    counts: list[bool] | None = None


@final
class PreparedLoader:
    """What `Accelerator.prepare` returns for a ``DataLoader``.

    Args:
        loader: As the program has made it; its batch size is that of one process.
        run: Of the accelerator.
        turns: Over its training data.
        evaluation: Of the accelerator.
        processes: V.
        accumulation: Batches of each process in a step.
        split_batches: Whether the loader's batch size is that of all processes.
        even_batches: Whether an epoch's end may be filled up.
        is_training: Asked when a pass begins.
    """

    def __init__(
        self, loader: DataLoader[Any], run: Run, turns: Turns, evaluation: Evaluation, *, processes: int,
        accumulation: int, split_batches: bool, even_batches: bool, is_training: Any,
    ) -> None:  # fmt: skip
        self._told = told = told_by(loader)
        if split_batches and told.batch_size % processes:
            raise ConfigError(
                f"expected with split_batches a batch_size that {processes} processes divide, got {told.batch_size}."
            )
        self.dataset, self.batch_size = loader.dataset, told.batch_size // (processes if split_batches else 1)
        self._run, self._turns, self._evaluation, self._is_training = run, turns, evaluation, is_training
        self._processes, self._accumulation, self._even = processes, accumulation, even_batches
        self._training: Any = None
        self._epoch, self._skipped = 0, 0
        self._start: int | None = None

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

    def start_at(self, step: int) -> None:
        """Let the next pass over the training data be the one in which this many steps have been done."""
        self._start = step

    def skipping(self, num_batches: int) -> "PreparedLoader":
        """Return this loader with the first turns of its next pass left out."""
        self._skipped = num_batches
        return self

    def __iter__(self) -> Iterator[Any]:
        skipped, self._skipped = self._skipped, 0
        if not self._is_training():
            yield from self._evaluate(skipped)
            return
        if self._start is not None:
            self._epoch, self._start = self._start // len(self.training()), None
        epoch = self._epoch
        self._epoch += 1
        for data in self._train(epoch, skipped):
            yield self._like_torchs(data)

    @property
    def _places(self) -> int:
        order = self._told.plan and self._told.plan.order(self.dataset, seed=0, shuffle=True)
        return order.num_samples if order else len(self._told.dataset)

    def training(self) -> Any:
        """Return the run's loader of this data; see `places_of`."""
        if self._training is None:
            told, leaves = self._told, self._run.replicas
            batch_size, total = self.batch_size * leaves, len(told.dataset)
            plan: Plan | None = told.plan
            places = places_of(
                self._places, self.batch_size, self._processes, leaves,
                drop_last=told.drop_last, even=self._even and plan is None,
            )  # fmt: skip
            if plan is not None and places != self._places:
                raise ConfigError(f"expected a WeightedRandomSampler of whole batches. Hint: num_samples={places}.")
            if places != total and plan is None:
                plan = Filled(places)
            self._training = self._run.loader(
                told.dataset, batch_size=batch_size, shuffle=told.shuffle, plan=plan, **told.options
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
        if turns.done >= min(last, limit or last):
            return
        if turns.done < first:
            raise StepError(
                f"this pass is that of epoch {epoch}, from step {first + 1} on, but the run stands at step "
                f"{turns.done}: an exact run does its steps one after the other. Hint: do not leave a pass and begin "
                "another one (torch's Subset makes epochs shorter), skip no batches that were not trained on."
            )
        yield from turns.of_epochs(loader, epoch + 1)

    def _evaluate(self, skipped: int) -> Iterator[Any]:
        run, told = self._run, self._told
        rank, ranks, total = run.world.rank, run.world.world_size, len(told.dataset)
        sampler = ExactSampler(total, self.batch_size, seed=run.seed, shuffle=told.shuffle)
        number_of_batches = total // self.batch_size if told.drop_last else sampler.steps_per_epoch
        numbers = range(skipped * self._processes, number_of_batches)
        rounds = [numbers[start : start + ranks] for start in range(0, len(numbers), ranks)]
        mine = [batches[rank] if rank < len(batches) else numbers[0] for batches in rounds]
        fetcher = Fetcher(told.dataset, run.seed, collate=told.options.get("collate"))
        tasks = [Task(-1, sampler.batch(number + 1)) for number in mine]
        workers = {name: told.options[name] for name in ("num_workers", "prefetch") if name in told.options}
        try:
            for batches, number, data in zip(rounds, mine, fetch_all(fetcher, tasks, **workers), strict=True):
                self._evaluation.counts = [place < len(batches) for place in range(ranks)]
                set_generators(mix(run.seed, "evaluate", number))
                yield self._like_torchs(move(data, run.device))
        finally:
            self._evaluation.counts = None
            run.between.at("evaluated", self._turns.done)

    def _like_torchs(self, data: Any) -> Any:
        """Return a pair as the list that torch's collation makes of it."""
        return [*data] if self._told.is_plain and type(data) is XY else data
