"""The contract of callbacks: when they are called, what they see, what they keep.

Callbacks are called in the order they were given, on every rank alike (or on the leader alone, where they say so).
What they decide must follow from what all ranks know; `Loop.stop` and `Loop.log` are compared between ranks.
"""

import difflib
import warnings
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from torch import nn
from torch.optim import Optimizer

from unisono.collectives.places import Distributed
from unisono.data.plans.batch_schedule import Cuts
from unisono.data.sampler import Indices
from unisono.errors import ConfigError
from unisono.options.keywords import AnswersInit
from unisono.train.run import Run
from unisono.world import World


@dataclass(kw_only=True, slots=True)
class Loop:
    """Where a training stands; what every hook is given.

    Attributes:
        run: Its ``transport`` joins the ranks, its ``world`` says who this is.
        model: As trained, on the run's device.
        optimizer: Between steps its parameters' ``grad`` hold the last step's gradient, after clipping.
        epochs: Passes over the data; None where only steps are counted, as those of a stream.
        cuts: Knows the epochs of steps; None of a stream.
        total_steps: Of the whole run, if nothing stops it.
        step: The step under way or just done, 1-based.
        epoch: Its epoch, 0-based.
        indices: int64 (n,), read-only: the samples of the step's batch, over all ranks.
        loss: Mean loss of the last step over all ranks.
        num_skipped: Steps without an update so far, because loss or gradient was not finite.
        scores: Of the last evaluation.
        is_part: Whether that was one of a part of the test set (``part_every``).
        stopped_by: Why the run ends after this step; None where it goes on.
    """

    run: Run
    model: nn.Module
    optimizer: Optimizer
    epochs: int | None = None
    cuts: Cuts | None = None
    total_steps: int = 0
    step: int = 0
    epoch: int = 0
    indices: Indices = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    loss: float = float("nan")
    num_skipped: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    is_part: bool = False
    stopped_by: str | None = None
    pending: dict[str, float] = field(default_factory=dict)

    @property
    def steps_per_epoch(self) -> int | None:
        """Of the training data; None where epochs are unlike (`BatchSchedule`) or unknown (`Stream`)."""
        return self.cuts.steps_of(1) if self.cuts is not None and self.cuts.is_even else None

    def log(self, **values: float) -> None:
        """Log numbers for this step, as ``log(lr=0.1)`` or ``log(**{"train/lr": 0.1})``.

        All ranks must log the same names; the leader's values are written, at the next step that logs.
        """
        self.pending.update(zip(values, map(float, values.values()), strict=True))

    def stop(self, reason: str) -> None:
        """End the run after the next step that logs or evaluates; one rank's word is enough for all."""
        self.stopped_by = self.stopped_by or reason


class Callback(Distributed, AnswersInit):
    """Base of callbacks; override what you need.

    Hooks that are not overridden cost nothing. A callback with state overrides `state_dict` and `load_state_dict`; the
    state travels with every checkpoint, and may hold tensors and JSON's types.

    Attributes:
        name: Under which its state is saved; unique among the callbacks of a trainer. The class's name by default.
        runs_on: See `Distributed`.
        draws: Whether hooks may draw random numbers. Before those that may, torch's, Python's and NumPy's generators
            are set to what the step names, which takes some ten microseconds; False spares them.
        needs_scores: Scores without which it could do nothing, as ``test_loss``; looked for before the first step.
    """

    name: str = ""
    needs_scores: tuple[str, ...] = ()
    draws: ClassVar[bool] = True

    def setup(self, loop: Loop) -> None:
        """Called once, before a checkpoint is loaded: what the state is made of must exist from here on."""

    def on_run_start(self, loop: Loop) -> None:
        """Called before the first step of this launch, after a checkpoint was loaded."""

    def on_epoch_start(self, loop: Loop) -> None:
        """Called before the first step of an epoch, and before the first one of a launch."""

    def on_step_start(self, loop: Loop) -> None:
        """Called before each step; `Loop.step` and `Loop.indices` are those to come."""

    def on_step_end(self, loop: Loop) -> None:
        """Called after each step."""

    def on_evaluation_start(self, loop: Loop) -> None:
        """Called before each evaluation."""

    def on_evaluation_end(self, loop: Loop) -> None:
        """Called after each evaluation; `Loop.scores` are its results, of a part or of all (`Loop.is_part`)."""

    def on_epoch_end(self, loop: Loop) -> None:
        """Called after the last step of an epoch, and after its evaluation."""

    def on_log(self, loop: Loop, values: dict[str, float]) -> None:
        """Called with what has been logged since the last time; the same names on all ranks."""

    def on_world_change(self, loop: Loop, old: World, new: World) -> None:
        """Called when ranks have died or joined the others, before `on_step_end`, `on_evaluation_end` or `on_log`.

        Ranks have new numbers; `Loop.run` knows them already. A world that was kept from before is one of the past.
        Callbacks of the leader begin on the new one: `setup`, `on_run_start`, then this; their state is the one that
        they have there, of the checkpoint that this launch has begun with. A rank that joins hears `on_run_start`
        instead, as in a launch that goes on from a checkpoint.
        """

    def on_run_end(self, loop: Loop) -> None:
        """Called after the last step, when the run is done or stopped."""

    def close(self) -> None:
        """Called last, also when the run has failed: close what was opened. Must not raise."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must keep."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` has returned."""


def name_of(callback: Callback) -> str:
    """Return the name a callback's state is saved under."""
    return callback.name or type(callback).__name__


def _other(given: Any) -> str:
    if isinstance(given, type):
        return f"the class {given.__name__}. Hint: an instance: callbacks=[{given.__name__}()]"
    return f"{type(given).__name__}. Hint: it has every hook as an empty method; override those you need"


def check_names(callbacks: list[Callback]) -> None:
    """Refuse (`ConfigError`) what is no callback, and two of one name, whose states could not be told apart."""
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(f"expected callbacks that inherit unisono.Callback, got {_other(callback)}.")
        known = dir(Callback)
        for hook in (name for name in dir(callback) if name.startswith("on_") and name not in known):
            near = difflib.get_close_matches(hook, known, n=1)
            hint = f" Hint: did you mean {near[0]!r}?" if near else ""
            warnings.warn(
                f"{type(callback).__name__}.{hook} is no hook of callbacks, nothing calls it.{hint}", stacklevel=2
            )
    names = [name_of(callback) for callback in callbacks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"two callbacks are named {twice[0]!r}. Hint: give one of them another name (name=...).")
