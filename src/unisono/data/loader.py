"""Fetch micro-batches: from sample indices to collated tensors, in this process or in worker processes.

A micro-batch is always its own freshly collated tensors, never a slice of a larger batch. Whatever is random in
fetching a sample sees generators keyed by (seed, epoch, sample index): augmentation does not depend on ranks,
workers or order.
"""

import functools
import gc
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, final

import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from unisono.collectives.placement import parts_of
from unisono.data import datasets
from unisono.data.batches import XY, uncollated
from unisono.data.datasets import ArrayDataset, BatchedDataset, HasLengths, KeyedDataset, fetch_each_keyed, told_epochs
from unisono.data.plans.batch_schedule import BatchSchedule
from unisono.data.plans.plan import Plan
from unisono.data.sampler import ExactSampler, Indices
from unisono.data.slots import Parked, Slots, stack_in_own_memory
from unisono.determinism.seeding import mix
from unisono.determinism.switches import set_generators
from unisono.errors import ConfigError, DataError
from unisono.launchers.scratch import meet
from unisono.options.quantities import EPOCHS, LOADERS, PREFETCH
from unisono.system.processes import die_with_parent

Collate = Callable[[list[Any]], Any]
Transform = Callable[[Any], Any]

_SLOTS_KEPT = 16  # micro-batches that the rank may hold at a time before they travel as torch sends them
_TORCHS = {
    "set_epoch": "leave it out: the order follows from seed and epoch",
    "dataset": "keep the data set in a variable of its own",
    "batch_size": "loader.cuts knows the batch of each step; len(loader) is the number of steps of an epoch",
}
_LONGEST_SOCKET_PATH = 107  # unix(7): 108 bytes with the closing zero


def check_dataset(dataset: Any) -> None:
    """Refuse what is no map-style data set, or a loader (`ConfigError`), or empty (`DataError`)."""
    kind = type(dataset).__name__
    if isinstance(dataset, DataLoader | Loader):
        whose = "pass its .dataset" if isinstance(dataset, DataLoader) else "pass the data set that it was made of"
        raise ConfigError(
            f"expected a data set, got a {kind}, which has batches and an order of its own. Hint: {whose}; "
            "batch_size=, collate= and num_workers= are given beside it."
        )
    has_numbers = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not has_numbers or isinstance(dataset, IterableDataset):
        stream = "unisono.Stream(source) for items that come in order and have no numbers."
        hint = getattr(dataset, "_loader_hint", stream)
        raise ConfigError(f"expected a map-style data set (with __len__ and __getitem__), got {kind}. Hint: {hint}")
    datasets.refuse_bare_arrays(dataset)
    if len(dataset) == 0:
        raise DataError(f"expected at least one sample, got an empty {kind}.")


class Task(NamedTuple):
    """One micro-batch to fetch: its epoch (-1 in evaluation) or that of each sample, and its sample indices."""

    epoch: int | Indices
    indices: Indices


@final
class Fetcher:
    """Turns a task into a collated micro-batch; runs in this process or in a worker, with the same result.

    Both compute with one thread of torch's: a forked process that starts more waits for ever for those that its parent
    had (OpenMP does not survive a fork), and another number of them could change a transform's bits. A thread of your
    own that computes beside a fetch should begin with ``torch.set_num_threads``: it would learn one from here.
    """

    def __init__(
        self, dataset: Any, seed: int, *, transform: Transform | None = None, collate: Collate | None = None
    ) -> None:
        check_dataset(dataset)
        if isinstance(dataset, TensorDataset):
            dataset = ArrayDataset(*dataset.tensors)
        self.dataset = dataset
        self.seed = seed
        self._transform = transform
        self._collate = collate
        is_plain = transform is None and collate is None
        self._is_batched = is_plain and isinstance(dataset, BatchedDataset)
        self._is_keyed = is_plain and isinstance(dataset, KeyedDataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def check_workers(self, num_workers: int) -> None:
        """Refuse (`ConfigError`) loader processes for what they could not read; see `ArrayDataset.check_workers`."""
        if isinstance(self.dataset, ArrayDataset):
            self.dataset.check_workers(num_workers)

    def __getitem__(self, task: Task) -> Any:
        return self.fetch(task, default_collate)

    def fetch(self, task: Task, default: Collate) -> Any:
        """Return a micro-batch; `default` collates where nobody has said how."""
        threads = torch.get_num_threads()
        if threads == 1:
            return self._fetch(task, default)
        try:
            torch.set_num_threads(1)  # and back: less than a microsecond
            return self._fetch(task, default)
        finally:
            torch.set_num_threads(threads)

    def _fetch(self, task: Task, default: Collate) -> Any:
        if self._is_keyed and not isinstance(task.epoch, int):
            return _named(fetch_each_keyed(self.dataset, task.indices, task.epoch, self.seed))
        if self._is_keyed and task.epoch >= 0:
            return _named(self.dataset.fetch_keyed(task.indices, seed=self.seed, epoch=task.epoch))
        if self._is_batched:
            return _named(self.dataset.fetch_micro_batch(task.indices))
        numbers = task.indices.tolist()
        epochs = [task.epoch] * len(numbers) if isinstance(task.epoch, int) else task.epoch.tolist()
        samples = [self._sample(*each) for each in zip(told_epochs(self.dataset, epochs), numbers, strict=True)]
        try:
            return _named((self._collate or default)(samples))
        except Exception as error:
            error.add_note(uncollated(error, numbers, is_own=self._collate is not None))
            raise

    def _sample(self, epoch: int, index: int) -> Any:
        set_generators(mix(self.seed, "sample", epoch, index))
        try:
            sample = self.dataset[index]
            return sample if self._transform is None else self._transform(sample)
        except Exception as error:
            error.add_note(f"while fetching sample {index} of {type(self.dataset).__name__}, epoch {epoch}")
            raise


def fetch_all(fetcher: Fetcher, tasks: Iterable[Task], *, num_workers: int = 0, prefetch: int = 2) -> Iterator[Any]:
    """Yield the micro-batch of each task, in order; each of `num_workers` processes keeps `prefetch` ready."""
    num_workers, prefetch = LOADERS.take("num_workers", num_workers), PREFETCH.take("prefetch", prefetch)
    fetcher.check_workers(num_workers)
    if num_workers == 0:
        yield from map(fetcher.__getitem__, tasks)
        return
    check_can_share_tensors()
    meet()
    collects = gc.isenabled()
    slots = Slots.make(num_workers * prefetch + _SLOTS_KEPT)
    loader: DataLoader[Any] = DataLoader(
        fetcher if slots is None else _Parking(fetcher, slots),  # type: ignore[arg-type]  # indexed by tasks, not integers
        sampler=tasks if slots is None else ((task, slots.lend()) for task in tasks),
        batch_size=None,
        num_workers=num_workers,
        prefetch_factor=prefetch,
        collate_fn=_identity,
        worker_init_fn=functools.partial(_init_worker, collects),
        # Its own generator: without one, every iter() draws from the process-wide stream.
        generator=torch.Generator(),
    )
    gc.disable()  # until `_init_worker` has frozen what is there
    try:
        batches = iter(loader)
    finally:
        if collects:
            gc.enable()
    yield from batches if slots is None else map(slots.open, batches)


@final
class _Parking:
    """What a loader process does: fetch, and leave the tensors in the slot that came with the task."""

    def __init__(self, fetcher: Fetcher, slots: Slots) -> None:
        self._fetcher, self._slots = fetcher, slots

    def __len__(self) -> int:
        return len(self._fetcher)

    def __getitem__(self, lent: tuple[Task, int]) -> Parked:
        task, slot = lent
        self._slots.begin(slot)
        return self._slots.park(self._fetcher.fetch(task, self._slots.collate))


def check_can_share_tensors() -> None:
    """Refuse a temporary directory from which data loading processes could send nothing.

    They hand tensors over through a socket in it; where its path does not fit, torch's loader prints the failure of
    each batch and waits for ever (seen with torch 2.13).

    Raises:
        ConfigError: The path is too long.
    """
    if torch.multiprocessing.get_sharing_strategy() != "file_descriptor":
        return
    where = tempfile.gettempdir()
    most = _LONGEST_SOCKET_PATH - len("/pymp-12345678/listener-12345678")
    if len(where.encode()) > most:
        raise ConfigError(
            f"loader processes meet in the directory for temporary files, whose path may have at most {most} bytes, "
            f"got {len(where.encode())}: {where}. Hint: TMPDIR=/tmp, or num_workers=0."
        )


@final
class Loader:
    """The training batches of a run, from any step on; made by `Run.loader`."""

    if not TYPE_CHECKING:  # mypy would take any name for one that there is

        def __getattr__(self, name: str) -> NoReturn:
            """Say what there is in place of what torch's loader has."""
            hint = f" Hint: {_TORCHS[name]}." if name in _TORCHS else ""
            raise AttributeError(f"a loader of run.loader() has no {name!r}.{hint}")

    def __init__(
        self, sampler: ExactSampler, fetcher: Fetcher, hosted: range, *, num_workers: int = 0, prefetch: int = 2
    ) -> None:
        num_workers, prefetch = LOADERS.take("num_workers", num_workers), PREFETCH.take("prefetch", prefetch)
        fetcher.check_workers(num_workers)
        if num_workers:
            check_can_share_tensors()
        self.sampler, self.cuts = sampler, sampler.cuts
        self.fetcher, self._hosted = fetcher, hosted
        self._num_workers, self._prefetch = num_workers, prefetch

    def __len__(self) -> int:
        """Return the steps per epoch.

        Raises:
            TypeError: They differ, for the batches grow.
        """
        if not self.cuts.is_even:
            raise TypeError(
                "epochs have unlike numbers of steps, since the batch size changes. Hint: loader.steps_of(epochs) "
                "counts the steps of so many epochs."
            )
        return self.sampler.steps_per_epoch

    def steps_of(self, epochs: int) -> int:
        """Return how many steps so many epochs have, from the run's first on."""
        return self.cuts.steps_of(EPOCHS.take("epochs", epochs))

    def __iter__(self) -> NoReturn:
        """Refuse: batches belong to steps."""
        refuse_iteration()

    def host(self, replicas: range) -> None:
        """Let this rank have other replicas, from the next `micro_batches` on."""
        self._hosted = replicas

    def micro_batches(self, first_step: int, last_step: int) -> Iterator[Any]:
        """Yield this rank's micro-batches of the steps ``first_step..last_step``, replica by replica."""
        tasks = self._tasks(first_step, last_step, self._hosted)
        return fetch_all(self.fetcher, tasks, num_workers=self._num_workers, prefetch=self._prefetch)

    def micro_batch(self, step: int, replica: int, *, is_apart: bool = False) -> Any:
        """Return the micro-batch of any replica with samples, fetched now; `is_apart`: where others are fetched."""
        task = next(self._tasks(step, step, range(replica, replica + 1)))
        [found] = fetch_all(self.fetcher, [task], num_workers=1 if is_apart and self._num_workers else 0)
        return found

    def _tasks(self, first_step: int, last_step: int, hosted: range) -> Iterator[Task]:
        sampler, start, stop = self.sampler, hosted.start, hosted.stop
        for step in range(first_step, last_step + 1):
            epoch, batch = sampler.epoch_with_batch(step)
            epochs = sampler.epochs(step)
            for part in parts_of(len(batch), sampler.replicas)[start:stop]:
                if part:
                    own = epoch if epochs is None else epochs[part.start : part.stop]
                    yield _task((own, batch[part.start : part.stop]))


def refuse_iteration() -> NoReturn:
    """Refuse (`ConfigError`) to iterate a loader."""
    raise ConfigError(
        "a unisono loader is not iterated by itself. Hint: for batch in run.steps(loader, epochs=...): "
        "run.step(batch, ...)."
    )


def sampler_of(
    dataset: Any, batch_size: int | BatchSchedule, replicas: int, *, seed: int, shuffle: bool, plan: Plan | None = None,
    last: str = "short",
) -> ExactSampler:  # fmt: skip
    """Return the sampler of a data set; one that `HasLengths` gets micro-batches of about equal cost."""
    by_length = dataset if isinstance(dataset, HasLengths) else None
    chosen = getattr(dataset, "plan", None) if plan is None else plan
    if plan is not None and not isinstance(plan, Plan):
        raise ConfigError(
            f"expected plan= with a method order(), as unisono.Weighted(...) has it, got {type(plan).__name__}."
        )
    order = chosen.order(dataset, seed=seed, shuffle=shuffle) if isinstance(chosen, Plan) else None
    return ExactSampler(
        len(dataset) if order is None else order.num_samples, batch_size, replicas,
        seed=seed, shuffle=shuffle, order=order, last=last,
        lengths=None if by_length is None else by_length.lengths(),
        length_pool=0 if by_length is None else by_length.length_pool,
    )  # fmt: skip


def _named(batch: Any) -> Any:
    kind = type(batch)
    is_plain = kind is tuple or kind is list or (issubclass(kind, _ROWS) and not hasattr(batch, "_fields"))
    return _xy(batch) if is_plain and len(batch) == 2 else batch


_ROWS = (tuple, list)
# A third of the time of XY(*batch) and Task(epoch, indices).
_xy, _task = functools.partial(tuple.__new__, XY), functools.partial(tuple.__new__, Task)


def _identity(batch: Any) -> Any:
    return batch


def _init_worker(collects: bool, _worker: int) -> None:
    """End this worker with its rank, even when the rank is killed; leave the rank's garbage alone.

    A store or a process group that were destroyed here would wait for threads that a fork does not copy.
    """
    gc.freeze()
    if collects:
        gc.enable()
    stack_in_own_memory()
    die_with_parent()
