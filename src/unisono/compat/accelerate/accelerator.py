"""`Accelerator`: accelerate's interface over a `Run`, for scripts that keep their loop and change the import line.

The V replicas are the script's processes. While training, a loader hands out the micro-batches that this rank hosts,
one in a turn of the loop; `backward` adds a leaf to the canonical tree, and optimizer and schedule act when the batch
is whole. So the bits are those of the score, on any number of ranks.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from unisono.checkpoint.policy import CheckpointPolicy
from unisono.compat.accelerate.loaders import Evaluation, PreparedLoader
from unisono.compat.accelerate.saving import Saving
from unisono.compat.accelerate.settings import (
    DataLoaderConfiguration,
    GradientAccumulationPlugin,
    ProjectConfiguration,
    check_settings,
)
from unisono.compat.accelerate.trackers import Tracking
from unisono.compat.parts import PreparedOptimizer, PreparedScheduler
from unisono.compat.seeds import SEEDS, give_replicas
from unisono.compat.turns import Turns, Words
from unisono.errors import ConfigError
from unisono.options.quantities import REPLICAS, STEPS
from unisono.train.run import Run

_WORDS = Words("accelerator", "accelerator.prepare()", "gradient_accumulation_steps=")


@final
class Accelerator(Saving, Tracking):
    """Accelerate's ``Accelerator`` with a `Run` underneath.

    Args:
        split_batches: As in `DataLoaderConfiguration`.
        mixed_precision: ``no`` or ``bf16``.
        gradient_accumulation_steps: Batches of each process in a step.
        cpu: Train on the CPU although there is a GPU.
        dataloader_config: How loaders are shared out.
        log_with: ``tensorboard``, or objects with ``log(values, step=)``.
        project_dir: The run directory, where a run that is found there is resumed; None keeps nothing.
        project_config: The same, and more.
        gradient_accumulation_plugin: How gradients are accumulated.
        step_scheduler_with_optimizer: Whether a schedule steps once for every process; else once for every update.
        replicas: V. Unset: that of the run that is resumed, or the launcher's, or the world size of the first launch.
        out: The run directory, in place of `project_dir`.
        settings: Of accelerate, where they have no effect or are refused; of `Run`: ``seed``, ``threads``, ...

    Attributes:
        gradient_accumulation_steps: As above.
        project_dir: As above.
        logging_dir: Where trackers write.

    Raises:
        ConfigError: A setting is out of range, or cannot be honoured exactly.

    Example:
        >>> accelerator = Accelerator(replicas=8, project_dir="runs/mine")  # doctest: +SKIP
        >>> model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
        >>> for x, y in loader:
        ...     accelerator.backward(F.cross_entropy(model(x), y))
        ...     optimizer.step()
        ...     scheduler.step()
        ...     optimizer.zero_grad()
    """

    _underneath = "accelerator.run"

    def __init__(
        self,
        *,
        split_batches: bool = False,
        mixed_precision: str | None = None,
        gradient_accumulation_steps: int = 1,
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        log_with: Any = None,
        project_dir: str | Path | None = None,
        project_config: ProjectConfiguration | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        step_scheduler_with_optimizer: bool = True,
        replicas: int | None = None,
        out: str | Path | None = None,
        **settings: Any,
    ) -> None:
        self._data = data = dataloader_config or DataLoaderConfiguration(split_batches=split_batches)
        self._accumulation = gradient_accumulation_plugin or GradientAccumulationPlugin(
            num_steps=gradient_accumulation_steps
        )
        steps = STEPS.take("gradient_accumulation_steps", self._accumulation.num_steps)
        self.gradient_accumulation_steps = steps
        settings = {"seed": SEEDS.pending} | check_settings(settings, mixed_precision, data, self._accumulation)
        self.mixed_precision, self._steps_with_optimizer = mixed_precision or "no", step_scheduler_with_optimizer
        self.project_configuration = project = project_config or ProjectConfiguration()
        self.project_dir = out or project_dir or project.project_dir
        if project.total_limit is not None:
            settings.setdefault("checkpoints", CheckpointPolicy(keep=project.total_limit))
        if cpu:
            settings["device"] = "cpu"
        leaves = None if replicas is None else REPLICAS.take("replicas", replicas) * steps
        self.run = self._run = Run(out=self.project_dir, replicas=leaves, **settings)
        self.num_processes = give_replicas(self.run, steps, is_told=replicas is not None)
        self.run.settings.update({"num_processes": self.num_processes, "mixed_precision": self.mixed_precision})
        logging_dir = project.logging_dir or self.run.directory
        self.logging_dir = None if logging_dir is None else Path(logging_dir)
        self.ask_trackers(log_with, self.logging_dir)
        self._turns, self._evaluation = Turns(self.run, _WORDS), Evaluation()
        self._models, self._loaders = list[nn.Module](), list[PreparedLoader]()
        self._schedulers = 0
        SEEDS.enter(self.run)

    def prepare(self, *parts: Any, device_placement: Any = None) -> Any:
        """Take over models, an optimizer, loaders and schedules, in any order; collective.

        Args:
            parts: Also in several calls; what is none of these is returned as it is.
            device_placement: Without effect: everything is on this rank's device.

        Returns:
            What to use in place of the parts, in their order; one part is returned by itself.

        Raises:
            ConfigError: There is a second optimizer, or a part cannot be trained exactly.
        """
        for model in parts:
            if isinstance(model, nn.Module):
                self.prepare_model(model)
        prepared: dict[int, Any] = {}
        for part in parts:
            if isinstance(part, Optimizer):
                prepared[id(part)] = self.prepare_optimizer(part)
            elif isinstance(part, DataLoader):
                prepared[id(part)] = self.prepare_data_loader(part)
            elif hasattr(part, "get_last_lr") and not isinstance(part, PreparedScheduler):
                prepared[id(part)] = self.prepare_scheduler(part)
        found = tuple(prepared.get(id(part), part) for part in parts)
        return found[0] if len(found) == 1 else found

    def prepare_model(self, model: nn.Module, device_placement: Any = None, evaluation_mode: bool = False) -> nn.Module:
        """Move a model to this rank's device; the one that the optimizer is of is trained."""
        return self._take_model(model, in_bf16=self.mixed_precision == "bf16")

    def prepare_optimizer(self, optimizer: Optimizer, device_placement: Any = None) -> PreparedOptimizer:
        """Take over the optimizer, and with it the model that it is of; collective.

        Raises:
            ConfigError: It is a second one, or its model has not been prepared.
        """
        return optimizer if isinstance(optimizer, PreparedOptimizer) else self._take_optimizer(optimizer)

    def prepare_data_loader(self, loader: Any, device_placement: Any = None, *, train: bool | None = None) -> Any:
        """Take over a loader.

        Args:
            loader: A torch ``DataLoader`` over a map-style data set; its batch size is that of one process.
            device_placement: Without effect.
            train: Whether its data is trained on; None: what ``model.training`` says when a pass begins.

        Raises:
            ConfigError: It has an order that no step's number tells.
        """
        prepared = PreparedLoader(
            loader, self.run, self._turns, self._evaluation, processes=self.num_processes,
            accumulation=self.gradient_accumulation_steps, split_batches=self._data.split_batches,
            even_batches=self._data.even_batches,
            is_training=lambda: self._is_training() if train is None else train,
        )  # fmt: skip
        self._loaders.append(prepared)
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> PreparedScheduler:
        """Take over a schedule, which is saved with the run; before the first step."""
        self._schedulers += 1
        number = "" if self._schedulers == 1 else f"-{self._schedulers}"
        is_often = self._steps_with_optimizer and not self._data.split_batches
        times = self.num_processes if is_often else 1
        counts = self._steps_with_optimizer and self._accumulation.adjust_scheduler
        accumulation = self.gradient_accumulation_steps if counts else 1
        self.run.settings[f"scheduler{number}"] = f"{type(scheduler).__qualname__} x {times}"
        prepared = PreparedScheduler(
            scheduler, self._turns, times=times, is_limited=is_often, accumulation=accumulation
        )  # fmt: skip
        self.run.register(f"scheduler{number}", prepared.between)
        return prepared

    def backward(self, loss: Tensor, **options: Any) -> None:
        """Add the gradient of this turn's micro-batch, once in a turn; collective in the step's last turn.

        Args:
            loss: Mean over the micro-batch's samples; weighted by their share of the batch here.
            options: Refused.

        Raises:
            StepError: A second time in a turn, or outside of a loop over training data; see `Turns.backward`.
            ConfigError: There are options.
        """
        if options:
            raise ConfigError(f"backward(loss) takes no options here, got {', '.join(options)}.")
        self._turns.backward(loss)

    @contextlib.contextmanager
    def accumulate(self, *models: nn.Module) -> Iterator[None]:
        """Surround a turn of the loop; `sync_gradients` says whether the batch is whole with it."""
        yield

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Refuse (`ConfigError`)."""
        raise ConfigError(
            "no_sync() says by hand which turns belong to one step; here the loader says it. Hint: "
            "Accelerator(gradient_accumulation_steps=...) and `with accelerator.accumulate(model):`."
        )

    def join_uneven_inputs(self, joinables: Any, even_batches: bool | None = None) -> Any:
        """Refuse (`ConfigError`)."""
        raise ConfigError("join_uneven_inputs() is not needed: every rank has work in every step. Hint: leave it out.")

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Tensor | None:
        """Clip the whole batch's gradient and return its norm; None, and nothing, in turns before the step's last."""
        if not self._turns.is_synced:
            return None
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, foreach=True)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Clip the elements of the whole batch's gradient; nothing in turns before the step's last."""
        if self._turns.is_synced:
            torch.nn.utils.clip_grad_value_(parameters, clip_value, foreach=True)

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Do nothing: nothing is scaled."""

    def autocast(self, autocast_handler: Any = None) -> contextlib.AbstractContextManager[Any]:
        """Compute in `mixed_precision` inside."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed_precision == "bf16")

    def free_memory(self, *objects: Any) -> Any:
        """Return None for each of `objects`: what is assigned to their names lets go of them."""
        return [None for _ in objects]

    clear = free_memory

    def end_training(self) -> None:
        """Close the trackers, and the run, with everything kept that it has done; collective."""
        self.close_trackers()
        self.run.close()

    def __repr__(self) -> str:
        return (
            f"Distributed environment: {self.distributed_type}\nNum processes: {self.num_processes}\n"
            f"Process index: {self.process_index} of {self.run.world.world_size} ranks\nDevice: {self.device}\n"
            f"Mixed precision type: {self.mixed_precision}\n"
        )

    @property
    def state(self) -> "Accelerator":
        """What a script prints to see where it runs."""
        return self
