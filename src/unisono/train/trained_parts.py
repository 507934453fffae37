"""What a run trains: model, optimizer, scheduler (or several by name), and whatever else it has been given to keep."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar, final

import torch
from torch import nn
from torch.optim import Optimizer

from unisono.checkpoint.format import State, check_storable
from unisono.determinism import compiler
from unisono.determinism.flags import FlagWatch
from unisono.determinism.optimizer_step import spared
from unisono.determinism.switches import describe_environment
from unisono.errors import CheckpointError, ConfigError, StepError
from unisono.observe.compare import MODULES
from unisono.strategies.base import Strategy, StrategyContext
from unisono.strategies.options import StrategyOptions
from unisono.strategies.parts.clipping import Clipping
from unisono.train.guards.between_steps import BetweenSteps
from unisono.train.guards.checks import check_clipping, check_closure, check_layers, check_parts, check_precision
from unisono.train.guards.unkept import Unkept
from unisono.train.run_directory.fork import change_settings, settings_of
from unisono.train.score import describe_model, describe_modules, describe_optimizer
from unisono.train.steps.closures import takes_closure
from unisono.train.steps.loop import check_alike, pin
from unisono.train.steps.updates import Update

M = TypeVar("M", bound=nn.Module)
Optim = TypeVar("Optim", bound=Optimizer)
S = TypeVar("S")
Models: TypeAlias = Mapping[str, nn.Module]
Optimizers: TypeAlias = Mapping[str, Optimizer]
Limits: TypeAlias = Mapping[str, float] | None

_PROBED = {torch.float64, torch.bfloat16, torch.float16}


@final
class Parts:
    """The objects whose state is the run's state.

    Args:
        model: On its device already.
        optimizer: Of its parameters; `foreach` and `fused` are pinned where left open. Or several by name.
        scheduler: Or None; beside several optimizers, those there are by name.
        registered: More objects with ``state_dict``, by name; may still grow.
        limits: How the gradients of each of several optimizers are limited.

    Attributes:
        optimizers: By name; one alone has the name "".
        schedulers: By the name of their optimizer.
        updates: What each of several optimizers does; none where there is one.
        strategy: Knows how the state is spread over the ranks; set once it is built.
        flags: Torch's, as they were recorded; set by `compare`.
        environment: What `compare` has returned.
        before_pack: Called with the parts before each `pack`.
        takes_closure: Whether the optimizer computes the loss itself, several times in a step.
        unkept: What the loop changes beside them.
        replaced: Settings that the program had set since `run.prepare` when a state with others was put back: the
            optimizer's name, the group's number, the setting, its value, the state's.
        is_changing: Whether a step is under way: until its end, the state is of no step, and the optimizer may step.

    Raises:
        ConfigError: See `check_parts`.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer | Mapping[str, Optimizer], scheduler: Any,
        registered: dict[str, Any], limits: Mapping[str, Clipping] | None = None,
    ) -> None:  # fmt: skip
        self.scheduler, self.registered, self.unkept = scheduler, registered, Unkept(model, registered)
        self.optimizers = {**optimizer} if isinstance(optimizer, Mapping) else {"": optimizer}
        self.schedulers: dict[str, Any] = (
            scheduler if limits is not None else {} if scheduler is None else {"": scheduler}
        )
        check_parts(model, self.optimizers, self.schedulers)
        for each in self.optimizers.values():
            pin(each)
            each.register_step_pre_hook(self._refuse_foreign_step)
        self._num_groups = {name: len(each.param_groups) for name, each in self.optimizers.items()}
        self._counted = [(each, self._num_groups[name]) for name, each in self.optimizers.items()]
        self.model = model
        self.replaced: list[tuple[str, int, str, Any, Any]] = []
        self.strategy: Strategy
        self.flags: FlagWatch
        self.environment: dict[str, Any]
        self.is_changing, self.takes_closure = False, limits is None and takes_closure(self.optimizers[""])
        self.before_pack: Callable[[Parts], None] = lambda _: None
        told = {name: describe_optimizer(each, self.schedulers.get(name)) for name, each in self.optimizers.items()}
        self.description: dict[str, Any] = {"model": describe_model(model), MODULES: describe_modules(model)}
        self.updates: dict[str, Update] = {}
        if limits is None:
            self.description["optimizer"] = told[""]
        else:
            kinds = {name: type(each).__qualname__ for name, each in model.named_children()}
            self.description["model"]["class"] = kinds
            self.description["optimizers"] = {name: {**each, **limits[name].score} for name, each in told.items()}
            for name, each in self.optimizers.items():
                self.updates[name] = Update(each, self.schedulers.get(name), limits[name], model)

    def compare(
        self, options: StrategyOptions, setting: StrategyContext, *, threads: int, witness: float = 0.0
    ) -> dict[str, Any]:
        """Compare what all ranks have built, and on what; return the environment; collective.

        Raises:
            ConfigError: The strategy, or the clipping, does not fit the model; or see `describe_environment`.
            RankDivergence: The ranks have built different parts, or run on different software.
        """
        compiler.treat_shapes_alike()  # again: the program may have imported it since the run began
        check_clipping(setting.clipping, self.model)
        check_layers(self.model, options)
        check_precision(setting.precision.name, self.model)
        if self.takes_closure:
            check_closure(self.optimizers[""], options, setting, skips="non_finite" in self.registered)
        own = {parameter.dtype for parameter in self.model.parameters()} & _PROBED
        computes = sorted({*own, *setting.precision.computes}, key=str)
        environment = describe_environment(threads=threads, device=setting.device, computes=computes)
        if not options.is_exact:
            environment["world_size"] = setting.transport.world_size
        placement = {f"rank {rank}": [hosted.start, hosted.stop] for rank, hosted in enumerate(setting.placement)}
        settings = {"seed": setting.seed, "witness": witness, "replicas from, to": placement}
        check_alike(setting.transport, self.description, environment, settings)
        self.flags, self.environment = FlagWatch(setting.device.type), environment
        return environment

    def evaluated(self) -> nn.Module:
        """Return what evaluations switch to evaluation mode: the model, and what is registered beside it."""
        beside = [each for each in self.registered.values() if isinstance(each, nn.Module)]
        return nn.ModuleList([self.model, *beside]) if beside else self.model

    def begin_steps(self) -> None:
        """Note what the loop between the steps may not change; once the strategy is built."""
        parts = self.optimizers.values(), self.schedulers.values()
        self._between = BetweenSteps(self.model, *parts, is_kept=not self.strategy.is_sharded)

    def updated(self) -> None:
        """Note the end of an update."""
        self.is_changing = False
        self._between.note()

    def check_loop(self, step: int) -> None:
        """Refuse (`StepError`) what the loop may not change between two steps; parameters, where steps have doubled."""
        for each, count in self._counted:
            if len(each.param_groups) != count:
                self.check_groups()
        self._between.check_gradients(step)
        self._between.check_schedules(step)
        if not step & (step - 1):
            self._between.check_parameters()

    def check_iteration(self, step: int, *, speaks: bool) -> None:
        """See `check_loop`, before a step; warn of numbers that the loop keeps, where this rank `speaks`."""
        self.check_loop(step)
        self.unkept.look_at_numbers(step, speaks=speaks)

    def end_iteration(self, step: int, *, speaks: bool) -> None:
        """See `check_loop`, at the end of the loop's body; warn of parameters that nothing trains."""
        self.check_loop(step)
        self.unkept.end_iteration(step, speaks=speaks)

    def check_groups(self) -> None:
        """Refuse (`StepError`) an optimizer with new groups: a resumed run would not have them when it loads."""
        for name, each in self.optimizers.items():
            if len(each.param_groups) != self._num_groups[name]:
                raise StepError(self._regrouped(name))

    def pack(self) -> State:
        """Return the state of all parts, with the live tensors; `CheckpointError` for new groups or parameters."""
        try:
            self.check_groups()
            self._between.check_parameters()
        except StepError as error:
            raise CheckpointError(str(error)) from None
        self.before_pack(self)
        return self.strategy.pack(self.scheduler, self.registered)

    def check_storable(self, *, is_begun: bool = False) -> None:
        """Refuse (`ConfigError`) what could not be saved later; of the optimizer alone after a step (`is_begun`)."""
        try:
            if is_begun:
                check_storable(self.optimizers.values())
            else:
                check_storable(self.optimizers.values(), self.model, self.schedulers.values(), self.registered)
        except CheckpointError as error:
            raise ConfigError(
                f"{error} Hint: no checkpoint of this run could be written. Keep it out of the state, or turn it into "
                "plain values; without out= (--out) nothing is saved."
            ) from error

    def unpack(self, state: State, fork: dict[str, Any] | None = None) -> None:
        """Put a state back into the live objects; where it is the parent's of a `fork`, change what this one changes.

        Raises:
            CheckpointError: It is of another model or optimizer.
            ConfigError: It holds other registered parts.
        """
        registered = state.values.get("objects")
        if isinstance(registered, dict) and registered.keys() != self.registered.keys():
            raise ConfigError(
                f"the checkpoint holds the registered parts {sorted(registered)}, this program registers "
                f"{sorted(self.registered)}. Hint: call run.register() for the same names as when it was saved."
            )
        begun = {name: settings_of(each) for name, each in self.optimizers.items()}
        before = self._described_groups()
        self.strategy.unpack(state, self.scheduler, self.registered)
        if fork is not None:
            own, parents = (told.get("optimizers") or {"": told.get("optimizer")} for told in (self.description, fork))
            for name, each in self.optimizers.items():
                change_settings(each, self.schedulers.get(name), begun[name], own[name], parents.get(name))
        self.replaced = [*self._replaced(before)]

    def _described_groups(self) -> dict[str, list[dict[str, Any]]]:
        return {name: describe_optimizer(each, None)["groups"] for name, each in self.optimizers.items()}

    def _replaced(self, before: dict[str, list[dict[str, Any]]]) -> Iterator[tuple[str, int, str, Any, Any]]:
        """Yield what the program had set since `run.prepare`, and a state has replaced; see `replaced`."""
        prepared = self.description.get("optimizers") or {"": self.description["optimizer"]}
        now = self._described_groups()
        for name, groups in before.items():
            both = zip(groups, prepared[name]["groups"], now[name], strict=True)
            for number, (group, first, loaded) in enumerate(both):
                if "initial_lr" in group and "initial_lr" not in first:
                    continue  # a schedule was made meanwhile, and has begun to move the settings
                for key, value in group.items():
                    if value not in (first.get(key), loaded.get(key)):
                        yield name, number, key, value, loaded.get(key)

    def _regrouped(self, name: str) -> str:
        return (
            f"{name and f'{name}: '}optimizer.add_param_group() was called after run.prepare(): "
            f"{len(self.optimizers[name].param_groups)} groups instead of {self._num_groups[name]}, and a resumed run "
            "has to have them before it loads a checkpoint. "
            "Hint: give the optimizer all parameters before run.prepare(), those that are to learn later in a group of "
            "their own and with requires_grad_(False); requires_grad_(True) in the loop, by the step's number, lets "
            "them begin, and the group's 'lr' may be set there too."
        )

    @spared
    def _refuse_foreign_step(self, *_: Any) -> None:
        if not self.is_changing:
            raise StepError(
                "optimizer.step() was called outside run.step(), which does backward, reduction and update itself. "
                "Hint: return the loss from the function that run.step() is given, and call nothing else; to "
                "accumulate gradients take a larger batch_size, with more replicas."
            )
