"""The trainer: a run with evaluation, metrics, callbacks and progress in place, for models from inputs to outputs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast, final

from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.data.datasets import MapStyle, Samples
from unisono.data.loader import Collate, Transform
from unisono.data.plans.batch_schedule import BatchSchedule
from unisono.data.plans.plan import Plan
from unisono.data.sources.loaders import AnyDataset, AnyLoader, last_step
from unisono.errors import ConfigError
from unisono.metrics.base import Accuracy, Metric
from unisono.options.keywords import answers_keywords
from unisono.options.quantities import BATCH, SAMPLES
from unisono.strategies.objective import Objective, WeightFunction
from unisono.train.callbacks.base import Callback, Loop
from unisono.train.callbacks.chain import Chain
from unisono.train.evaluated_loss import EvaluatedLoss, LossModule
from unisono.train.fitting import Evaluation, check_waiting, checked_end, evaluations
from unisono.train.guards.checks import check_objective, check_one
from unisono.train.guards.names import AnswersNames
from unisono.train.guards.trained import check_metrics, check_trained
from unisono.train.intervals import Every, check_every, due
from unisono.train.predict import Output, inputs_of, outputs_of, pair_of
from unisono.train.reporter import Reporter
from unisono.train.run import Run
from unisono.train.steps.loop import Batch


@final
class Trainer(AnswersNames):
    """Trains and evaluates ``loss(model(x), y)``.

    Args:
        run: The run; create it before the model.
        model: Called with a micro-batch's ``x``.
        optimizer: Of the model's parameters.
        loss: From (output, target) to a scalar, the mean over samples.
        weight: As in `Run.step`: what the loss is a mean over, in evaluations too.
        reduction: As in `Run.step`.
        scheduler: Steps after every optimizer step.
        metrics: By name; accuracy where None. The loss is always there.
        callbacks: Called in this order; see `Callback`.
        callback_deadline_s: Longest time one callback may take for one hook.

    Raises:
        ConfigError: Two callbacks share a name, a metric has the loss's, or the strategy has no weights.
        PlaceError: A callback or metric cannot run with this many ranks.

    Example:
        >>> run = Run(seed=0, replicas=8, out="runs/digits")  # doctest: +SKIP
        >>> model = SimpleCNN()
        >>> trainer = Trainer(run, model, torch.optim.Adam(model.parameters()), loss=nn.CrossEntropyLoss())
        >>> result = trainer.fit(train_set, epochs=5, batch_size=128, test_set=test_set)
    """

    @answers_keywords
    def __init__(
        self,
        run: Run,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        loss: LossModule,
        weight: WeightFunction | None = None,
        reduction: str = "mean",
        scheduler: Any = None,
        metrics: Mapping[str, Metric] | None = None,
        callbacks: Sequence[Callback] = (),
        callback_deadline_s: float = 300.0,
    ) -> None:
        check_one(model, optimizer)
        check_trained(run, loss, metrics, callbacks)
        self.run = run
        self.model, self.optimizer, _ = run.prepare(model, optimizer, scheduler)
        self.loss = loss
        self._how: dict[str, Any] = {"weight": weight, "reduction": reduction}
        check_objective(Objective(self._loss, weight, reduction), run.strategy)
        self.metrics: dict[str, Metric] = dict(metrics if metrics is not None else {"accuracy": Accuracy()})
        check_metrics(self.metrics, run.world)
        if "loss" in self.metrics:
            raise ConfigError(
                f"the metric 'loss' ({type(self.metrics['loss']).__name__}) has the name under which every evaluation "
                "records the loss. Hint: leave it out, or choose another name."
            )
        self._loop = Loop(run=run, model=self.model, optimizer=self.optimizer)
        self._evaluated: Callable[[], None] = lambda: None  # called after every batch of an evaluation
        self._chain = Chain(callbacks, self._loop, deadline_s=callback_deadline_s)

    @answers_keywords
    def fit(
        self,
        train_set: AnyDataset,
        *,
        epochs: int | None = None,
        batch_size: int | BatchSchedule,
        test_set: MapStyle | None = None,
        eval_every: Every = None,
        part_every: Every = None,
        part_samples: int = 1024,
        log_every: Every = 50,
        max_steps: int | None = None,
        eval_limit: int | None = None,
        sanity_check: bool = False,
        collate: Collate | None = None,
        transform: Transform | None = None,
        num_workers: int = 0,
        plan: Plan | None = None,
        last: str = "short",
        show_progress: bool = True,
    ) -> dict[str, Any]:
        """Train to the end of `epochs`, from the last checkpoint on, and return what ``result.json`` holds; collective.

        Args:
            train_set: Map-style, or a `Stream`; samples are pairs (x, y) unless `collate` makes them so.
            epochs: Passes over the data, counted from the run's start; None: no end but `max_steps`, as of a stream.
            batch_size: Samples per optimizer step, over all ranks; a `BatchSchedule` where they change.
            test_set: Evaluated every `eval_every`, and at the end; without `transform`.
            eval_every: Steps between evaluations, or ``"2 epochs"``; None: once an epoch (of a stream, 1000 steps).
            part_every: The same between evaluations of a part of `test_set`, besides: ``part_loss``, ...; None: never.
            part_samples: How many samples that part has, chosen by the seed, the same ones every time.
            log_every: The same between lines of ``metrics.jsonl`` (in a run directory); evaluations are always logged.
            max_steps: Stop after this many steps, counted from the run's start.
            eval_limit: Evaluate on the first so many samples of `test_set` only, for quick runs.
            sanity_check: Evaluate on a few samples before the first step, only to meet failures early; changes no bit.
            collate: As in `Run.loader`.
            transform: As in `Run.loader`.
            num_workers: As in `Run.loader`.
            plan: As in `Run.loader`.
            last: As in `Run.loader`.
            show_progress: Whether the leader shows progress on standard error.

        Raises:
            ConfigError: A data set is not map-style, somebody waits for a score that no evaluation gives, or for the
                epochs of a stream; nothing says where the training ends.
            RankDivergence: Ranks log different names, or hold different weights.
            CallbackTimeout: A callback took longer than its deadline.
            Exception: What a callback has raised.
        """
        epochs, max_steps = checked_end(train_set, self._chain.callbacks, epochs, max_steps)
        check_every(eval_every=eval_every, log_every=log_every, part_every=part_every)
        how: dict[str, Any] = {"collate": collate, "num_workers": num_workers}
        tests = evaluations(test_set, eval_every, eval_limit, part_every, part_samples, how)
        loader = self.run.loader(train_set, batch_size=batch_size, transform=transform, plan=plan, last=last, **how)
        loop = self._begin(loader, tests, log_every, epochs, max_steps)
        self.run.between.is_lazy = True  # all code between steps is called by the chain
        with Reporter(self.run, loop, is_shown=show_progress) as reporter:
            try:
                for batch in self.run.steps(loader, epochs=epochs, max_steps=max_steps, show_progress=False):
                    if loop.step == 0 and self._begins(batch, reporter, tests[-1:] if sanity_check else []):
                        continue
                    self._step(batch)
                    reporter.step()
                    self._after_step(reporter)
                if tests and not loop.scores:  # nothing was left to do
                    self._evaluate(tests[-1], reporter)
                if loop.step:
                    self._chain("on_run_end")
                    self._agree(reporter)
            finally:
                self._chain.close()
                self.run.between.is_lazy = False
                self.run.between.settle()
        self.run.record(loop.scores)
        return self.run.result()

    def _begin(
        self, loader: AnyLoader, tests: Sequence[Evaluation], log_every: Every, epochs: int | None,
        max_steps: int | None,
    ) -> Loop:  # fmt: skip
        """Set the loop to its beginning, and settle what is done after which steps."""
        check_waiting(self._chain.callbacks, tests, self.metrics, self.run.first_look.best)
        loop, cuts = self._loop, loader.cuts
        loop.epochs, loop.cuts, loop.total_steps = epochs, cuts, last_step(loader, epochs, max_steps)
        loop.step, loop.scores, loop.stopped_by = 0, {}, None
        self._told: str | None = None
        self._ends_epoch = (lambda _: False) if cuts is None else cuts.every(1)
        self._logs, self._tests = due(log_every, cuts), [(each, due(each.every, cuts)) for each in tests]
        return loop

    def _begins(self, batch: Batch, reporter: Reporter, sanity: Sequence[Evaluation]) -> bool:
        """Start this launch, a new run with a `sanity` check; say whether the run was to stop here already."""
        for test in sanity if batch.step == 1 else ():
            self.evaluate(test.dataset, **test.sanity)
            self.run.between.at("before", batch.step)
        loop = self._loop
        loop.step, loop.epoch = batch.step - 1, batch.epoch
        reporter.begin()
        self._chain.begin()
        if self.run._joined_after != loop.step:
            self._agree(reporter)
        else:
            loop.pending.clear()  # the others have begun without this rank
        self._epoch_begun = -1
        return loop.stopped_by is not None

    def _step(self, batch: Batch) -> None:
        loop, chain = self._loop, self._chain
        loop.step, loop.epoch, loop.indices = batch.step, batch.epoch, batch.indices
        if chain.is_empty:
            loop.loss = self.run.step(batch, self._loss, **self._how)
            return
        if batch.epoch != self._epoch_begun:
            self._epoch_begun = batch.epoch
            chain("on_epoch_start")
        chain("on_step_start")
        loop.loss = self.run.step(batch, self._loss, **self._how)
        loop.num_skipped = self.run.non_finite.num_skipped
        chain.follow_world()
        chain("on_step_end")

    def _after_step(self, reporter: Reporter) -> None:
        loop = self._loop
        is_last, ends_epoch = loop.step == loop.total_steps, self._ends_epoch(loop.step)
        tells = ends_epoch or is_last or self._logs(loop.step)
        for test, is_due in self._tests:
            if is_due(loop.step) or (is_last and not test.is_part):
                self._evaluate(test, reporter)
                self.run.record(loop.scores)  # the checkpoint of this step tells them
                reporter.tell_metrics()
                loop.log(**loop.scores)
                tells = True
        if ends_epoch:
            self._chain("on_epoch_end")
        if tells:
            loop.log(**{"train/loss": loop.loss})
            self._agree(reporter)

    def _agree(self, reporter: Reporter) -> None:
        """Compare names and stops between ranks, write what was logged, and end the run where one asked for it."""
        values = self._chain.agree()
        reporter.write(values)
        if (why := self._loop.stopped_by) is not None and why != self._told:
            self._told = why
            self.run.stop(why)
            reporter.note(f"stopped after step {self._loop.step}: {why}")

    def _evaluate(self, test: Evaluation, reporter: Reporter) -> None:
        loop = self._loop
        self._chain("on_evaluation_start")
        self._evaluated = reporter.evaluating(test.num_samples)
        loop.scores, loop.is_part = self.evaluate(test.dataset, **test.settings), test.is_part
        self._evaluated = lambda: None
        self._chain.follow_world()  # whoever leads now begins the leader's callbacks before they hear of it
        self._chain("on_evaluation_end")

    @answers_keywords
    def evaluate(
        self,
        dataset: MapStyle,
        *,
        prefix: str = "test_",
        collate: Collate | None = None,
        num_workers: int = 0,
        limit: int | None = None,
        part: int | None = None,
    ) -> dict[str, float]:
        """Return the loss and all metrics over a data set, each sample counted once; collective.

        Args:
            dataset: As `fit` takes it.
            prefix: Put before each metric's name.
            collate: As in `Run.loader`.
            num_workers: As in `Run.loader`.
            limit: Only the first so many samples.
            part: As in `Run.evaluate`.
        """
        self._evaluated_loss = EvaluatedLoss(self.loss, **self._how)
        metrics: dict[str, Metric] = {"loss": self._evaluated_loss, **self.metrics}
        how: dict[str, Any] = {"collate": collate, "num_workers": num_workers, "limit": limit, "part": part}
        how |= {"name": None}  # `fit` records what it evaluates
        values = self.run.evaluate(dataset, self._predict, metrics, **how)
        return {prefix + name: value for name, value in values.items()}

    @answers_keywords
    def predict(
        self,
        dataset: MapStyle,
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
        how: dict[str, Any] = {"collate": collate, "num_workers": num_workers}
        total = len(cast(Samples, dataset))
        size = min(total, limit or total)
        return self.run.transport.again(
            lambda: outputs_of(self.run, dataset, chosen, size, batch_size=batch_size, limit=limit, **how)
        )

    def _predict(self, micro: Any) -> tuple[Tensor, Tensor]:
        x, y = pair_of(micro)
        output = self.model(x)
        self._evaluated_loss.begin(micro)
        self._evaluated()
        return output, y

    def _loss(self, micro: Any) -> Tensor:
        x, y = pair_of(micro)
        return self.loss(self.model(x), y)
