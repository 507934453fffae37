"""The trainer: a run with evaluation, metrics, callbacks and progress in place, for models from inputs to outputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.data.loader import Collate, Transform, check_dataset
from unisono.data.plans.plan import Plan
from unisono.errors import ConfigError
from unisono.metrics.base import Accuracy, Mean, Metric
from unisono.options.quantities import BATCH, EPOCHS, SAMPLES, STEPS
from unisono.train.callbacks.base import Callback, Loop
from unisono.train.callbacks.chain import Chain
from unisono.train.callbacks.monitored import check_best, check_monitors
from unisono.train.guards.checks import check_metrics
from unisono.train.guards.keywords import answers_keywords
from unisono.train.intervals import Every, check_every, steps_between
from unisono.train.loop import Batch
from unisono.train.predict import Output, Outputs, inputs_of, pair_of
from unisono.train.reporter import Reporter
from unisono.train.run import Run

_SANITY_SAMPLES = 512

LossModule = Callable[[Tensor, Tensor], Tensor]
"""From (output, target) to the mean loss over the samples: ``nn.CrossEntropyLoss()``, ``F.mse_loss``, ..."""


@final
class Trainer:
    """Trains and evaluates ``loss(model(x), y)``.

    Args:
        run: The run; create it before the model.
        model: Called with a micro-batch's ``x``.
        optimizer: Of the model's parameters.
        loss: From (output, target) to a scalar, the mean over samples.
        scheduler: Steps after every optimizer step.
        metrics: By name; accuracy where None. The loss is always there.
        callbacks: Called in this order; see `Callback`.
        callback_deadline_s: Longest time one callback may take for one hook.

    Raises:
        ConfigError: Two callbacks share a name, or a metric has the loss's.
        PlaceError: A callback or metric cannot run with this many ranks.

    Example:
        >>> run = Run(seed=0, replicas=8, out="runs/digits")  # doctest: +SKIP
        >>> model = SimpleCNN()
        >>> trainer = Trainer(run, model, torch.optim.Adam(model.parameters()), loss=nn.CrossEntropyLoss())
        >>> result = trainer.fit(train_set, epochs=5, batch_size=128, test_set=test_set)
    """

    def __init__(
        self,
        run: Run,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        loss: LossModule,
        scheduler: Any = None,
        metrics: Mapping[str, Metric] | None = None,
        callbacks: Sequence[Callback] = (),
        callback_deadline_s: float = 300.0,
    ) -> None:
        self.run = run
        self.model, self.optimizer = run.prepare(model, optimizer, scheduler)
        self.loss = loss
        self.metrics: dict[str, Metric] = dict(metrics if metrics is not None else {"accuracy": Accuracy()})
        check_metrics(self.metrics, run.world)
        if "loss" in self.metrics:
            raise ConfigError(
                f"the metric 'loss' ({type(self.metrics['loss']).__name__}) has the name under which every evaluation "
                "records the loss. Hint: leave it out, or choose another name."
            )
        self._loop = Loop(
            run=run, model=self.model, optimizer=self.optimizer, epochs=0, steps_per_epoch=0, total_steps=0
        )
        self._evaluated: Callable[[], None] = lambda: None  # called after every batch of an evaluation
        self._chain = Chain(callbacks, self._loop, deadline_s=callback_deadline_s)

    @answers_keywords
    def fit(
        self,
        train_set: Any,
        *,
        epochs: int,
        batch_size: int,
        test_set: Any = None,
        eval_every: Every = None,
        log_every: Every = 50,
        max_steps: int | None = None,
        eval_limit: int | None = None,
        sanity_check: bool = False,
        collate: Collate | None = None,
        transform: Transform | None = None,
        num_workers: int = 0,
        plan: Plan | None = None,
        show_progress: bool = True,
    ) -> dict[str, Any]:
        """Train to the end of `epochs`, from the last checkpoint on, and return what ``result.json`` holds; collective.

        Args:
            train_set: Map-style; samples are pairs (x, y) unless `collate` makes them so.
            epochs: Passes over the data, counted from the run's start.
            batch_size: Samples per optimizer step, over all ranks.
            test_set: Evaluated every `eval_every`, and at the end; without `transform`.
            eval_every: Steps between evaluations, or ``"2 epochs"``; None: once an epoch.
            log_every: The same between lines of ``metrics.jsonl`` (in a run directory); evaluations are always logged.
            max_steps: Stop after this many steps, counted from the run's start.
            eval_limit: Evaluate on the first so many samples of `test_set` only, for quick runs.
            sanity_check: Evaluate on a few samples before the first step, only to meet failures early; changes no bit.
            collate: As in `Run.loader`.
            transform: As in `Run.loader`.
            num_workers: As in `Run.loader`.
            plan: As in `Run.loader`.
            show_progress: Whether the leader shows progress on standard error.

        Raises:
            ConfigError: A data set is not map-style, or somebody waits for a score that no evaluation gives.
            RankDivergence: Ranks log different names, or hold different weights.
            CallbackTimeout: A callback took longer than its deadline.
            Exception: What a callback has raised.
        """
        epochs, max_steps = EPOCHS.take("epochs", epochs), STEPS.maybe("max_steps", max_steps)
        check_every(eval_every=eval_every, log_every=log_every)
        self._check_monitors(test_set)
        loader = self.run.loader(
            train_set, batch_size=batch_size, collate=collate, transform=transform, num_workers=num_workers, plan=plan
        )
        loop = self._loop
        loop.epochs, loop.steps_per_epoch = epochs, len(loader)
        loop.total_steps = min(epochs * len(loader), max_steps or epochs * len(loader))
        loop.step, loop.scores, loop.stopped_by = 0, {}, None
        eval_steps, log_steps = (steps_between(every, len(loader)) for every in (eval_every, log_every))
        test = _Test(test_set, collate, num_workers, SAMPLES.maybe("eval_limit", eval_limit), eval_steps)
        self.run.between.is_lazy = True  # all code between steps is called by the chain
        with Reporter(self.run, loop, is_shown=show_progress) as reporter:
            try:
                for batch in self.run.steps(loader, epochs=epochs, max_steps=max_steps):
                    if loop.step == 0 and self._begins(batch, reporter, test if sanity_check else None):
                        continue
                    self._step(batch)
                    reporter.step()
                    self._after_step(test, log_steps, reporter)
                if test_set is not None and not loop.scores:  # nothing was left to do
                    self._evaluate(test, reporter)
                if loop.step:
                    self._chain("on_run_end")
                    self._agree(reporter)
            finally:
                self._chain.close()
                self.run.between.is_lazy = False
                self.run.between.settle()
        self.run.record(loop.scores)
        return self.run.result()

    def _check_monitors(self, test_set: Any) -> None:
        """Find out before the first step what the first evaluation would stumble over."""
        if test_set is not None:
            check_dataset(test_set)
        names = [f"test_{name}" for name in ("loss", *self.metrics)] if test_set is not None else []
        check_monitors(self._chain.callbacks, names)
        check_best(self.run.first_look.best, self._chain.callbacks, names)

    def _begins(self, batch: Batch, reporter: Reporter, sanity: "_Test | None") -> bool:
        """Start this launch, a new run with a `sanity` check; say whether the run was to stop here already."""
        if sanity is not None and sanity.dataset is not None and batch.step == 1:
            self._evaluate_on(sanity, limit=min(_SANITY_SAMPLES, sanity.limit or _SANITY_SAMPLES))
            self.run.between.at("before", batch.step)
        loop = self._loop
        loop.step, loop.epoch = batch.step - 1, batch.epoch
        reporter.begin()
        self._chain("on_run_start")
        self._agree(reporter)
        self._epoch_begun = -1
        return loop.stopped_by is not None

    def _step(self, batch: Batch) -> None:
        loop, chain = self._loop, self._chain
        loop.step, loop.epoch, loop.indices = batch.step, batch.epoch, batch.indices
        if chain.is_empty:
            loop.loss = self.run.step(batch, self._loss)
            return
        if batch.epoch != self._epoch_begun:
            self._epoch_begun = batch.epoch
            chain("on_epoch_start")
        chain("on_step_start")
        loop.loss = self.run.step(batch, self._loss)
        loop.num_skipped = self.run.non_finite.num_skipped
        chain.follow_world()
        chain("on_step_end")

    def _after_step(self, test: "_Test", log_steps: int, reporter: Reporter) -> None:
        loop = self._loop
        is_last, ends_epoch = loop.step == loop.total_steps, loop.step % loop.steps_per_epoch == 0
        is_evaluated = test.dataset is not None and (is_last or loop.step % test.every == 0)
        if is_evaluated:
            self._evaluate(test, reporter)
            self.run.record(loop.scores)  # the checkpoint of this step tells them
            reporter.tell_metrics()
            loop.log(**loop.scores)
        if ends_epoch:
            self._chain("on_epoch_end")
        if is_evaluated or ends_epoch or is_last or loop.step % log_steps == 0:
            loop.log(**{"train/loss": loop.loss})
            self._agree(reporter)

    def _agree(self, reporter: Reporter) -> None:
        """Compare names and stops between ranks, write what was logged, and end the run where one asked for it."""
        values = self._chain.agree()
        reporter.write(values)
        if self._loop.stopped_by is not None:
            self.run.stop(self._loop.stopped_by)
            reporter.note(f"stopped after step {self._loop.step}: {self._loop.stopped_by}")

    def _evaluate(self, test: "_Test", reporter: Reporter) -> None:
        self._chain("on_evaluation_start")
        self._evaluated = reporter.evaluating(min(len(test.dataset), test.limit or len(test.dataset)))
        self._loop.scores = self._evaluate_on(test, limit=test.limit)
        self._evaluated = lambda: None
        self._chain("on_evaluation_end")

    def _evaluate_on(self, test: "_Test", *, limit: int | None) -> dict[str, float]:
        return self.evaluate(test.dataset, collate=test.collate, num_workers=test.num_workers, limit=limit)

    @answers_keywords
    def evaluate(
        self,
        dataset: Any,
        *,
        prefix: str = "test_",
        collate: Collate | None = None,
        num_workers: int = 0,
        limit: int | None = None,
    ) -> dict[str, float]:
        """Return the loss and all metrics over a data set, each sample counted once; collective.

        Args:
            dataset: As `fit` takes it.
            prefix: Put before each metric's name.
            collate: As in `Run.loader`.
            num_workers: As in `Run.loader`.
            limit: Only the first so many samples.
        """
        metrics: dict[str, Metric] = {"loss": _MeanLoss(self.loss), **self.metrics}
        how: dict[str, Any] = {"collate": collate, "num_workers": num_workers, "limit": limit}
        values = self.run.evaluate(dataset, self._predict, metrics, **how)
        return {prefix + name: value for name, value in values.items()}

    @answers_keywords
    def predict(
        self,
        dataset: Any,
        *,
        batch_size: int = 256,
        output: Output | None = None,
        collate: Collate | None = None,
        num_workers: int = 0,
        limit: int | None = None,
    ) -> Any:
        """Return the outputs of every sample, in the data set's order, on every rank; collective.

        The batches are shared out over the ranks, nothing padded or repeated: the bits are those of one rank. Runs in
        evaluation and inference mode. Each rank keeps all outputs in its memory: `output` can make them small.

        Args:
            dataset: Map-style; targets, where samples have some, are not looked at.
            batch_size: Samples per forward pass; another one may give other last bits.
            output: From a micro-batch to what is kept: a tensor with a row for each sample, or a tuple, list or
                dictionary of such; None: what the model says.
            collate: As in `Run.loader`.
            num_workers: As in `Run.loader`.
            limit: Only the first so many samples.

        Returns:
            Tensors on the CPU with a row for each sample, (n, ...), in the structure of `output` (lists are tuples).

        Raises:
            ConfigError: An output is something else.
            RankDivergence: Outputs differ in structure, dtype or row shape.
        """
        batch_size, limit = BATCH.take("batch_size", batch_size), SAMPLES.maybe("limit", limit)
        chosen = output or (lambda micro: self.model(inputs_of(micro)))
        kept = Outputs(min(len(dataset), limit or len(dataset)), batch_size, self.run.transport)

        def keep(micro: Any) -> Any:
            kept.add(chosen(micro))
            return None, None

        how: dict[str, Any] = {"batch_size": batch_size, "collate": collate, "num_workers": num_workers, "limit": limit}
        self.run.evaluate(dataset, keep, {}, **how)
        return kept.gather()

    def _predict(self, micro: Any) -> tuple[Tensor, Tensor]:
        x, y = pair_of(micro)
        output = self.model(x)
        self._evaluated()
        return output, y

    def _loss(self, micro: Any) -> Tensor:
        x, y = pair_of(micro)
        return self.loss(self.model(x), y)


@dataclass(frozen=True, slots=True)
class _Test:
    """What evaluations need."""

    dataset: Any
    collate: Collate | None
    num_workers: int
    limit: int | None
    every: int


@final
class _MeanLoss(Mean):
    """The mean of a loss over samples."""

    def __init__(self, loss: LossModule) -> None:
        super().__init__()
        self._loss = loss

    def update(self, output: Tensor, target: Tensor) -> None:
        super().update(self._loss(output, target), target)
