"""What can be asked of a run beside its loop: first weights, evaluations, what is saved too, how it stands, its end."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from unisono.checkpoint.interchange import Loaded, check_order
from unisono.checkpoint.policy import BestSoFar
from unisono.collectives.leader import leader_says
from unisono.collectives.transport import Transport
from unisono.data.datasets import MapStyle
from unisono.data.loader import Collate, Fetcher, Transform
from unisono.errors import ConfigError
from unisono.metrics.base import Metric
from unisono.observe.result import Result, html_table
from unisono.options.keywords import answers_keywords
from unisono.options.quantities import BATCH
from unisono.strategies.options import StrategyOptions
from unisono.strategies.precision import MixedPrecision
from unisono.system.words import counted
from unisono.train.evaluate import BATCH_SIZE, Predict, check_predict, checked_limit
from unisono.train.guards import checks
from unisono.train.guards.first_look import FirstLook
from unisono.train.guards.names import AnswersNames, refuse_setting
from unisono.train.kept_dict import KeptDict
from unisono.train.pretrained_weights import load_on_all, load_prepared
from unisono.train.run_directory.run_progress import RunProgress
from unisono.train.steps.joined import Joined
from unisono.train.steps.stepper import Stepper
from unisono.train.trained_parts import Parts
from unisono.world import World


class RunState(AnswersNames):
    """The part of `Run` that is about its state; `Run` makes what is declared here."""

    transport: Transport
    strategy: StrategyOptions
    world: World
    seed: int
    replicas: int
    threads: int
    device: torch.device
    directory: Path | None
    precision: MixedPrecision
    first_look: FirstLook
    _best: BestSoFar
    _joined: Joined
    _progress: RunProgress
    _registered: dict[str, Any]
    _stepper: Stepper | None

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; `AttributeError` for a setting of a run that is made."""
        if "_progress" in vars(self):
            refuse_setting(name, value)
        super().__setattr__(name, value)

    @answers_keywords
    def load_weights(
        self, path: str | Path, model: nn.Module | None = None, *, strict: bool = True, average: str | None = None
    ) -> Loaded:
        """Put pretrained weights into every rank's model, all of them or none; before `steps`; collective.

        The model stays in the mode in which it is: a new one is in training mode.

        Args:
            path: Read by the leader alone; as `unisono.load_weights` takes it.
            model: One that `prepare` will get. None: the one that it has got.
            strict: Whether missing or unexpected names are an error.
            average: As `unisono.load_weights` takes it: an average of the weights, ``EMA``.

        Raises:
            CheckpointError: The file cannot be read or does not fit; no rank's model has changed.
            ConfigError: There is no model yet; steps have begun; or copies of the model's weights would stay behind.
            RankDivergence: The ranks hold different weights where the file has none.
        """
        if model is not None:
            check_order(model, path, "run.load_weights(path, model): the path comes first here")
            return load_on_all(self.transport, model, Path(path), strict=strict, average=average)
        how: Any = {"strict": strict, "average": average, "is_open": self._progress.is_open}
        return load_prepared(self._prepared(), self.strategy, Path(path), **how)

    @answers_keywords
    def evaluate(
        self,
        dataset: MapStyle,
        predict: Predict,
        metrics: Mapping[str, Metric],
        *,
        batch_size: int = BATCH_SIZE,
        collate: Collate | None = None,
        transform: Transform | None = None,
        num_workers: int = 0,
        inference_mode: bool = True,
        limit: int | None = None,
        part: int | None = None,
        name: str | None = "",
    ) -> dict[str, float]:
        """Return metrics over a data set: each sample once, bit-equal for any number of ranks; collective.

        Once `steps` has begun they are recorded, too, as `record` does it: a curve of the report.

        Args:
            dataset: Map-style.
            predict: From a micro-batch to (output, target).
            metrics: By name.
            batch_size: Samples per forward pass.
            collate: As in `loader`.
            transform: As in `loader`.
            num_workers: As in `loader`.
            inference_mode: False: under ``torch.no_grad``, for models that keep tensors which training needs again.
            limit: Only the first so many samples.
            part: In place of that: only so many samples, chosen by the seed, the same ones every time.
            name: Of the data set: `test` lets an accuracy be recorded as `test_accuracy`. Empty: as `accuracy`, that of
                a `part` as `part_accuracy`. None: nothing is recorded.

        Raises:
            ConfigError: A setting is out of range; `predict` is a model, or has not returned two values.
        """
        batch_size, limit = BATCH.take("batch_size", batch_size), checked_limit(limit, part)
        check_predict(predict, metrics, name)
        fetcher = Fetcher(dataset, self.seed, transform=transform, collate=collate)
        values = self._need_stepper().evaluate(
            fetcher, predict, metrics, batch_size=batch_size, num_workers=num_workers, inference_mode=inference_mode,
            limit=limit, part=part,
        )  # fmt: skip
        if values and name is not None and self._progress.is_open:
            prefix = f"{name}_" if name else "part_" if part is not None else ""
            scores = {prefix + each: value for each, value in values.items()}
            known = self._progress._measured.get(self._progress.done + self._progress.is_within, {})
            self.record(self.first_look.at_scores(scores, known))
            if self._best.name in scores and self.directory is not None:
                is_best = self._best.is_better(scores)  # a worker that has joined knows less
                self._progress.is_owed |= self.transport.again(lambda: leader_says(self.transport, lambda: is_best))
        return values

    @answers_keywords
    def register(self, name: str, part: Any) -> None:
        """Save and restore one more object with every checkpoint: a scheduler stepped by hand, an average of weights.

        Call it before `steps`, with the object as it stands at the run's start.

        Args:
            name: Under which it is saved.
            part: With ``state_dict()`` and ``load_state_dict()``; the state holds tensors and JSON's types. Or a
                dictionary of these: it is saved as it stands, and a resume fills this very dictionary.

        Raises:
            ConfigError: The name is taken, the methods are missing, a dictionary holds what cannot be saved, or the run
                has been opened already.
        """
        part = KeptDict(part) if isinstance(part, dict) else part
        checks.check_new_part(name, part, self._registered, is_open=self._progress.is_open)
        self.first_look.at_registered(part)
        self._registered[name] = part

    def record(self, metrics: Mapping[str, float] | None = None, /, *args: object, **values: float) -> None:
        """Record numbers of the step that is done: ``run.record(accuracy=0.9)``, or in a dictionary.

        They stand in the step's line of ``metrics.jsonl``, which `unisono watch` and `report` draw, and in its
        checkpoint; ``result.json`` has the last one of each name. Each line is there once, also after a kill. Not
        collective: the leader's numbers are written. Before `steps` has begun only ``result.json`` gets them.

        Raises:
            ConfigError: A metric has no name, or is no number.
        """
        if args or not isinstance(metrics, Mapping | None):
            raise ConfigError(f"expected metrics by name, got {metrics!r:.100}. Hint: run.record({{'accuracy': 0.9}}).")
        metrics = {**(metrics or {}), **values}
        self._progress.measured(metrics)
        self.first_look.at_record({*metrics})

    def stop(self, reason: str) -> None:
        """End `steps` after the step that is done, as if it were the last; called by all ranks alike."""
        self._progress.stopped_by = reason

    @property
    def _joined_after(self) -> int:
        """The step after which this rank has joined others (``--live auto``); -1 where it was there from the start."""
        return -1 if self._joined.live is None else self._joined.live.joined_after

    def fingerprint(self) -> str:
        """Return the SHA-256 over the model's parameters and buffers in name order."""
        return self._progress.fingerprint(self._prepared())

    def result(self) -> Result:
        """Return what ``result.json`` holds; empty before the last step is done."""
        return Result(self._progress.result)

    def __repr__(self) -> str:
        place = f"rank {self.world.rank} of {self.world.world_size}"
        return f"<unisono.Run: {self.strategy.name}, {self.replicas} replicas, {place}, step {self._progress.done}>"

    def _repr_html_(self) -> str:
        """What a notebook shows of a run: its settings, and how far it is."""
        world, result, progress = self.world, self._progress.result, self._progress
        rows = [
            ("step", progress.done), ("finished", "yes" if result else "no"), ("seed", self.seed),
            ("replicas", f"{self.replicas} on {counted(world.world_size, 'worker')}, this is rank {world.rank}"),
            ("strategy", self.strategy.name), ("precision", self.precision.name), ("device", self.device),
            ("threads", self.threads), ("out", self.directory or "nothing is kept"),
            *((name, result[name]) for name in ("fingerprint",) if name in result), *result.get("metrics", {}).items(),
        ]  # fmt: skip
        return html_table("Run", rows)

    def _describe_start(self) -> str:
        """Return what is trained, and where: ``4,810 parameters on cpu, 8 replicas on 2 workers``."""
        size = counted(self._prepared().description["model"]["num_parameters"], "parameter")
        where = f"{counted(self.replicas, 'replica')} on {counted(self.world.world_size, 'worker')}"
        return f"{size} on {self.device}, {where}"

    def close(self) -> None:
        """Leave the world, with everything kept that the last loop has done; safe to call twice."""
        self._close(sys.exc_info()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._close(error)

    def _close(self, error: BaseException | None) -> None:
        """Close it; an `error` other than an end of the program says that the loop's body has not come to its end."""
        is_end = error is None or isinstance(error, GeneratorExit) or getattr(error, "code", 1) in (0, None)
        strategy = None if self._stepper is None else self._stepper.parts.strategy
        self._joined.leave(self._progress, strategy, None if is_end else error)

    def _prepared(self) -> Parts:
        return self._need_stepper().parts

    def _need_stepper(self) -> Stepper:
        if self._stepper is None:
            raise ConfigError(
                "expected run.prepare(model, optimizer) first. Hint: model, optimizer = run.prepare(model, optimizer)."
            )
        return self._stepper
