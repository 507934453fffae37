"""What a run trains: model, optimizer, scheduler, and whatever else it has been given to keep."""

from collections.abc import Callable
from typing import Any, final

from torch import nn
from torch.optim import Optimizer

from unisono.checkpoint.format import State, check_storable
from unisono.determinism import compiler
from unisono.determinism.flags import FlagWatch
from unisono.determinism.optimizer_step import spared
from unisono.determinism.switches import describe_environment
from unisono.errors import CheckpointError, ConfigError, StepError
from unisono.strategies.base import Strategy, StrategyContext
from unisono.strategies.options import StrategyOptions
from unisono.train.guards.checks import check_clipping, check_layers, check_parts
from unisono.train.loop import check_alike, pin
from unisono.train.score import describe_model, describe_optimizer


@final
class Parts:
    """The objects whose state is the run's state.

    Args:
        model: On its device already.
        optimizer: Of its parameters; `foreach` and `fused` are pinned where left open.
        scheduler: Or None.
        registered: More objects with ``state_dict``, by name; may still grow.

    Attributes:
        strategy: Knows how the state is spread over the ranks; set once it is built.
        flags: Torch's, as they were recorded; set by `compare`.
        before_pack: Called with the parts before each `pack`.
        is_changing: Whether a step is under way: until its end, the state is of no step, and the optimizer may step.

    Raises:
        ConfigError: See `check_parts`.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, scheduler: Any, registered: dict[str, Any]) -> None:
        check_parts(model, optimizer, scheduler)
        pin(optimizer)
        optimizer.register_step_pre_hook(self._refuse_foreign_step)
        self._num_groups = len(optimizer.param_groups)
        self.model, self.optimizer, self.scheduler, self.registered = model, optimizer, scheduler, registered
        self.strategy: Strategy
        self.flags: FlagWatch
        self.is_changing = False
        self.before_pack: Callable[[Parts], None] = lambda _: None
        self.description = {
            "model": describe_model(model),
            "optimizer": describe_optimizer(optimizer, scheduler),
        }

    def compare(self, options: StrategyOptions, setting: StrategyContext, *, threads: int) -> dict[str, Any]:
        """Compare what all ranks have built, and on what; return the environment; collective.

        Raises:
            ConfigError: The strategy, or the clipping, does not fit the model; or see `describe_environment`.
            RankDivergence: The ranks have built different parts, or run on different software.
        """
        compiler.treat_shapes_alike()  # again: the program may have imported it since the run began
        check_clipping(setting.clipping, self.model)
        check_layers(self.model, options)
        environment = describe_environment(threads=threads, device=setting.device)
        if not options.is_exact:
            environment["world_size"] = setting.transport.world_size
        check_alike(setting.transport, self.description, environment)
        self.flags = FlagWatch(setting.device.type)
        return environment

    def check_groups(self) -> None:
        """Refuse (`StepError`) an optimizer with new groups: a resumed run would not have them when it loads."""
        if len(self.optimizer.param_groups) != self._num_groups:
            raise StepError(self._regrouped())

    def pack(self) -> State:
        """Return the state of all parts, with the live tensors; `CheckpointError` for new groups of the optimizer."""
        if len(self.optimizer.param_groups) != self._num_groups:
            raise CheckpointError(self._regrouped())
        self.before_pack(self)
        return self.strategy.pack(self.scheduler, self.registered)

    def check_storable(self, *, is_begun: bool = False) -> None:
        """Refuse (`ConfigError`) what could not be saved later; of the optimizer alone after a step (`is_begun`)."""
        try:
            if is_begun:
                check_storable(self.optimizer)
            else:
                check_storable(self.optimizer, self.model, self.scheduler, self.registered)
        except CheckpointError as error:
            raise ConfigError(
                f"{error} Hint: no checkpoint of this run could be written. Keep it out of the state, or turn it into "
                "plain values; without out= (--out) nothing is saved."
            ) from error

    def unpack(self, state: State) -> None:
        """Put a state back into the live objects.

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
        self.strategy.unpack(state, self.scheduler, self.registered)

    def _regrouped(self) -> str:
        return (
            f"optimizer.add_param_group() was called after run.prepare(): {len(self.optimizer.param_groups)} groups "
            f"instead of {self._num_groups}, and a resumed run has to have them before it loads a checkpoint. "
            "Hint: give the optimizer all parameters before run.prepare(), those that are to learn later in a group of "
            "their own and with requires_grad_(False); requires_grad_(True) in the loop, by the step's number, lets "
            "them begin, and the group's 'lr' may be set there too."
        )

    @spared
    def _refuse_foreign_step(self, *_: Any) -> None:
        if not self.is_changing:
            raise StepError(
                "optimizer.step() was called outside run.step(), which does backward, reduction and update itself. "
                "Hint: return the loss from the function that run.step() is given, and call nothing else."
            )
