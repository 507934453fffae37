"""How epochs are cut into steps: by one batch size, or by one that grows; any step is known from its number (pure)."""

import bisect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

from unisono.errors import ConfigError, DataError
from unisono.options.quantities import BATCH, Count, shown

UNITS = ("steps", "epochs")
LAST = ("short", "drop", "join")
_DONE = Count(0, 10**12)


@final
class BatchSchedule:
    """A batch size that changes: `Run.loader` and `Trainer.fit` take it as ``batch_size``.

    Args:
        sizes: From how many steps are done, to the samples of the steps that follow; 0 is among them.
        unit: ``epochs`` where these are epochs that are done.

    Raises:
        ConfigError: There is no size to begin with, a number is out of range, or another `unit`.

    Example:
        >>> schedule = BatchSchedule({0: 64, 1000: 256})  # steps 1 to 1000 take 64 samples each
        >>> loader = run.loader(train_set, batch_size=schedule)  # doctest: +SKIP
    """

    def __init__(self, sizes: Mapping[int, int], *, unit: str = "steps") -> None:
        if not isinstance(sizes, Mapping):
            raise ConfigError(f"expected batch sizes as a dictionary, got {shown(sizes)}. Hint: {{0: 64, 1000: 256}}.")
        if unit not in UNITS:
            raise ConfigError(f"expected unit as 'steps' or 'epochs', got {shown(unit)}.")
        found = {_DONE.take(f"{unit} done", done): BATCH.take("batch_size", size) for done, size in sizes.items()}
        if 0 not in found:
            raise ConfigError(f"expected the batch size to begin with, as in {{0: 64}}, got {shown(dict(sizes))}.")
        self.sizes, self.unit = dict(sorted(found.items())), unit

    @property
    def first(self) -> int:
        """The size to begin with."""
        return self.sizes[0]

    @property
    def score(self) -> dict[str, Any]:
        """What the score says of it beside the first size."""
        grown = {"unit": self.unit, "sizes": [list(pair) for pair in self.sizes.items()]}
        return {"batch_schedule": grown} if len(self.sizes) > 1 else {}

    def size_of(self, step: int, epoch: int) -> int:
        """Return the size of `step` (1-based), in `epoch` (0-based)."""
        done = step - 1 if self.unit == "steps" else epoch
        return next(size for start, size in reversed(self.sizes.items()) if start <= done)


def schedule_of(batch_size: Any) -> BatchSchedule:
    """Return a schedule, also of one number; `ConfigError` for anything else."""
    return batch_size if isinstance(batch_size, BatchSchedule) else BatchSchedule({0: batch_size})


def schedule_in(score: Mapping[str, Any]) -> BatchSchedule:
    """Return the schedule that a run's score tells."""
    grown = score.get("batch_schedule")
    return BatchSchedule(dict(grown["sizes"]), unit=grown["unit"]) if grown else schedule_of(score["batch_size"])


class Stretch(NamedTuple):
    """Batches of one size that follow one another in an epoch, at the places ``start..stop - 1``.

    All but the last are `size` long.
    """

    epoch: int
    start: int
    stop: int
    size: int
    batches: int

    def places(self, index: int, count: int = 1) -> tuple[int, int]:
        """Return the places of some of the batches, from the one with this index on."""
        end = index + count
        return self.start + index * self.size, self.stop if end >= self.batches else self.start + end * self.size


class _Stage(NamedTuple):
    """Steps of one batch size.

    Attributes:
        first: The first step.
        epoch: Its epoch.
        start: Its place in there.
        size: Samples of a step.
        left: Steps to the end of that epoch.
        whole: Steps of each epoch that follows.
        steps: Of the stage; None: no end.
        takes_rest: Whether the last step takes in all that is left of its epoch.
    """

    first: int
    epoch: int
    start: int
    size: int
    left: int
    whole: int
    steps: int | None
    takes_rest: bool = False


@final
class Cuts:
    """Which places of which epoch each step takes.

    A step behind which fewer samples are left of its epoch than it takes, or than the next one takes, is the epoch's
    last, but for ``last="short"``.

    Args:
        num_samples: Places of an epoch.
        schedule: The batch sizes.
        last: What becomes of the samples that do not fill an epoch's last batch, as `ExactSampler` says.

    Attributes:
        is_even: Whether all epochs have equally many steps, for there is one size.

    Raises:
        ConfigError: Another `last`.
        DataError: A batch is larger than the data, all of which would be dropped.
    """

    def __init__(self, num_samples: int, schedule: BatchSchedule, last: str = "short") -> None:
        if last not in LAST:
            raise ConfigError(f"expected last as one of {', '.join(map(repr, LAST))}, got {last!r}.")
        largest = max(schedule.sizes.values())
        if last == "drop" and num_samples < largest:
            raise DataError(
                f"last='drop' leaves nothing of {num_samples} samples: they do not fill a batch of {largest}. "
                "Hint: a smaller batch_size, or last='join'."
            )
        self._num_samples, self._last = num_samples, last
        self.is_even = len(schedule.sizes) == 1
        self._stages = self._staged(schedule)
        self._firsts = [stage.first for stage in self._stages]
        self._now = 1, 1, Stretch(0, 0, 0, 1, 0)  # the stretch found last, with its first step and that behind it

    def _staged(self, schedule: BatchSchedule) -> list[_Stage]:
        stages: list[_Stage] = []
        step, epoch, place = 1, 0, 0
        ends: list[int | None] = [*schedule.sizes, None][1:]
        for size, end in zip(schedule.sizes.values(), ends, strict=True):
            left, whole = self._count(self._num_samples - place, size), max(1, self._count(self._num_samples, size))
            if place == 0:
                left = whole
            elif left == 0:  # the step before has been the last of its epoch
                stages[-1] = stages[-1]._replace(takes_rest=self._last == "join")
                epoch, place, left = epoch + 1, 0, whole
            steps = None
            if end is not None:
                steps = end + 1 - step if schedule.unit == "steps" else (end - epoch) * whole
            stages.append(_Stage(step, epoch, place, size, left, whole, steps))
            if steps is None:
                break
            step += steps
            if steps < left:
                place += steps * size
            else:
                passed, index = divmod(steps - left, whole)
                epoch, place = epoch + 1 + passed, index * size
        return stages

    def _count(self, num_samples: int, size: int) -> int:
        return -(-num_samples // size) if self._last == "short" else num_samples // size

    def find(self, step: int) -> tuple[Stretch, int]:
        """Return in which stretch `step` (1-based) lies, and as which of its batches."""
        first, end, stretch = self._now
        if not first <= step < end:
            stretch, index = self._stretch(step)
            first = step - index
            self._now = first, first + stretch.batches, stretch
        return stretch, step - first

    def _stretch(self, step: int) -> tuple[Stretch, int]:
        stage = self._stages[bisect.bisect_right(self._firsts, step) - 1]
        index = step - stage.first
        if index < stage.left:
            epoch, start, before, count = stage.epoch, stage.start, 0, stage.left
        else:
            passed, index = divmod(index - stage.left, stage.whole)
            epoch, start, before, count = stage.epoch + 1 + passed, 0, stage.left + passed * stage.whole, stage.whole
        size, steps = stage.size, stage.steps
        stop = start + count * size if self._last == "drop" else self._num_samples
        if steps is not None and steps - before < count:
            count = steps - before
            stop = self._num_samples if stage.takes_rest else start + count * size
        return Stretch(epoch, start, stop, size, count), index

    def epoch_of(self, step: int) -> int:
        """Return the epoch (0-based) of `step` (1-based)."""
        return self.find(step)[0].epoch

    def steps_of(self, epochs: int) -> int:
        """Return how many steps so many epochs have, from the first on."""
        stage = next(stage for stage in reversed(self._stages) if stage.epoch < epochs)
        steps = stage.left + (epochs - stage.epoch - 1) * stage.whole
        return stage.first - 1 + (steps if stage.steps is None else min(steps, stage.steps))

    def every(self, count: int) -> Callable[[int], bool]:
        """Return a function that says of a step whether it ends an epoch, of every `count` the last."""
        if self.is_even:
            apart = count * self.steps_of(1)
            return lambda step: step % apart == 0
        return lambda step: (done := self.epoch_of(step + 1)) != self.epoch_of(step) and done % count == 0
