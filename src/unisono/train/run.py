"""Own the loop: `Run` gives a training loop its exact step, its data order, its ledger and its checkpoints."""

import functools
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Self, final

from torch import manual_seed, nn
from torch.optim import Optimizer

from unisono.checkpoint.interchange import Loaded
from unisono.checkpoint.policy import CheckpointPolicy
from unisono.collectives.transport import Transport
from unisono.data.loader import Collate, Fetcher, Transform
from unisono.data.plans.plan import Plan
from unisono.data.sources.loaders import AnyLoader, last_step, make_loader
from unisono.determinism.switches import set_determinism
from unisono.errors import ConfigError
from unisono.metrics.base import Metric
from unisono.options.quantities import BATCH, EPOCHS, REPLICAS, SAMPLES, SEED, STEPS, THREADS
from unisono.strategies.base import LossFunction, StrategyContext
from unisono.strategies.build import build
from unisono.strategies.catalog import resolve
from unisono.strategies.options import StrategyOptions
from unisono.strategies.parts.clipping import Clipping
from unisono.train.evaluate import BATCH_SIZE, Predict
from unisono.train.guards import checks
from unisono.train.guards.first_look import FirstLook
from unisono.train.guards.keywords import answers_keywords
from unisono.train.intervals import Every, check_every
from unisono.train.keyed_generators import Between
from unisono.train.loop import Batch
from unisono.train.membership import Joined
from unisono.train.non_finite import NonFinite
from unisono.train.pretrained_weights import load_on_all, load_prepared
from unisono.train.run_directory.run_progress import RunProgress
from unisono.train.score import checked_settings, describe_run
from unisono.train.stepper import Stepper
from unisono.train.trained_parts import Parts


@final
class Run:
    """A training run: joins the world it finds, and is alone if there is none.

    Build the model *after* the run: its constructor seeds the generators that initial weights are drawn from.

    Args:
        seed: Seed of everything random.
        replicas: Logical workers (V), fixed for the run directory's life. Unset: the world size of its first launch.
        out: Run directory; a run found there is resumed. None keeps nothing.
        clip_norm: Largest global norm of the batch's gradient; a longer one is scaled down. None does not clip.
        clip_value: Largest magnitude of its elements; larger ones are set to it. Not beside `clip_norm`.
        non_finite: What NaN or infinity in a loss or gradient does. ``stop``: it ends the run with `NonFiniteError`.
            ``skip``: the step counts but updates neither weights nor schedule; too many in a row end the run.
        strategy: How gradients or parameters move: a name, or ``unisono.strategy(name, **options)``; part of the score.
        threads: Threads per process on the CPU; changes bits, so it is part of the score. Unset: those of the run
            that is resumed, else what the launcher or ``OMP_NUM_THREADS`` asks for, else 1.
        checkpoint_every: Steps between checkpoints, or ``"2 epochs"``; None: an epoch. The last step is always saved.
        checkpoints: How they are written, which are kept; None: the newest two, written beside the training.
        device: ``cpu``, ``cuda`` or ``cuda:N``; unset, each local rank's own GPU where there are any, else the CPU.
        settings: More of the score, plain values by name, for instance what a recipe was called with.
        allow_drift: Go on although software or CPU capability differ from the run's first launch.
        detail: Record in ``detail.jsonl`` what each step is made of, for `unisono diff`: the same bits, but slower.
        transport: ``auto``: shared memory between CPU ranks of one host, else the process group. ``gloo``, ``mpi``:
            that process group. Or an object that joins the ranks (`run_ranks` gives one). Never changes a bit.

    Raises:
        ConfigError: A setting is out of range, the world is larger than `replicas`, or another run uses the directory.
        WorldError: The launcher's variables are incomplete.

    Example:
        >>> run = Run(seed=0, replicas=8)  # doctest: +SKIP
        >>> model, optimizer = run.prepare(model, torch.optim.Adam(model.parameters()))
        >>> for batch in run.steps(run.loader(train_set, batch_size=128), epochs=5):
        ...     loss = run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        replicas: int | None = None,
        out: str | Path | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        non_finite: str = "stop",
        strategy: str | StrategyOptions = "exact",
        threads: int | None = None,
        checkpoint_every: Every = None,
        checkpoints: CheckpointPolicy | None = None,
        device: str | None = None,
        settings: Mapping[str, Any] | None = None,
        allow_drift: bool = False,
        detail: bool = False,
        transport: Transport | str = "auto",
    ) -> None:
        seed = SEED.take("seed", seed)
        threads, replicas = THREADS.maybe("threads", threads), REPLICAS.maybe("replicas", replicas)
        check_every(checkpoint_every=checkpoint_every)
        self.seed, self.clipping = seed, Clipping(norm=clip_norm, value=clip_value)
        self.settings, self.between = checked_settings(settings), Between(seed)
        self._allow_drift = allow_drift
        self.strategy = chosen = resolve(strategy)
        self._joined = joined = Joined(transport, device, chosen, replicas, out, checkpoints, detail=detail)
        self.world, self.device, self.transport = joined.world, joined.device, joined.transport
        self._link, self._record = joined.link, joined.record
        self.phases, self.directory = joined.link.phases, joined.claim.directory
        self.first_look = FirstLook(is_leader=self.world.is_leader, best=getattr(checkpoints, "best", None))
        self.replicas, self.threads = joined.recorded(replicas, threads)
        set_determinism(self.threads)
        self.placement = [*chosen.place(self.replicas, world_size := self.world.world_size)]
        joined.serve(self)
        self.non_finite = NonFinite(non_finite, strategy=chosen.name, is_exact=chosen.is_exact)
        self._stepper: Stepper | None = None
        self._registered: dict[str, Any] = {"non_finite": self.non_finite} if self.non_finite.skips else {}
        facts = {"world_size": world_size, "replicas": self.replicas, "seed": seed, "strategy": chosen.name}
        self._progress = RunProgress(self._record, self._link, facts, checkpoint_every=checkpoint_every)
        manual_seed(seed)

    def prepare(self, model: nn.Module, optimizer: Optimizer, scheduler: Any = None) -> tuple[nn.Module, Optimizer]:
        """Take over model, optimizer and (optional) scheduler; collective.

        Args:
            model: Moved to the run's device. Wrap it in nothing: the strategy does the wrapping.
            optimizer: Of this model's parameters; `foreach` and `fused` are pinned where left open.
            scheduler: ``step()`` is called after every optimizer step.

        Returns:
            What to call in place of the model (with ``exact``, the model itself), and the same optimizer.

        Raises:
            ConfigError: The parts do not fit each other, cannot be trained exactly, or have nothing to train.
            EnvironmentDrift: Software, CPU capability or threads differ from the first launch.
            RankDivergence: The ranks have built different models or run on different software.
        """
        self._joined.claim.check()
        checks.check_kinds(model, optimizer, is_again=self._stepper is not None)
        own = ("transport", "placement", "seed", "device", "clipping")
        setting = StrategyContext(**{name: getattr(self, name) for name in own})
        parts = Parts(model.to(self.device), optimizer, scheduler, self._registered)
        environment = parts.compare(self.strategy, setting, threads=self.threads)
        self.first_look.at_parts(model, self.seed)
        self._record.check_environment(environment, allow_drift=self._allow_drift)
        parts.strategy = build(self.strategy, model, optimizer, setting)
        self._stepper = Stepper(
            parts, self.strategy, setting, progress=self._progress, record=self._record, link=self._link,
            between=self.between, non_finite=self.non_finite, first_look=self.first_look, live=self._joined.live,
        )  # fmt: skip
        return parts.strategy.front, optimizer

    def load_weights(self, path: str | Path, model: nn.Module | None = None, *, strict: bool = True) -> Loaded:
        """Put pretrained weights into every rank's model, all of them or none; before `steps`; collective.

        Args:
            path: Read by the leader alone; as `unisono.load_weights` takes it.
            model: One that `prepare` will get. None: the one that it has got.
            strict: Whether missing or unexpected names are an error.

        Raises:
            CheckpointError: The file cannot be read or does not fit; no rank's model has changed.
            ConfigError: There is no model yet; steps have begun; or copies of the model's weights would stay behind.
            RankDivergence: The ranks hold different weights where the file has none.
        """
        if model is not None:
            return load_on_all(self.transport, model, Path(path), strict=strict)
        return load_prepared(self._prepared(), self.strategy, Path(path), strict=strict, is_open=self._progress.is_open)

    def register(self, name: str, part: Any) -> None:
        """Save and restore one more object with every checkpoint: a scheduler stepped by hand, an average of weights.

        Call it before `steps`, with the object as it stands at the run's start.

        Args:
            name: Under which it is saved.
            part: With ``state_dict()`` and ``load_state_dict()``; the state holds tensors and JSON's types.

        Raises:
            ConfigError: The name is taken, the methods are missing, or the run has been opened already.
        """
        checks.check_new_part(name, part, self._registered, is_open=self._progress.is_open)
        self._registered[name] = part

    @answers_keywords
    def loader(
        self,
        dataset: Any,
        *,
        batch_size: int,
        transform: Transform | None = None,
        collate: Collate | None = None,
        shuffle: bool = True,
        num_workers: int = 0,
        prefetch: int = 2,
        plan: Plan | None = None,
    ) -> AnyLoader:
        """Return the training batches of this rank.

        Args:
            dataset: Map-style, or a `Stream`.
            batch_size: Samples per optimizer step, over all ranks.
            transform: Applied to each sample; its randomness is keyed by (seed, epoch, sample index).
            collate: From a list of samples to a micro-batch; torch's default where None.
            shuffle: A new order every epoch.
            num_workers: Processes per rank that fetch ahead.
            prefetch: Micro-batches each of them keeps ready.
            plan: Which sample comes when, as `Weighted` says it; None: each once an epoch, as `dataset` would have it.

        Raises:
            ConfigError: ``batch_size < 1``, not a map-style data set, or not a plan.
            DataError: The data set is empty, or the plan does not fit it.
        """
        self.first_look.at_sizes(batch_size := BATCH.take("batch_size", batch_size), self.replicas)
        how: Any = {"transform": transform, "collate": collate, "num_workers": num_workers, "prefetch": prefetch}
        return make_loader(self, dataset, batch_size, shuffle=shuffle, plan=plan, **how)

    def steps(self, loader: AnyLoader, *, epochs: int, max_steps: int | None = None) -> Generator[Batch]:
        """Yield the batches that are left to do, from the last checkpoint on; pass each to `step`.

        Opens the run directory first: checks the score, loads the newest valid checkpoint, cuts the ledger. Saves as it
        goes, and ``result.json`` at the end, also when the loop is left early. Called again, it goes on where it
        stopped. What the loop's body draws from torch's, Python's and NumPy's generators is keyed by the step.

        Args:
            loader: From `loader`.
            epochs: Passes over the data, counted from the run's start.
            max_steps: Stop after this many steps, counted from the run's start.

        Raises:
            ConfigError: `epochs` or `max_steps` is out of range, or `loader` is not from `loader`.
            ScoreMismatch: The run directory was started with another score.
            CheckpointError: There are checkpoints but none can be trusted.
            StepError: A batch was not passed to `step`.
        """
        epochs, max_steps = EPOCHS.take("epochs", epochs), STEPS.maybe("max_steps", max_steps)
        checks.check_loader(loader)
        self._joined.claim.use()
        stepper = self._need_stepper()
        last = last_step(loader, epochs, max_steps, self.world.last_step)
        score = functools.partial(describe_run, self, stepper.parts.description, self.strategy, loader)
        return self._joined.over(stepper.steps(loader, last, score))

    def step(self, batch: Batch, loss_function: LossFunction) -> float:
        """Do one optimizer step and return the mean loss over the whole batch; collective.

        Args:
            batch: From `steps`; each exactly once.
            loss_function: Gets one micro-batch, returns its mean loss.

        Raises:
            ConfigError: `batch` is not from `steps`.
            StepError: The batch has been used, or the loss is not a scalar with a graph.
            NonFiniteError: NaN or infinity in a loss or gradient; weights and checkpoints are untouched.
            RankDivergence: The ranks no longer hold the same weights.
            PeerLost: Another rank went away.
        """
        checks.check_batch(batch)
        return self._need_stepper().step(batch, loss_function)

    @answers_keywords
    def evaluate(
        self,
        dataset: Any,
        predict: Predict,
        metrics: Mapping[str, Metric],
        *,
        batch_size: int = BATCH_SIZE,
        collate: Collate | None = None,
        transform: Transform | None = None,
        num_workers: int = 0,
        inference_mode: bool = True,
        limit: int | None = None,
    ) -> dict[str, float]:
        """Return metrics over a data set: each sample once, bit-equal for any number of ranks; collective.

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

        Raises:
            ConfigError: A setting is out of range, or `predict` has returned something else than two values.
        """
        batch_size, limit = BATCH.take("batch_size", batch_size), SAMPLES.maybe("limit", limit)
        fetcher = Fetcher(dataset, self.seed, transform=transform, collate=collate)
        return self._need_stepper().evaluate(
            fetcher, predict, metrics, batch_size=batch_size, num_workers=num_workers, inference_mode=inference_mode,
            limit=limit,
        )  # fmt: skip

    def record(self, metrics: Mapping[str, float]) -> None:
        """Add metrics, measured with the present weights, to ``result.json`` and to a checkpoint of this step."""
        self.first_look.measured |= metrics.keys()
        self._progress.measured(metrics)

    def stop(self, reason: str) -> None:
        """End `steps` after the step that is done, as if it were the last; called by all ranks alike."""
        self._progress.stopped_by = reason

    def fingerprint(self) -> str:
        """Return the SHA-256 over the model's parameters and buffers in name order."""
        return self._progress.fingerprint(self._prepared())

    def result(self) -> dict[str, Any]:
        """Return what ``result.json`` holds; empty before the last step is done."""
        return dict(self._progress.result)

    def close(self) -> None:
        """Leave the world, with everything kept that the last loop has done; safe to call twice."""
        self._joined.leave(self._progress, None if self._stepper is None else self._stepper.parts.strategy)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepared(self) -> Parts:
        return self._need_stepper().parts

    def _need_stepper(self) -> Stepper:
        if self._stepper is None:
            raise ConfigError("expected run.prepare(model, optimizer) first.")
        return self._stepper
