"""Steps driven from outside: the program's own loop body computes the micro-batches, one turn of the loop for each.

In: a prepared `Run`. Out: micro-batches, one after another; gradients and updates when the loop asks for them. What is
computed is what `Run.step` computes: the strategy's `begin`, `start_replica`, `add_replica`, `finish`, in that order.
"""

import copy
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, final

from torch import Tensor

from unisono.collectives.leader import leader_says
from unisono.errors import ConfigError, PlaceError, ScoreMismatch, StepError
from unisono.observe.compare import diff
from unisono.observe.phases import BACKWARD
from unisono.strategies.base import Gradients, Micro
from unisono.strategies.exact import Exact
from unisono.strategies.objective import Objective
from unisono.strategies.witness.witness import refuse_witness
from unisono.train.run import Run
from unisono.train.score import describe_run
from unisono.train.steps.loop import Batch


class Words(NamedTuple):
    """What the script calls things, for messages."""

    name: str  #: Of the object that has ``backward``.
    prepare: str  #: What takes over model, optimizer and loaders.
    accumulate: str  #: What says that a step has several batches.


@final
class Turns:
    """The turns of a program's loop over one run's training data.

    Attributes:
        words: As given.
        is_in_turn: Whether a micro-batch is in the hands of the program.
        is_synced: Whether this turn is the step's last one on this rank, or there is no turn.
        was_skipped: Whether the last update was left out, because of what `non_finite` says.
        loss: Mean loss over the whole batch of the last step; NaN before the first.
        num_samples: Of the batch in progress, or of the last one, over all ranks.
        batch_size: Of a whole batch, over all ranks; 0 before the first pass.
    """

    def __init__(self, run: Run, words: Words) -> None:
        self._run, self.words, self._name = run, words, words.name
        self._rates: list[Any] | None = None  # of this step's first turn
        self._held: list[dict[str, Any]] = []  # settings of the optimizer that the run has come with
        self._stands: int | None = None  # where the program stands, if not where the run does
        self.is_in_turn, self.ended_by = False, ""
        self.is_synced, self.loss, self.num_samples = True, math.nan, 0
        self.batch_size, self.was_skipped = 0, False
        self._batch: Batch | None = None
        self._micro: Micro | None = None  # whose gradient is still to come
        self._gradients: Gradients | None = None
        self._is_updating = False
        self._loaded: tuple[int, str, dict[str, Any]] | None = None

    @property
    def done(self) -> int:
        """Steps that are done."""
        return self._run._progress.done

    @property
    def is_between(self) -> bool:
        """Whether no step is in progress, so that the state is that of a step."""
        return self._batch is None

    @property
    def run_id(self) -> str:
        """Of the run directory, known to the leader once the run is open; empty without one."""
        checkpoints = self._run._record.checkpoints
        return "" if checkpoints is None else checkpoints.facts.run

    def start_at(self, step: int, run_id: str, score: dict[str, Any]) -> None:
        """Say which state has been put into the parts; `open` checks whether the run can go on from there."""
        self._loaded = step, run_id, score

    def open(self, loader: Any) -> None:
        """Open the run, which resumes where its directory stands; collective.

        Raises:
            ScoreMismatch: The state that was loaded, or the directory, has another score.
            ConfigError: The state that was loaded is another run's, and there is a run directory; or a witness.
        """
        run, progress, loaded = self._run, self._run._progress, self._loaded
        if progress.is_open:
            return
        run._joined.claim.use()
        stepper = run._need_stepper()
        if run._joined.live is not None:
            run._joined.live.refuse(f"the program's own loop computes the steps ({self._name})")
        if run._joined.witness:
            refuse_witness(f"the program's own loop computes it ({self._name})")
        score = describe_run(run, stepper.parts.description, run.strategy, loader)
        if loaded is not None and loaded[2] and (lines := diff(loaded[2], score)):
            raise ScoreMismatch(f"the state that was loaded is of another score: {'; '.join(lines)}.")
        settings = self._settings()
        stepper.open(loader, lambda: score)
        if loaded is not None and run.directory is None:
            progress.done = loaded[0]
        elif loaded is not None and (
            progress.done < loaded[0] or leader_says(run.transport, lambda: self.run_id) != loaded[1]
        ):
            raise ConfigError(
                f"the state that was loaded is of step {loaded[0]} of another run than that of {run.directory}, which "
                f"stands at step {progress.done}. Hint: go on in the run directory that it was saved from; or "
                "without a run directory."
            )
        if progress.done:
            self._come_with(settings)

    def _settings(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return what a program may set between steps: the optimizer's settings, and what is registered."""
        registered = self._run._need_stepper().parts.registered if self._loaded is not None else {}
        states = {name: copy.deepcopy(each.state_dict()) for name, each in registered.items()}
        return [{**group, "params": None} for group in self._groups], states

    def _come_with(self, settings: tuple[list[dict[str, Any]], dict[str, Any]]) -> None:
        """Begin at the step of the run directory, or of the state that was loaded, with `settings` from before."""
        run, parts, done = self._run, self._run._need_stepper().parts, self._run._progress.done
        if self._loaded is not None and done == self._loaded[0]:  # what the program has done since that step counts
            self._set(settings[0])
            for name, state in settings[1].items():
                parts.registered[name].load_state_dict(state)
        self._held = self._settings()[0]
        for optimizer in parts.optimizers.values():
            optimizer._opt_called = True  # type: ignore[attr-defined] # earlier; torch warns of schedules otherwise
        run._record.tell(
            f"goes on after step {done}: loops over the training data hand out what is left of it. "
            f"Counters of the script's own begin at 0; {self._name}.completed_steps is {done}."
        )

    @property
    def place(self) -> int:
        """The step after which the program stands: behind those done while it is handed passes that are done."""
        return self.done if self._stands is None else self._stands

    @property
    def is_replaying(self) -> bool:
        """Whether the program, begun again, does once more what it has done between earlier passes."""
        return self._run.directory is not None or self._loaded is None

    def stand_at(self, first: int) -> None:
        """Note that a pass begins after that step.

        Where the run has come with later settings of its optimizer, what the program has done to them is undone.

        Raises:
            StepError: Training has been ended.
        """
        if self.ended_by:
            raise StepError(
                f"training goes on after {self.ended_by}, with weights that are those of no step. Hint: "
                "load before the first step."
            )
        self._stands = first if first < self.done else None
        if self._stands is not None:
            self._set(self._held)

    def of_epochs(self, loader: Any, epochs: int) -> Iterator[Any]:
        """Yield this rank's micro-batches of the steps up to the end of that epoch, as the strategy wants them.

        Raises:
            StepError: A turn has left out its backward pass, or its update.
        """
        steps, self.batch_size = self._run.steps(loader, epochs=epochs), loader.sampler.batch_size
        self._stands = None
        try:
            for batch in steps:
                yield from self._of_batch(batch)
        finally:
            self._abandon()
            steps.close()

    def _of_batch(self, batch: Batch) -> Iterator[Any]:
        stepper, strategy = self._run._need_stepper(), self._strategy
        stepper.begin(batch, _OBJECTIVE)
        self._batch, self.num_samples = batch, len(batch.indices)
        hosted = strategy.begin(batch.step, self.num_samples, _OBJECTIVE)
        self._rates = None
        for micro in batch.micros:
            self.is_synced, self._micro, self.is_in_turn = micro.replica == hosted[-1], micro, True
            strategy.start_replica(micro)
            yield micro.data
            self.is_in_turn = False
            if self._micro is not None:
                raise StepError(
                    f"step {batch.step}: a turn of the loop has ended without {self._name}.backward(loss): every "
                    "micro-batch has a part in the batch's gradient. Hint: to evaluate, model.eval() before the loop; "
                    "for a micro-batch that is not to count, a loss that is multiplied by 0."
                )
        if self._batch is not None:
            raise StepError(
                f"step {batch.step}: optimizer.step() was not called, or not that of the optimizer that "
                f"{self.words.prepare} has returned. Hint: call it in every turn, it acts when the batch is whole; "
                f"to accumulate over several batches, {self.words.accumulate}."
            )

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this turn's micro-batch; in the step's last turn, finish the batch's; collective there.

        Raises:
            StepError: No micro-batch waits for its gradient, or the loss is no scalar with a graph.
            PeerLost: Another rank went away.
        """
        micro, strategy = self._micro, self._strategy
        if micro is None or self._batch is None:
            raise StepError(
                f"{self._name}.backward() was called "
                + (
                    "a second time for one micro-batch, whose gradient has been added already. Hint: add the losses "
                    "and call it once."
                    if self._batch is not None
                    else "outside of a loop over the training data. Hint: call model.train() before the loop over the "
                    f"loader that {self.words.prepare} has returned: in evaluation mode it hands out data to evaluate."
                )
            )
        self._run._link.phases.enter(BACKWARD)
        self._micro = None
        strategy.add_replica(micro, Objective(lambda _: loss))
        if self.is_synced:
            next(self._batch.micros, None)
            self._gradients = strategy.finish()

    def update(self) -> bool:
        """Do the step's update in its last turn, and nothing in those before; return whether it was done.

        Raises:
            StepError: The micro-batch has no gradient yet, or there is no step.
            NonFiniteError: NaN or infinity in a loss or gradient.
        """
        if self._batch is None or self._micro is not None:
            raise StepError(
                f"optimizer.step() was called {'before' if self._batch else 'without'} {self._name}.backward(loss) in "
                "this turn of the loop. Hint: backward, then step, once in a turn."
            )
        rates = [group["lr"] for group in self._groups]
        if rates != (self._rates or rates):
            raise StepError(
                f"step {self._batch.step}: the learning rate was changed between two turns of one step, from "
                f"{self._rates} to {rates}: other numbers of workers have other turns. Hint: compute it from "
                f"{self._name}.completed_steps; or hand the schedule to {self.words.prepare}."
            )
        self._rates = [*rates]
        if not self.is_synced:
            return False
        assert self._gradients is not None
        self._is_updating = True
        self.loss = self._run._need_stepper().finish(self._batch, self._gradients, _OBJECTIVE)
        self.was_skipped = bool(self._gradients.bad_replicas)
        self._batch, self._gradients, self._is_updating = None, None, False
        return True

    def refuse_alone(self, what: str) -> None:
        """Refuse what all ranks must call, in a turn that they do not all have."""
        if not self.is_synced:
            raise PlaceError(
                f"{self._name}.{what} was called in a turn that is not the step's last: ranks may have unequal numbers "
                f"of those, and some would wait for ever. Hint: if {self._name}.sync_gradients: ..."
            )

    def refuse_within(self, what: str) -> None:
        """Refuse what is of a step's end, alike on all ranks, in the middle of one."""
        self.refuse_alone(what)
        if not self.is_between:
            raise StepError(
                f"{self._name}.{what} was called before optimizer.step() in this turn: there is no state in the middle "
                "of a step. Hint: call it after the update."
            )

    def _abandon(self) -> None:
        """Leave a step that has not been finished: the state is that before it, but where its update has begun."""
        if self._batch is not None and not self._is_updating:
            parts = self._run._need_stepper().parts
            parts.strategy.begin_again(is_within=True)
            for parameter in parts.model.parameters():
                parameter.grad = None
            parts.is_changing = False
        self._batch = self._micro = self._gradients = None
        self.is_synced, self._is_updating, self.is_in_turn = True, False, False

    def _set(self, settings: list[dict[str, Any]]) -> None:
        for group, told in zip(self._groups, settings, strict=True):
            group.update({name: value for name, value in told.items() if name != "params"})

    @property
    def _groups(self) -> list[dict[str, Any]]:
        [optimizer] = self._run._need_stepper().parts.optimizers.values()
        return optimizer.param_groups

    @property
    def _strategy(self) -> Exact:
        strategy = self._run._need_stepper().parts.strategy
        assert isinstance(strategy, Exact)
        return strategy


def _computed(_: Any) -> Tensor:
    raise AssertionError("the program computes the loss itself")


_OBJECTIVE = Objective(_computed)
