"""`Fabric`: Lightning Fabric's interface over a `Run`, for scripts that keep their loop and change the import line.

The V replicas are the script's processes. While training, a loader hands out the micro-batches that this rank hosts,
one in a turn of the loop; `backward` adds a leaf to the canonical tree, and the optimizer acts when the batch is whole.
While evaluating, every rank has all the data, so that what it finds is the same on any number of ranks.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from unisono.compat.fabric.loaders import FabricLoader
from unisono.compat.fabric.saving import Saving
from unisono.compat.fabric.schedules import Schedules
from unisono.compat.fabric.settings import (
    WORDS,
    check_strategy,
    device_of,
    precision_of,
    processes_of,
    seed_everything,
)
from unisono.compat.interface import refuse_second_optimizer
from unisono.compat.parts import PreparedOptimizer
from unisono.compat.seeds import SEEDS, give_replicas
from unisono.compat.turns import Turns
from unisono.errors import ConfigError
from unisono.options.quantities import REPLICAS, STEPS
from unisono.train.run import Run


@final
class Fabric(Saving):
    """Fabric's ``Fabric`` with a `Run` underneath.

    Args:
        accelerator: ``auto``, ``cpu``, ``gpu`` or ``cuda``.
        strategy: ``auto`` or ``ddp``, without effect: the run's is `exact`.
        devices: Processes of a host, where it is a number or a list: replicas, computed by the workers that are there.
        num_nodes: Hosts of the script; `devices` is multiplied by it.
        precision: ``32-true`` or ``bf16-mixed``.
        plugins: Refused.
        callbacks: Objects for `call`.
        loggers: Objects with ``log_metrics(metrics, step=)``, for `log`; called on rank 0.
        accumulate_grad_batches: Batches of each process in a step, where a script accumulates gradients.
        replicas: V, in place of `devices`. Unset both: that of the run that is resumed, or the launcher's, or the world
            size of the first launch.
        out: The run directory, where a run that is found there is resumed; None keeps nothing.
        settings: Of `Run`: ``threads``, ``checkpoint_every``, ...

    Attributes:
        accumulate_grad_batches: As above.
        loggers: As above.

    Raises:
        ConfigError: A setting is out of range, or cannot be honoured exactly.

    Example:
        >>> fabric = Fabric(devices=8, out="runs/mine")  # doctest: +SKIP
        >>> model, optimizer = fabric.setup(model, optimizer)
        >>> loader = fabric.setup_dataloaders(loader)
        >>> for x, y in loader:
        ...     optimizer.zero_grad()
        ...     fabric.backward(F.cross_entropy(model(x), y))
        ...     optimizer.step()
    """

    seed_everything = staticmethod(seed_everything)
    _underneath = "fabric.unisono"

    def __init__(
        self,
        *,
        accelerator: str = "auto",
        strategy: str = "auto",
        devices: Any = "auto",
        num_nodes: int = 1,
        precision: Any = None,
        plugins: Any = None,
        callbacks: Any = None,
        loggers: Any = None,
        accumulate_grad_batches: int = 1,
        replicas: int | None = None,
        out: str | Path | None = None,
        **settings: Any,
    ) -> None:
        check_strategy(strategy, plugins)
        self._precision = precision_of(precision)
        processes = REPLICAS.maybe("replicas", replicas) or processes_of(devices, num_nodes)
        self.accumulate_grad_batches = steps = STEPS.take("accumulate_grad_batches", accumulate_grad_batches)
        settings = {"seed": SEEDS.pending, "device": device_of(accelerator)} | settings
        replicas = None if processes is None else processes * steps
        self.unisono = self._run = run = Run(out=out, replicas=replicas, **settings)
        self.world_size = give_replicas(
            run, steps, is_told=processes is not None, accumulate="accumulate_grad_batches"
        )  # fmt: skip
        placed = run.strategy.place(self.world_size, run.world.world_size)
        run.placement[:] = [range(mine.start * steps, mine.stop * steps) for mine in placed]
        run.settings.update({"processes": self.world_size, "mixed_precision": self._precision})
        self._callbacks, self.loggers = _listed(callbacks), _listed(loggers)
        self._turns = Turns(run, WORDS)
        self._schedules = Schedules(run, self._turns, len(placed[run.world.rank]))
        self._models, self._loaders = list[nn.Module](), list[FabricLoader]()
        SEEDS.enter(run)

    @property
    def logger(self) -> Any:
        """The first of the loggers."""
        return self.loggers[0]

    def launch(self, function: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Return what ``function(fabric, ...)`` returns on this rank; the launcher has made the processes."""
        return None if function is None else function(self, *args, **kwargs)

    def setup(
        self, module: nn.Module, *optimizers: Optimizer, scheduler: Any = None, move_to_device: bool = True
    ) -> Any:
        """Take over a model, and the optimizer of its parameters; collective with an optimizer.

        Args:
            module: Returned as it is, on this rank's device: nothing is wrapped.
            optimizers: At most one in all.
            scheduler: Of the optimizer; steps when the batch is whole, as one that is not handed over does.
            move_to_device: Without effect: the model is always moved.

        Returns:
            The model; with an optimizer, the model, what to use in place of the optimizer, and the schedule if any.

        Raises:
            ConfigError: There is a second optimizer, or it is not of this model's parameters.
        """
        self.setup_module(module)
        found = [self.setup_optimizers(each) for each in optimizers]
        if scheduler is not None:
            self._schedules.take(scheduler)
        self.call("on_after_setup", fabric=self, module=module)
        return (module, *found, *(() if scheduler is None else (scheduler,))) if found else module

    def setup_module(self, module: nn.Module, move_to_device: bool = True) -> nn.Module:
        """Take over a model that has its optimizer set up later, or none: it is moved to this rank's device."""
        return self._take_model(module, in_bf16=self._precision == "bf16")

    def setup_optimizers(self, *optimizers: Optimizer) -> PreparedOptimizer:
        """Take over the optimizer of a model that is set up, which is thereby the one that is trained; collective.

        Raises:
            ConfigError: There are several, or none, or its model has not been set up.
        """
        if not optimizers:
            raise ConfigError("expected an optimizer.")
        if len(optimizers) > 1:
            refuse_second_optimizer()
        after = functools.partial(self.call, "on_after_optimizer_step", optimizer=optimizers[0])
        prepared = self._take_optimizer(optimizers[0], after)
        self._schedules.of(prepared)
        return prepared

    def setup_dataloaders(
        self, *dataloaders: DataLoader[Any], use_distributed_sampler: bool = True, move_to_device: bool = True
    ) -> Any:
        """Take over loaders; whether a pass is training is what ``model.training`` says when it begins.

        Args:
            dataloaders: Torch's, over map-style data sets; their batch size is that of one process.
            use_distributed_sampler: False is refused.
            move_to_device: Without effect: batches are always moved.

        Returns:
            What to use in place of the loaders, in a list; of one loader, by itself.

        Raises:
            ConfigError: One has an order that no step's number tells, or no loader is given.
        """
        if not use_distributed_sampler or not dataloaders:
            raise ConfigError(
                "expected loaders whose samples are shared out here. Hint: leave use_distributed_sampler=False out, "
                "and in the loader shuffle= or a WeightedRandomSampler in place of a sampler of your own."
            )
        found = []
        for each in dataloaders:
            prepared = FabricLoader(
                each, self.unisono, self._turns, processes=self.world_size, accumulation=self.accumulate_grad_batches,
                is_training=self._is_training,
            )  # fmt: skip
            prepared.schedules = self._schedules
            found.append(prepared)
        self._loaders += found
        return found[0] if len(found) == 1 else found

    def backward(self, tensor: Tensor, *args: Any, model: Any = None, **options: Any) -> None:
        """Add the gradient of this turn's micro-batch, once in a turn; collective in the step's last turn.

        Gradients of a process's batches are added up, as in Fabric: a script that accumulates divides its loss.

        Args:
            tensor: Mean over the micro-batch's samples; weighted by their share of the batch here.
            args: Refused.
            model: Without effect.
            options: Refused.

        Raises:
            StepError: A second time in a turn, or outside of a loop over training data; see `Turns.backward`.
            ConfigError: There are options.
        """
        if args or options:
            raise ConfigError(f"backward(loss) takes no options here, got {', '.join(map(str, [*args, *options]))}.")
        steps = self.accumulate_grad_batches
        self._turns.backward(tensor if steps == 1 else tensor * steps)

    def no_backward_sync(self, module: nn.Module, enabled: bool = True) -> contextlib.AbstractContextManager[None]:
        """Surround a turn that belongs to a longer step, which `accumulate_grad_batches` has told.

        Raises:
            ConfigError: It is `enabled`, and nothing has been told.
        """
        if enabled and self.accumulate_grad_batches == 1:
            raise ConfigError(
                "no_backward_sync(enabled=True) says by hand which turns belong to one step, and ranks have unequal "
                f"turns. Hint: {WORDS.accumulate}."
            )
        return contextlib.nullcontext()

    def clip_gradients(
        self,
        module: Any,
        optimizer: Any,
        clip_val: float | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Tensor | None:
        """Clip the whole batch's gradient by value or by norm; nothing in turns before the step's last.

        Returns:
            The norm before, in a step's last turn with `max_norm`; else None.

        Raises:
            ConfigError: Both of `clip_val` and `max_norm` are given, or none.
        """
        if (clip_val is None) == (max_norm is None):
            raise ConfigError("expected one of clip_val and max_norm.")
        if not self._turns.is_synced:
            return None
        if clip_val is not None:
            torch.nn.utils.clip_grad_value_(module.parameters(), clip_val, foreach=True)
            return None
        assert max_norm is not None
        return torch.nn.utils.clip_grad_norm_(
            module.parameters(), max_norm, norm_type, error_if_nonfinite=error_if_nonfinite, foreach=True
        )

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Compute in `precision` inside."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self._precision == "bf16")

    @contextlib.contextmanager
    def init_module(self, empty_init: bool | None = None) -> Iterator[None]:
        """Make a model's tensors on this rank's device; `empty_init` has no effect."""
        with self.device:
            yield

    init_tensor = init_module

    def call(self, hook_name: str, *args: Any, **kwargs: Any) -> None:
        """Call the method of this name of all callbacks that have it, with the keywords that it takes."""
        for each in self._callbacks:
            if callable(method := getattr(each, hook_name, None)):
                known = inspect.signature(method).parameters
                is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
                method(*args, **{name: value for name, value in kwargs.items() if is_open or name in known})

    def log(self, name: str, value: Any, step: int | None = None) -> None:
        """Log a number to all loggers, on rank 0."""
        self.log_dict({name: value}, step)

    def log_dict(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log numbers to all loggers, on rank 0."""
        plain = {name: value.item() if isinstance(value, Tensor) else value for name, value in metrics.items()}
        for each in self.loggers if self.is_global_zero else ():
            each.log_metrics(metrics=plain, step=step)

    def _start_at(self, step: int) -> None:
        for each in self._loaders:
            each.start_at(step)


def _listed(given: Any) -> list[Any]:
    return [] if given is None else [*given] if isinstance(given, list | tuple) else [given]
