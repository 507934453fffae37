"""The steps of a run: a batch is handed out, computed, reduced, applied and recorded, and kept when it is due.

In: the parts of a run, which `Run` has put together. Out: batches and losses, lines of the ledger, checkpoints.
"""

import functools
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, final

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
from unisono.strategies.base import Gradients, LossFunction, Micro, StrategyContext
from unisono.strategies.options import StrategyOptions
from unisono.strategies.parts.drift import compare_now
from unisono.train.evaluate import Predict, evaluate
from unisono.train.guards.checks import check_metrics
from unisono.train.guards.first_look import FirstLook
from unisono.train.guards.inside_loss import InsideLoss, refuse_inside
from unisono.train.keyed_generators import Between
from unisono.train.launcher_link import LauncherLink
from unisono.train.loop import Batch, entry_of, hosted_micros
from unisono.train.membership import Live
from unisono.train.non_finite import NonFinite
from unisono.train.run_directory.record import RunRecord
from unisono.train.run_directory.run_progress import RunProgress
from unisono.train.trained_parts import Parts


@final
class Stepper:
    """Runs steps.

    Args:
        parts: What is trained, with its strategy.
        options: Of the strategy.
        setting: Where this rank works.
        progress: How far the run has come.
        record: Gets a line for every step.
        link: Tells the launcher, and knows where the time goes.
        between: Sets the generators for code that runs between steps.
        non_finite: Judges losses and gradients.
        first_look: Warns of what is hardly meant.
        live: Lets steps be begun again when a rank dies; its changes of the placement are seen in `setting`.
    """

    def __init__(
        self,
        parts: Parts,
        options: StrategyOptions,
        setting: StrategyContext,
        *,
        progress: RunProgress,
        record: RunRecord,
        link: LauncherLink,
        between: Between,
        non_finite: NonFinite,
        first_look: FirstLook,
        live: Live | None = None,
    ) -> None:
        self.parts = parts
        self._setting, self._rank, self._replicas, self._live = setting, setting.transport.rank, setting.replicas, live
        self._progress, self._record, self._link = progress, record, link
        self._between, self._non_finite = between, non_finite
        self._first_look = first_look
        self._inside = InsideLoss(parts.model, parts.optimizer, options, setting)
        parts.strategy.is_stop_asked, parts.before_pack = link.is_stop_asked, first_look.at_parts_saved
        if record.checkpoints is not None:
            parts.strategy.begin_step = record.checkpoints.begin_step

    def steps(self, loader: Loader | StreamLoader, last: int, score: Callable[[], dict[str, Any]]) -> Generator[Batch]:
        """Open the run, whose `score` is known then, and yield the batches left up to `last`; see `Run.steps`."""
        progress = self._progress
        if isinstance(loader, StreamLoader):
            loader.done, per_epoch, passes = lambda: progress.done, None, lambda: loader.passes
        else:
            per_epoch, passes = len(loader), lambda: progress.done // len(loader)
        progress.open(score(), self.parts, per_epoch, passes)
        first = progress.done + 1
        if first > last:
            progress.tell_complete(last)
        if self._live is not None and isinstance(loader, StreamLoader):
            self._live.refuse("the data is a stream, which is not read again from the step's beginning")
        self._loader, self._last, self._fetched = loader, last, self._fetch(loader, first, last)
        try:
            yield from self._batches(loader, first, last)
        finally:
            del self._fetched  # its processes end with the last batch that looks at it
        self._first_look.at_end(is_trained=first <= last, left_over=self.parts.strategy.left_over())

    def _batches(self, loader: Loader | StreamLoader, first: int, last: int) -> Generator[Batch]:
        progress, parts, setting = self._progress, self.parts, self._setting
        for step, epoch, indices, micros, chain in handed_out(loader, first, last):
            parts.flags.check(step)
            indices.setflags(write=False)
            self._fetched = self._fetched if micros is None else micros
            self._link.begin(step)
            self._between.at("before", step)
            try:
                yield Batch(step, epoch, indices, self._micros(indices), chain)
            except GeneratorExit:  # the loop was left: keep what it has done
                progress.leave(parts)
                raise
            parts.check_groups()
            if progress.stopped_by is not None:
                break
            if progress.done != step:
                raise StepError(f"the batch of step {step} was not passed to run.step(). Hint: call it once per batch.")
            progress.save_if_due(parts, is_last=step == last)
        if progress.done >= first:
            parts.flags.check(progress.done, is_last=True)
        progress.save_stopped(parts)
        if parts.strategy.keeps_equal:
            compare_now(parts.model, setting.transport, progress.done)  # the last update too
        progress.finish(parts)

    def step(self, batch: Batch, loss_function: LossFunction) -> float:
        """Do one optimizer step; see `Run.step`."""
        refuse_inside("run.step()")
        progress, parts, link = self._progress, self.parts, self._link
        strategy, step = parts.strategy, batch.step
        if step != progress.done + 1:
            raise StepError(f"expected the batch of step {progress.done + 1}, got that of step {step}.")
        if not parts.model.training:
            self._first_look.at_evaluation_mode(parts.model)
        parts.check_groups()
        parts.is_changing = True
        progress.usage.begin()
        self._inside.begin(step, len(batch.indices))
        hook_late()
        timed = link.timed(loss_function, self._inside)
        gradients = self._compute(batch, timed)
        is_finite = self._non_finite.judge(step, batch.indices, self._replicas, gradients.bad_replicas)
        if self._record.keeps_detail:
            self._record.append_detail(lambda: detail_of(step, batch.indices, gradients.losses, parts.model))
        progress.before_update()
        link.updating()
        lr = strategy.update(parts.scheduler) if is_finite else math.nan
        progress.done = step
        progress.is_stopping = gradients.is_stop_asked and self._record.path is not None
        link.done(step)
        parts.is_changing = False
        progress.usage.end(len(batch.indices))
        self._between.at("after", step)
        self._record.append(functools.partial(entry_of, batch, gradients, lr))
        return gradients.loss

    def _fetch(self, loader: Loader | StreamLoader, first: int, last: int) -> Iterator[Any]:
        """Return the data of this rank's replicas, also where it has other ones than when the loader was made."""
        if isinstance(loader, StreamLoader):
            return iter(())  # each batch brings its own
        loader.host(self._setting.placement[self._rank])
        return loader.micro_batches(first, last)

    def _micros(self, indices: Indices) -> Iterator[Micro]:
        """Return this rank's micro-batches of the next step."""
        setting, num_samples = self._setting, len(indices)
        mine = hosted_micros(num_samples, self._fetched, setting.placement, self._rank, setting.device)
        return self._link.follow(mine, indices, self._replicas)

    def _compute(self, batch: Batch, loss_function: LossFunction) -> Gradients:
        """Return the gradients of a step; when a rank dies meanwhile the others compute all of it again."""
        strategy, num_samples, micros = self.parts.strategy, len(batch.indices), batch.micros
        if self._live is None or not self._live.is_possible:
            return strategy.compute_gradients(batch.step, micros, num_samples, loss_function)
        while True:
            try:
                with self._live.anchored():
                    return strategy.compute_gradients(batch.step, micros, num_samples, loss_function)
            except WorldChanged:
                self._live.move()
                self._rank = self._setting.transport.rank
                strategy.begin_again()
                self._fetched = self._fetch(self._loader, batch.step, self._last)
                micros = self._micros(batch.indices)

    def evaluate(
        self,
        fetcher: Fetcher,
        predict: Predict,
        metrics: Mapping[str, Metric],
        **how: Any,
    ) -> dict[str, float]:
        """Return metrics over a data set; see `Run.evaluate`, whose other settings `how` has."""
        refuse_inside("run.evaluate()")
        parts, setting = self.parts, self._setting
        check_metrics(metrics, world_of(setting.transport))
        with self._link.phases.within(EVALUATE), parts.strategy.reading():
            values = evaluate(
                parts.model, fetcher, self._link.around(predict), metrics,
                transport=setting.transport, device=setting.device, alike=parts.strategy.evaluates_alike, **how,
            )  # fmt: skip
        self._between.at("evaluated", self._progress.done)
        return values
