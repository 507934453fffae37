"""Own the loop: `Run` gives a training loop its exact step, its data order, its ledger and its checkpoints."""

import functools
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, final, overload

from torch import manual_seed, nn
from torch.optim import Optimizer

from unisono.checkpoint.policy import BestSoFar, CheckpointPolicy
from unisono.collectives.transport import Transport
from unisono.data.loader import Collate, Transform
from unisono.data.plans.batch_schedule import BatchSchedule, schedule_of
from unisono.data.plans.plan import Plan
from unisono.data.sources.loaders import AnyDataset, AnyLoader, last_step, make_loader
from unisono.determinism.switches import set_determinism
from unisono.errors import ConfigError
from unisono.options.keywords import answers_keywords
from unisono.options.quantities import EPOCHS, REPLICAS, SEED, STEPS, THREADS
from unisono.strategies.base import StrategyContext
from unisono.strategies.build import build
from unisono.strategies.catalog import resolve
from unisono.strategies.objective import Embed, LossFunction, Objective, WeightFunction
from unisono.strategies.options import StrategyOptions
from unisono.strategies.parts.clipping import Clipping
from unisono.strategies.precision import MixedPrecision
from unisono.strategies.precisions import precision_of
from unisono.system.messages import explain_uncaught
from unisono.train.guards import checks
from unisono.train.guards.first_look import FirstLook
from unisono.train.guards.several import check_several
from unisono.train.guards.unpacked import count_names
from unisono.train.intervals import Every, check_every
from unisono.train.run_directory.run_progress import RunProgress
from unisono.train.run_state import RunState
from unisono.train.score import checked_settings, describe_run
from unisono.train.steps.examined import Examined
from unisono.train.steps.joined import Joined
from unisono.train.steps.keyed_generators import Between
from unisono.train.steps.lines import shown
from unisono.train.steps.loop import Batch
from unisono.train.steps.non_finite import NonFinite
from unisono.train.steps.stepper import Stepper
from unisono.train.trained_parts import Limits, M, Models, Optim, Optimizers, Parts, S


@final
class Run(RunState):
    """A training run: one process of it, which finds the others where a launcher has started some.

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
        precision: ``bf16``, ``fp16``: losses and evaluations are computed under autocast, those of ``fp16`` scaled so
            that small gradients do not vanish; weights, gradients and sums stay float32. Part of the score.
        threads: Threads per process on the CPU; changes bits, so it is part of the score. Unset: those of the run
            that is resumed, else what the launcher or ``OMP_NUM_THREADS`` asks for, else 1.
        checkpoint_every: Steps between checkpoints, or ``"2 epochs"``; None: an epoch. The last step is always saved.
        checkpoints: How they are written, which are kept; None: the newest two, written in the background.
        device: ``cpu``, ``cuda`` or ``cuda:N``; unset, each local rank's own GPU where there are any, else the CPU.
        settings: More of the score, plain values by name, for instance what a recipe was called with.
        allow_drift: Go on although software, CPU capability, modules or the first samples differ from the first launch.
        detail: Record in ``detail.jsonl`` what each step is made of, for `unisono diff`: the same bits, but slower.
        witness: Share of steps (0 to 1) in which two ranks compute one replica and compare. Unset: ``--witness``, or 0.
        transport: ``auto``: shared memory between CPU ranks of one host, else the process group. ``gloo``, ``mpi``:
            that process group. Or an object that joins the ranks (`run_ranks` gives one). Never changes a bit.

    Attributes:
        world: This process's place: rank, number of ranks, whether it is the leader; see `World`.
        replicas: Logical workers into which a batch is cut.
        placement: For each rank the range of replicas that it computes.
        device: Where the model is, and micro-batches come to.
        threads: Threads of this process on the CPU.
        seed: Seed of everything random.
        strategy: Name and options of the strategy, as ``unisono.strategy`` returns them.
        precision: What losses and evaluations are computed in; its ``name`` is the argument's.
        clipping: Limits of the gradient: ``norm`` and ``value``, or None.
        non_finite: What NaN or infinity does; its ``skips`` says whether such steps are skipped.
        settings: More of the score, plain values by name.
        directory: The run directory, or None.
        transport: Joins the ranks: its ``exchange``, ``broadcast`` and the like are collective.
        phases: Records how long each phase of a step takes.

    Raises:
        ConfigError: A setting is out of range, the world is larger than `replicas`, or another run uses the directory.
        WorldError: The launcher's variables are incomplete.

    Example:
        >>> run = Run(seed=0, replicas=8)  # doctest: +SKIP
        >>> model, optimizer = run.prepare(model, torch.optim.Adam(model.parameters()))
        >>> for batch in run.steps(run.loader(train_set, batch_size=128), epochs=5):
        ...     loss = run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    """

    @answers_keywords
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
        precision: str = "fp32",
        threads: int | None = None,
        checkpoint_every: Every = None,
        checkpoints: CheckpointPolicy | None = None,
        device: str | None = None,
        settings: Mapping[str, Any] | None = None,
        allow_drift: bool = False,
        detail: bool = False,
        witness: float | None = None,
        transport: Transport | str = "auto",
    ) -> None:
        explain_uncaught()
        if seed is None:
            raise ConfigError("expected seed as a whole number, got None. Hint: leave it out, or seed=0.")
        seed = SEED.take("seed", seed)
        threads, replicas = THREADS.maybe("threads", threads), REPLICAS.maybe("replicas", replicas)
        check_every(checkpoint_every=checkpoint_every)
        self.seed, self.clipping = seed, Clipping(norm=clip_norm, value=clip_value)
        self.settings, self.between = checked_settings(settings), Between(seed)
        self._allow_drift = allow_drift
        self.strategy = chosen = resolve(strategy)
        precision = precision_of(chosen, precision)
        place = (transport, device, chosen, replicas, out, checkpoints)
        self._joined = joined = Joined(*place, witness=witness, detail=detail)
        self.world, self.device, self.transport = joined.world, joined.device, joined.transport
        self._link, self._record = joined.link, joined.record
        self.precision = MixedPrecision(precision, self.device.type)
        self.phases, self.directory = joined.link.phases, joined.claim.directory
        self._best = BestSoFar(checkpoints)
        self.first_look = FirstLook(is_leader=self.world.is_leader, best=getattr(checkpoints, "best", None))
        self.replicas, self.threads = joined.recorded(replicas, threads)
        set_determinism(self.threads)
        self.placement = [*chosen.place(self.replicas, world_size := self.world.world_size)]
        self.non_finite = NonFinite(non_finite, strategy=chosen.name, is_exact=chosen.is_exact)
        self._stepper: Stepper | None = None
        self._objective: Objective | None = None  # of the step before
        self._registered: dict[str, Any] = {"non_finite": self.non_finite} if self.non_finite.skips else {}
        facts = {"world_size": world_size, "replicas": self.replicas, "seed": seed, "strategy": chosen.name}
        self._progress = RunProgress(self._record, self._link, facts, checkpoint_every=checkpoint_every)
        joined.serve(self, self._progress)
        manual_seed(seed)

    @overload
    def prepare(self, model: M, optimizer: Optim) -> tuple[M, Optim]: ...

    @overload
    def prepare(self, model: M, optimizer: Optim, scheduler: S) -> tuple[M, Optim, S]: ...

    @overload
    def prepare(
        self, model: Models, optimizer: Optimizers, *, clip_norm: Limits = None
    ) -> tuple[dict[str, nn.Module], dict[str, Optimizer]]: ...

    @overload
    def prepare(
        self, model: Models, optimizer: Optimizers, scheduler: Mapping[str, S], *, clip_norm: Limits = None
    ) -> tuple[dict[str, nn.Module], dict[str, Optimizer], dict[str, S]]: ...

    @answers_keywords
    def prepare(self, model: Any, optimizer: Any, scheduler: Any = None, *, clip_norm: Limits = None) -> Any:
        """Take over model, optimizer and (optional) scheduler, or several of each by name; collective.

        Args:
            model: Moved to the run's device. Wrap it in nothing: the strategy does the wrapping. Of several, those
                without an optimizer (a teacher, an average of weights) are saved and compared like the others.
            optimizer: Of this model's parameters; `foreach` and `fused` are pinned where left open. One of several may
                hold parameters of any model, but none that another one holds.
            scheduler: ``step()`` is called after every optimizer step; of several, by the names of their optimizers.
            clip_norm: Of several optimizers, by name: `Run`'s setting for this one alone.

        Returns:
            What was given, in this order: what to call in place of the model (with ``exact``, the model itself), the
            same optimizer, and a scheduler where there is one; of several, dictionaries. Two names get the first two.

        Raises:
            TypeError: The line takes more than three names.
            ConfigError: The parts do not fit each other, cannot be trained exactly, or have nothing to train.
            EnvironmentDrift: Software, CPU capability or threads differ from the first launch.
            RankDivergence: The ranks have built different models or run on different software.
        """
        count = count_names(depth=3) or (2 if scheduler is None else 3)
        self._joined.claim.check()
        checks.check_again(is_again=self._stepper is not None)
        front, limits = None, None
        if isinstance(model, Mapping) or isinstance(optimizer, Mapping) or clip_norm is not None:
            limits = check_several(
                model, optimizer, scheduler, clip_norm, self.clipping, self.strategy, self.precision.name
            )
            front, optimizer, scheduler = dict(model), dict(optimizer), dict(scheduler or {})
            model = nn.ModuleDict(front)
        checks.check_kinds(model, optimizer if limits is None else next(iter(optimizer.values())))
        own = ("transport", "placement", "seed", "device", "clipping", "precision")
        setting = StrategyContext(**{name: getattr(self, name) for name in own})
        parts = Parts(model.to(self.device), optimizer, scheduler, self._registered, limits)
        environment = parts.compare(self.strategy, setting, threads=self.threads, witness=self._joined.witness)
        self.first_look.at_parts(parts, self.seed)
        self._record.check_environment(environment, allow_drift=self._allow_drift)
        self._record.ledgers.compares = self.strategy.is_repeatable and self.world.is_leader and not self._allow_drift
        parts.strategy = build(self.strategy, model, optimizer, setting)
        kind = Stepper if self.world.examine is None else functools.partial(Examined, examine=self.world.examine)
        self._stepper = kind(
            parts, self.strategy, setting, progress=self._progress, record=self._record, link=self._link,
            between=self.between, non_finite=self.non_finite, first_look=self.first_look, live=self._joined.live,
        )  # fmt: skip
        return (front or parts.strategy.front, optimizer, scheduler)[:count]

    @answers_keywords
    def loader(
        self,
        dataset: AnyDataset,
        *,
        batch_size: int | BatchSchedule,
        transform: Transform | None = None,
        collate: Collate | None = None,
        shuffle: bool = True,
        num_workers: int = 0,
        prefetch: int = 2,
        plan: Plan | None = None,
        last: str = "short",
    ) -> AnyLoader:
        """Return the training batches of this rank.

        Args:
            dataset: Map-style, or a `Stream`.
            batch_size: Samples per optimizer step, over all ranks; a `BatchSchedule` where they change.
            transform: Applied to each sample; its randomness is keyed by (seed, epoch, sample index).
            collate: From a list of samples to a micro-batch; torch's default where None.
            shuffle: A new order every epoch.
            num_workers: Processes per rank that fetch ahead.
            prefetch: Micro-batches each of them keeps ready.
            plan: Which sample comes when, as `Weighted` says it; None: each once an epoch, as `dataset` would have it.
            last: What becomes of samples that do not fill an epoch's last batch: a ``short`` batch; ``drop`` leaves
                them out; ``join`` adds them to the batch before. Part of the score.

        Raises:
            ConfigError: ``batch_size < 1``, not a map-style data set, not a plan, or another `last`.
            DataError: The data set is empty, the plan does not fit it, or ``drop`` leaves nothing.
        """
        how: Any = {"transform": transform, "collate": collate, "num_workers": num_workers, "prefetch": prefetch}
        made = make_loader(self, dataset, size := schedule_of(batch_size), shuffle=shuffle, plan=plan, last=last, **how)
        self.first_look.at_sizes(size.first, self.replicas, getattr(made, "sampler", None))
        return made

    @answers_keywords
    def steps(
        self, loader: AnyLoader, *, epochs: int | None = None, max_steps: int | None = None, show_progress: bool = True
    ) -> Generator[Batch]:
        """Yield the batches that are left to do, from the last checkpoint on; pass each to `step`.

        Opens the run directory first: checks the score, loads the newest valid checkpoint, cuts the ledger. Saves as it
        goes, and ``result.json`` at the end, also when the loop is left early. Called again, it goes on where it
        stopped. What the loop's body draws from torch's, Python's and NumPy's generators is keyed by the step.

        Args:
            loader: From `loader`.
            epochs: Passes over the data, counted from the run's start; None: no end, where `max_steps` sets one.
            max_steps: Stop after this many steps, counted from the run's start.
            show_progress: Whether the leader shows a line every five seconds on a terminal, a bar in a notebook's cell.

        Raises:
            ConfigError: `epochs` or `max_steps` is out of range, both are None, or `loader` is not from `loader`.
            ScoreMismatch: The run directory was started with another score.
            CheckpointError: There are checkpoints but none can be trusted.
            StepError: A batch was not passed to `step`.
        """
        epochs, max_steps = EPOCHS.maybe("epochs", epochs), STEPS.maybe("max_steps", max_steps)
        checks.check_loader(loader)
        self._joined.claim.use()
        stepper = self._need_stepper()
        last = last_step(loader, epochs, max_steps, self.world.last_step)
        self._joined.watch(stepper, loader)
        score = functools.partial(describe_run, self, stepper.parts.description, self.strategy, loader)
        steps = stepper.steps(loader, last, score)
        if show_progress:
            steps = shown(steps, self.world, (self._describe_start(), self.directory), last, loader.cuts,
                          lambda: stepper.loss, self.phases, self._progress.usage.now)  # fmt: skip
        return self._joined.over(steps)

    @answers_keywords
    def step(
        self,
        batch: Batch,
        loss_function: LossFunction,
        *,
        weight: WeightFunction | None = None,
        reduction: str = "mean",
        update: str | None = None,
        embed: Embed | None = None,
    ) -> float:
        """Do one optimizer step and return the mean loss over the whole batch, a float (so no ``.item()``); collective.

        Args:
            batch: From `steps`; each exactly once, or with several optimizers as often as you like.
            loss_function: Gets one micro-batch, returns its mean loss; with `embed`, the loss over the whole batch.
            weight: Gets it too, after that: how much the mean counts (its tokens, say), at least 0. None: its samples.
            reduction: ``sum``: the losses are sums, and the step's is their sum over that of the weights, where there
                are some. Both belong to the score.
            update: Of several optimizers the one that steps, by name; only its parameters get gradients.
            embed: For a loss over the whole batch: from a micro-batch to tensors with a row per sample. `loss_function`
                gets the same for all samples, in order. Called twice per micro-batch, with the same generators.

        Raises:
            ConfigError: `batch` is not from `steps`, or the strategy has no weights or knows no `embed`.
            ScoreMismatch: The steps before had a weight, or another reduction, and this one has not.
            StepError: The batch has been used, no optimizer has that name, the loss is not a scalar with a graph,
                `embed` is not repeatable, or a weight no finite number of at least 0; or all are 0.
            NonFiniteError: NaN or infinity in a loss or gradient; weights and checkpoints are untouched.
            RankDivergence: The ranks no longer hold the same weights.
            PeerLost: Another rank went away.
        """
        checks.check_batch(batch)
        if self._objective is None or not self._objective.asks(weight, reduction, update, embed):
            asked = Objective(loss_function, weight, reduction, update, embed=embed)
            self._objective = checks.check_objective(asked, self.strategy)
        return (self._stepper or self._need_stepper()).step(batch, self._objective, loss_function)
