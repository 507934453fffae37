"""The trainer: a run with evaluation, metrics and progress in place, for models that map inputs to outputs."""

from collections.abc import Callable, Mapping
from typing import Any, final

from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.data.loader import Collate, Transform
from unisono.metrics.exact import Accuracy, Mean, Metric
from unisono.observe.progress import ProgressLine
from unisono.train.run import Run

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
        metrics: By name; accuracy where None.

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
    ) -> None:
        self.run = run
        self.model, self.optimizer = run.prepare(model, optimizer, scheduler)
        self.loss = loss
        self.metrics: dict[str, Metric] = dict(metrics if metrics is not None else {"accuracy": Accuracy()})

    def fit(
        self,
        train_set: Any,
        *,
        epochs: int,
        batch_size: int,
        test_set: Any = None,
        collate: Collate | None = None,
        transform: Transform | None = None,
        num_workers: int = 0,
        show_progress: bool = True,
    ) -> dict[str, Any]:
        """Train to the end of `epochs`, from the last checkpoint on, and return what ``result.json`` holds; collective.

        Args:
            train_set: Map-style; samples are pairs (x, y) unless `collate` makes them so.
            epochs: Passes over the data, counted from the run's start.
            batch_size: Samples per optimizer step, over all ranks.
            test_set: Evaluated after every epoch, without `transform`.
            collate: As in `Run.loader`.
            transform: As in `Run.loader`.
            num_workers: As in `Run.loader`.
            show_progress: Whether the leader shows progress on standard error.
        """
        loader = self.run.loader(
            train_set, batch_size=batch_size, collate=collate, transform=transform, num_workers=num_workers
        )
        per_epoch, scores = len(loader), dict[str, float]()
        progress: ProgressLine | None = None
        try:
            for batch in self.run.steps(loader, epochs=epochs):
                if progress is None:
                    is_shown = show_progress and self.run.world.is_leader
                    progress = ProgressLine(epochs * per_epoch, per_epoch, first_step=batch.step - 1, is_shown=is_shown)
                    if batch.step > 1:
                        progress.note(f"resumed after step {batch.step - 1}")
                loss = self.run.step(batch, self._loss)
                progress.step(batch.step, loss, len(batch.indices))
                if test_set is not None and batch.step % per_epoch == 0:
                    scores = self.evaluate(test_set, collate=collate, num_workers=num_workers)
                    self.run.record(scores)  # the checkpoint of this step tells them
                    listed = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
                    progress.note(f"epoch {batch.epoch + 1}/{epochs}  {listed}")
        finally:
            if progress is not None:
                progress.close()
        if test_set is not None and not scores:  # nothing was left to do
            scores = self.evaluate(test_set, collate=collate, num_workers=num_workers)
        self.run.record(scores)
        return self.run.result()

    def evaluate(
        self, dataset: Any, *, prefix: str = "test_", collate: Collate | None = None, num_workers: int = 0
    ) -> dict[str, float]:
        """Return the loss and all metrics over a data set, each sample counted once; collective.

        Args:
            dataset: As `fit` takes it.
            prefix: Put before each metric's name.
            collate: As in `Run.loader`.
            num_workers: As in `Run.loader`.
        """
        metrics: dict[str, Metric] = {"loss": _MeanLoss(self.loss), **self.metrics}
        scores = self.run.evaluate(dataset, self._predict, metrics, collate=collate, num_workers=num_workers)
        return {prefix + name: value for name, value in scores.items()}

    def _predict(self, micro: Any) -> tuple[Tensor, Tensor]:
        return self.model(micro.x), micro.y

    def _loss(self, micro: Any) -> Tensor:
        return self.loss(self.model(micro.x), micro.y)


@final
class _MeanLoss(Metric):
    """The mean of a loss over samples."""

    def __init__(self, loss: LossModule) -> None:
        self._loss = loss
        self._mean = Mean()
        self.state = self._mean.state

    def update(self, output: Tensor, target: Tensor) -> None:
        """See `Metric.update`."""
        self._mean.state = self.state
        self._mean.update(self._loss(output, target), target)
        self.state = self._mean.state

    def compute(self) -> float:
        """See `Metric.compute`."""
        self._mean.state = self.state
        return self._mean.compute()
