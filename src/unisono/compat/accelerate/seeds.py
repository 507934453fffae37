"""Seed and replicas of a run that has been made before the program has said all about them."""

import gc
import threading
import weakref
from typing import final

from unisono.determinism.switches import set_generators
from unisono.errors import ConfigError
from unisono.train.run import Run
from unisono.train.steps.keyed_generators import Between


@final
class Seeds(threading.local):
    """What `set_seed` has been told in this thread: ranks of a proof are threads."""

    pending: int = 0  #: The seed of the next run.
    _run: weakref.ref[Run] | None = None

    def enter(self, run: Run) -> None:
        """Note the run that `set_seed` is about."""
        self._run = weakref.ref(run)

    def set(self, seed: int) -> None:
        """Seed the present run, if it is not prepared yet, and the next one."""
        if self._is_prepared():
            gc.collect()  # a run that nobody holds any more
        if self._is_prepared():
            raise ConfigError(
                "set_seed() was called after accelerator.prepare(): the run's seed decides the order of its data and "
                "all that is drawn, and the initial weights are drawn already. Hint: call it before prepare()."
            )
        self.pending = seed
        run = None if self._run is None else self._run()
        if run is not None:
            run.seed, run.between = seed, Between(seed)
            run._progress.facts["seed"] = seed
        set_generators(seed)

    def _is_prepared(self) -> bool:
        run = None if self._run is None else self._run()
        return run is not None and run._stepper is not None


SEEDS = Seeds()


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Set the run's seed, and that of what is drawn from torch's, Python's and NumPy's generators until `prepare`.

    Args:
        seed: Of everything random.
        device_specific: Refused: what is drawn is keyed by replica already, and ranks must build the same model.
        deterministic: Without effect: runs always are.

    Raises:
        ConfigError: After ``prepare``, or with `device_specific`.
    """
    if device_specific:
        raise ConfigError(
            "device_specific gives every process a seed of its own, and ranks must build the same model. Hint: leave "
            "it out: what each micro-batch draws differs anyway."
        )
    SEEDS.set(seed)


def give_replicas(run: Run, accumulation: int, *, is_told: bool) -> int:
    """Let a run that was made without replicas have one for each of `accumulation` batches; return the processes.

    Raises:
        ConfigError: There are fewer processes than ranks, or the recorded run has another accumulation.
    """
    ranks = run.world.world_size
    if not is_told and accumulation > 1 and run._record.recorded("replicas")[0] is None:
        run.replicas *= accumulation
        run.placement[:] = run.strategy.place(run.replicas, ranks)
        run._progress.facts["replicas"] = run.replicas
    processes, rest = divmod(run.replicas, accumulation)
    if rest or processes < ranks:
        raise ConfigError(
            f"expected replicas for {accumulation} batches of each of at least {ranks} processes, got {run.replicas}. "
            "Hint: at most as many workers as replicas=; gradient_accumulation_steps as the run was begun with."
        )
    return processes
