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

    def set(self, seed: int, what: str = "set_seed()", prepare: str = "prepare()") -> None:
        """Seed the present run, if it is not prepared yet, and the next one.

        Args:
            seed: Of everything random.
            what: The program has called.
            prepare: What it must be called before.

        Raises:
            ConfigError: The present run is prepared.
        """
        if self._is_prepared():
            gc.collect()  # a run that nobody holds any more
        if self._is_prepared():
            raise ConfigError(
                f"{what} was called after {prepare}: the run's seed decides the order of its data and all that is "
                f"drawn, and the initial weights are drawn already. Hint: call it before {prepare}."
            )
        self.pending = seed
        run = None if self._run is None else self._run()
        if run is not None:
            vars(run).update(seed=seed, between=Between(seed))  # which a program may not set
            run._progress.facts["seed"] = seed
        set_generators(seed)

    def _is_prepared(self) -> bool:
        run = None if self._run is None else self._run()
        return run is not None and run._stepper is not None


SEEDS = Seeds()


def give_replicas(
    run: Run, accumulation: int, *, is_told: bool, accumulate: str = "gradient_accumulation_steps"
) -> int:
    """Let a run that was made without replicas have one for each of `accumulation` batches; return the processes.

    Args:
        run: Not prepared yet.
        accumulation: Batches of each process in a step.
        is_told: Whether the program has said how many processes there are.
        accumulate: What it calls `accumulation`.

    Raises:
        ConfigError: There are fewer processes than ranks, or the recorded run has another accumulation.
    """
    ranks = run.world.world_size
    if not is_told and accumulation > 1 and run._record.recorded("replicas")[0] is None:
        vars(run)["replicas"] *= accumulation
        run.placement[:] = run.strategy.place(run.replicas, ranks)
        run._progress.facts["replicas"] = run.replicas
    processes, rest = divmod(run.replicas, accumulation)
    if rest or processes < ranks:
        raise ConfigError(
            f"expected replicas for {accumulation} batches of each of at least {ranks} processes, got {run.replicas}. "
            f"Hint: at most as many workers as replicas=; {accumulate} as the run was begun with."
        )
    return processes
