"""The steps of a run: a batch is handed out, computed, reduced, applied and recorded, and kept when it is due.

In: the parts of a run, which `Run` has put together. Out: batches and losses, lines of the ledger, checkpoints.
"""

import functools
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from unisono.collectives.places import world_of
from unisono.data.loader import Fetcher, Loader
from unisono.data.sampler import Indices
from unisono.data.sources.loaders import handed_out
from unisono.data.sources.stream_loader import StreamLoader
from unisono.determinism.loss_hooks import hook_late
from unisono.errors import StepError
from unisono.launchers.worker.live_member import WorldChanged
from unisono.metrics.base import Metric
from unisono.observe.detail import detail_of
from unisono.observe.phases import EVALUATE
from unisono.strategies.base import Gradients, Micro, StrategyContext
from unisono.strategies.objective import LossFunction, Objective
from unisono.strategies.options import StrategyOptions
from unisono.strategies.parts.drift import compare_now
from unisono.train.evaluate import Predict, evaluate
from unisono.train.guards.checks import SEVERAL
from unisono.train.guards.done_loops import ONCE, DoneLoops, alone
from unisono.train.guards.first_look import FirstLook
from unisono.train.guards.inside_loss import InsideLoss, refuse_inside
from unisono.train.guards.trained import check_metrics
from unisono.train.launcher_link import LauncherLink
from unisono.train.run_directory.record import RunRecord
from unisono.train.run_directory.run_progress import RunProgress
from unisono.train.steps.balance import Balancer
from unisono.train.steps.closures import Closure
from unisono.train.steps.keyed_generators import Between
from unisono.train.steps.loop import Batch, entry_of, hosted_micros
from unisono.train.steps.membership import Live
from unisono.train.steps.non_finite import NonFinite
from unisono.train.steps.timed import TimedObjectives
from unisono.train.steps.updates import Update, Updates
from unisono.train.trained_parts import Parts


class Stepper:
    """Runs steps; where `live` lets them begin again without a rank that died, `setting` has the new placement."""

    def __init__(
        self, parts: Parts, options: StrategyOptions, setting: StrategyContext, *,
        progress: RunProgress,
        record: RunRecord,
        link: LauncherLink,
        between: Between,
        non_finite: NonFinite,
        first_look: FirstLook,
        live: Live | None = None,
    ) -> None:  # fmt: skip
        self.parts, self._precision = parts, setting.precision
        parts.begin_steps()
        self.loss, self.balancer = math.nan, Balancer(options, setting, live)  # the loss of the last step
        self._setting, self._replicas, self._live, self._models = setting, setting.replicas, live, [parts.model]
        self._look = (lambda: None) if live is None else live.look
        self._world = None if live is None else live.world  # that of the data which is fetched
        self._progress, self._record, self._link = progress, record, link
        self._between, self._non_finite, self._first_look = between, non_finite, first_look
        self._done_loops = DoneLoops(parts, record.tell, is_kept=record.checkpoints is not None, live=live)
        self._updates = Updates(parts.updates, parts.model) if parts.updates else None
        self._inside = InsideLoss(parts.strategy, parts.optimizers.values(), options, setting, parts.unkept)
        self._timed = TimedObjectives(self._precision, self._inside, link.phases)
        asks = link.is_stop_asked if live is None else live.asks(link.is_stop_asked)
        parts.strategy.is_stop_asked, parts.before_pack = asks, first_look.at_parts_saved
        if record.checkpoints is not None:
            parts.strategy.begin_step = record.checkpoints.begin_step

    def steps(self, loader: Loader | StreamLoader, last: int, score: Callable[[], dict[str, Any]]) -> Generator[Batch]:
        """Open the run, whose `score` is known then, and yield the batches left up to `last`; see `Run.steps`."""
        progress = self._progress
        if progress.is_within:
            raise StepError(
                f"the loop was left within step {progress.done + 1}, and its weights are those of no step. "
                "Hint: a new Run goes on from the last checkpoint; run.stop('why') before leaving says that it is done."
            )
        ended, progress.loops = progress.loops[1], [progress.loops[0] + 1, last]
        self.open(loader, score)
        self._done_loops.begin(progress.done, last)
        first = progress.done + 1
        self._link.ends(last)
        if first > last:
            progress.tell_complete(last, ended)
        if self._live is not None and self.parts.takes_closure:
            self._live.refuse("the optimizer computes a step several times")
        if self._live is not None and isinstance(loader, StreamLoader):
            self._live.refuse("the data is a stream, which is not read again from the step's beginning")
        self._loader, self._last, self._fetched = loader, last, self._fetch(loader, first, last)
        try:
            yield from alone(self._batches(loader, first, last), progress)
        finally:
            vars(self).pop("_fetched", None)  # its processes end with the last batch that looks at it
        self._first_look.at_end(range(first, last + 1), self.parts.strategy.left_over())

    def open(self, loader: Loader | StreamLoader, score: Callable[[], dict[str, Any]]) -> None:
        """Open the run, or check that the score is that of the run that is open; collective."""
        progress = self._progress
        if isinstance(loader, StreamLoader):
            self.balancer.refuse("the data is a stream, of which each rank reads its own part")
            loader.done, passes = lambda: progress.done, lambda: loader.passes
        else:
            passes = lambda: loader.cuts.epoch_of(progress.done + 1)  # noqa: E731
        progress.open(score(), self.parts, loader.cuts, passes)

    def _batches(self, loader: Loader | StreamLoader, first: int, last: int) -> Generator[Batch]:
        progress, parts, setting, live = self._progress, self.parts, self._setting, self._live
        if live is not None:
            live.catch_up()  # where it has joined the others
        for step, epoch, indices, micros, chain in handed_out(loader, first, last):
            parts.flags.check(step)
            indices.setflags(write=False)
            self._fetched = self._data_of(step) if micros is None else micros
            self._link.begin(step)
            self._between.at("before", step)
            batch = _batch((step, epoch, indices, self._micros(indices), chain))
            try:
                yield batch
            except GeneratorExit:  # the loop was left: keep what it has done
                if progress.stopped_by is not None and not parts.is_changing:
                    self._end(batch)
                progress.leave(parts, is_whole=progress.done < step or progress.stopped_by is not None)
                raise
            self._end(batch)
            parts.end_iteration(step, speaks=setting.transport.rank == 0)
            if progress.stopped_by is not None:
                break
            if progress.done != step:
                raise StepError(f"the batch of step {step} was not passed to run.step(). Hint: call it once per batch.")
            progress.save_if_due(parts, is_last=step == last)
            if live is not None and parts.strategy.is_join_asked and step < last:
                live.let_in()
        if progress.done >= first:
            parts.flags.check(progress.done, is_last=True)
        progress.save_stopped(parts)
        if parts.strategy.keeps_equal:  # after the last update too
            setting.transport.again(functools.partial(compare_now, parts.model, setting.transport, progress.done))
        progress.finish(parts)

    def step(self, batch: Batch, objective: Objective, loss: LossFunction) -> float:
        """Do one optimizer step; see `Run.step`. Of the `objective` all but the `loss` may be that of other steps."""
        update, objective = self.begin(batch, objective)
        objective.loss = loss
        timed, micros, again = self._timed.of(objective), self._first_look.at_samples(batch.step, batch.micros), None
        if timed.embed is not None:
            timed = replace(timed, again=self._follower(batch.indices))
        if update is not None and self._updates is not None:
            micros = self._updates.micros(batch, self._follower(batch.indices))
            with update.alone():
                gradients = self._compute(batch, micros, timed)
            return self.finish(batch, gradients, objective, update)
        if self.parts.takes_closure:
            kept = [*micros]
            micros, again = iter(kept), functools.partial(self._compute_again, batch, kept, timed)
        return self.finish(batch, self._compute(batch, micros, timed), objective, again=again)

    def begin(self, batch: Batch, objective: Objective) -> tuple[Update | None, Objective]:
        """Do what comes before the gradients of a step; return which optimizer steps, and the whole objective."""
        refuse_inside("run.step()")
        progress, parts, step, update = self._progress, self.parts, batch.step, None
        if step != progress.done + 1:
            raise StepError(f"expected the batch of step {progress.done + 1}, got that of step {step}. {ONCE}")
        if self._updates is not None:
            self._check_whole(step)
            update, objective = self._updates.find(objective)
        elif objective.update is not None:
            raise StepError(f"expected no update=, got {objective.update!r}: the run has one optimizer. {SEVERAL}")
        for model in self._models if update is None else update.models:
            if not model.training:
                self._first_look.at_evaluation_mode(model)
        parts.check_iteration(step, speaks=self._setting.transport.rank == 0)
        self._record.settle_objective(objective.score, progress.done)
        parts.is_changing = True
        progress.usage.begin()
        self._inside.begin(step, len(batch.indices), objective)
        hook_late()
        return update, objective

    def finish(
        self, batch: Batch, gradients: Gradients, objective: Objective, update: Update | None = None,
        again: Callable[[], Gradients] | None = None,
    ) -> float:  # fmt: skip
        """Do what comes after them: the update and the record; return the mean loss over the whole batch."""
        progress, parts, link, updates = self._progress, self.parts, self._link, self._updates
        self._inside.end()
        is_finite = self._is_finite(batch, gradients, objective)
        ledgers = self._record.ledgers
        if ledgers.keeps_detail and updates is not None:
            updates.keep_detail(batch, objective, gradients)
        elif ledgers.keeps_detail:
            ledgers.append_detail(lambda: detail_of(batch.step, batch.indices, gradients.losses, parts.model))
        progress.before_update()
        self.loss = gradients.loss
        link.updating()
        lr, evaluations = self._update(gradients, update, again) if is_finite else (math.nan, 0)
        progress.epoch, was_asked = batch.epoch, progress.is_within and progress.is_stopping
        progress.is_stopping = was_asked or (gradients.is_stop_asked and self._record.path is not None)
        if updates is None:
            progress.done = batch.step
        link.done(progress.done, gradients.loss)
        parts.updated()
        progress.usage.end(len(batch.indices), is_first=not progress.is_within)
        self._between.at("after", *objective.key(batch.step))
        if updates is None:
            self._record.append(functools.partial(entry_of, batch, gradients, lr, evaluations))
        else:
            updates.done(objective, gradients, lr)
            progress.is_within = True
        if self._live is not None:
            self._live.catch_up()
        return gradients.loss

    def _is_finite(self, batch: Batch, gradients: Gradients, objective: Objective) -> bool:
        """Whether the step's update is to be made."""
        bad = gradients.bad_replicas
        return not (bad and self._precision.overflows(bad, gradients.loss)) and self._non_finite.judge(
            batch.step, batch.indices, self._replicas, bad, gradients.samples_weight, objective.update or ""
        )

    def _update(
        self, gradients: Gradients, update: Update | None, again: Callable[[], Gradients] | None
    ) -> tuple[float, int]:
        """Apply gradients; return the learning rate, and how often the optimizer has computed the step itself."""
        parts, strategy = self.parts, self.parts.strategy
        if again is not None:
            strategy.closure = Closure([*parts.model.parameters()], gradients, again)
        lr = strategy.update(parts.scheduler) if update is None else update.apply()
        self._precision.updated()
        count, strategy.closure = 0 if strategy.closure is None else strategy.closure.count, None
        return lr, count

    def _end(self, batch: Batch) -> None:
        """End a batch that has had all its updates, in a run with several optimizers."""
        if (updates := self._updates) is None:
            return
        progress, step = self._progress, batch.step
        if progress.is_within:
            self._check_whole(step)
            entry, details = updates.end(batch)
            progress.done, progress.is_within = step, False
            self._link.done(step, self.loss)
            if self._record.ledgers.keeps_detail:
                self._record.ledgers.append_detail(details)
            self._record.append(entry)

    def _check_whole(self, step: int) -> None:
        if self.parts.is_changing:
            raise StepError(
                f"step {step}: an update of this batch has failed, and nothing can follow it. "
                "Hint: let the exception end the run; a new one goes on from the last checkpoint."
            )

    def _data_of(self, step: int) -> Iterator[Any]:
        """Return the data from `step` on, anew where replicas have moved."""
        if not self.balancer.is_on:
            return self._fetched
        again = functools.partial(self._fetch, self._loader, step, self._last)
        found: Iterator[Any] = self.balancer.data(self.parts.strategy, step, self._fetched, again)
        return found

    def _fetch(self, loader: Loader | StreamLoader, first: int, last: int) -> Iterator[Any]:
        """Return the data of this rank's replicas, also where it has other ones than when the loader was made."""
        if isinstance(loader, StreamLoader):
            return iter(())  # each batch brings its own
        loader.host(self._setting.placement[self._setting.transport.rank])
        return loader.micro_batches(first, last)

    def _micros(self, indices: Indices) -> Iterator[Micro]:
        """Return this rank's micro-batches of the next step."""
        setting = self._setting
        where = (setting.placement, setting.transport.rank, setting.device)
        return self._link.follow(hosted_micros(len(indices), self._fetched, *where), indices, self._replicas)

    def _follower(self, indices: Indices) -> Callable[[Iterable[Micro]], Iterator[Micro]]:
        return lambda micros: self._link.follow(iter(micros), indices, self._replicas)

    def _compute(self, batch: Batch, micros: Iterator[Micro], objective: Objective) -> Gradients:
        """Return the gradients of a step; when a rank dies meanwhile the others compute all of it again."""
        strategy, num_samples = self.parts.strategy, len(batch.indices)
        if self._live is None or not self._live.is_possible:
            return strategy.compute_gradients(batch.step, micros, num_samples, objective)
        is_within = False
        while True:
            if self._world is not self._live.world:
                self._world = self._live.world
                strategy.begin_again(is_within=is_within)
                self._fetched = self._fetch(self._loader, batch.step, self._last)
                micros = self._micros(batch.indices)
                if self._updates is not None:
                    micros = self._updates.keeping(micros)
            try:
                with self._live.anchored():
                    return strategy.compute_gradients(batch.step, micros, num_samples, objective)
            except WorldChanged:
                self._live.move()
                self._progress.steps_again += not is_within
                is_within = True

    def _compute_again(self, batch: Batch, micros: list[Micro], objective: Objective) -> Gradients:
        """Return the gradients of the step in progress at the weights as they are now, which stand nowhere else."""
        found = self.parts.strategy.compute_gradients(batch.step, iter(micros), len(batch.indices), objective)
        self._non_finite.judge(batch.step, batch.indices, self._replicas, found.bad_replicas)
        return found

    def evaluate(
        self, fetcher: Fetcher, predict: Predict, metrics: Mapping[str, Metric], **how: Any
    ) -> dict[str, float]:
        """Return metrics over a data set; see `Run.evaluate`, whose other settings `how` has."""
        refuse_inside("run.evaluate()")
        parts, setting = self.parts, self._setting
        check_metrics(metrics, world_of(setting.transport))
        whole = functools.partial(
            evaluate, parts.evaluated(), fetcher, self._link.around(self._precision.around(predict), self._look),
            metrics, transport=setting.transport, device=setting.device, alike=parts.strategy.evaluates_alike, **how,
        )  # fmt: skip
        with self._link.phases.within(EVALUATE), parts.strategy.reading():
            values = setting.transport.again(whole)
        number = 0 if self._updates is None else self._updates.number
        self._between.at("evaluated", self._progress.done, *([number] if number else []))
        return values


_batch: Callable[[tuple[Any, ...]], Batch] = functools.partial(tuple.__new__, Batch)  # a third of Batch()'s time
