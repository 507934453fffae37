"""Model parallel: layers on several devices of one process; with DDP's averaging around it where there are several.

The model is a row of layers (an `nn.Sequential`, or the children of any model in the order in which they are called).
They are cut into stages of equal cost, or placed by hand; a stage's inputs are brought to its device. The devices work
one after the other, so this makes models fit, not fast: `pipeline` is for speed.

On the CPU the devices are logical: one memory, but every stage has its own part of the report, so that a placement can
be tried before GPUs are there. On GPUs a process has several (``--devices``), and process i takes the i-th group.
"""

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer

from unisono.data.batches import move
from unisono.determinism import devices
from unisono.determinism.seeding import mix
from unisono.errors import ConfigError
from unisono.strategies.allreduce import all_reduce
from unisono.strategies.base import StrategyContext
from unisono.strategies.options import ModelParallelOptions
from unisono.strategies.parts.split import cut_by_cost
from unisono.strategies.replicated import Replicated


@final
class ModelParallel(Replicated):
    """See the module."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, context: StrategyContext, options: ModelParallelOptions
    ) -> None:
        super().__init__(model, optimizer, context, options)
        layers = dict(model.named_children())
        self.stages = place_layers(layers, options)
        self._devices = self._own_devices(options.devices)
        self._step = self._calls = 0
        for stage, names in enumerate(self.stages):
            for name in names:
                layers[name].to(self._devices[stage])
                layers[name].register_forward_pre_hook(_bring_to(self._devices[stage]), with_kwargs=True)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """See `Replicated.forward`; the output comes back to the run's device."""
        self._calls += 1
        for stage, device in enumerate(self._devices):
            if stage and devices.is_gpu(device):  # else they would all draw the same numbers
                devices.seed(device, mix(self.context.seed, "stage", self._step, self._calls, stage))
        return self.forward_alone(*args, **kwargs)

    def forward_alone(self, *args: Any, **kwargs: Any) -> Any:
        """See `Replicated.forward_alone`; the last stage's device need not be that of the targets."""
        return move(self.model(*args, **kwargs), self.context.device)

    def begin(self, step: int, samples: list[int]) -> None:
        self._step, self._calls = step, 0
        super().begin(step, samples)

    def reduce(self, step: int) -> None:
        all_reduce(self.fill_absent(), "tree", 25.0, self.transport)

    def report(self) -> dict[str, Any]:
        """See `Strategy.report`: which layers each device has, and the bytes of their parameters."""
        layers = dict(self.model.named_children())
        return {
            "stages": self.stages,
            "stage_bytes": [
                sum(p.nbytes for name in names for p in layers[name].parameters()) for names in self.stages
            ],
        }

    def _own_devices(self, count: int) -> list[torch.device]:
        own = self.context.device
        if not devices.is_gpu(own):
            return [own] * count
        first, visible = (own.index or 0) * count, devices.count(own.type)
        if first + count > visible:
            raise ConfigError(
                f"expected GPUs {first} to {first + count - 1} for this process, got {visible} GPUs. "
                "Hint: fewer --workers or fewer --devices."
            )
        return [devices.device_at(first + index, own.type) for index in range(count)]


def place_layers(layers: Mapping[str, nn.Module], options: ModelParallelOptions) -> list[list[str]]:
    """Return the names of the layers of each stage.

    Args:
        layers: By name, in the order in which they are called.
        options: A device for every layer (``map``), or none: then stages of equal cost, counted in parameters.

    Raises:
        ConfigError: The map names too many or too few layers, or there are fewer layers than devices.
    """
    names = list(layers)
    if options.map is None:
        costs = [sum(parameter.numel() for parameter in layer.parameters()) for layer in layers.values()]
        if len(names) < options.devices:
            raise ConfigError(
                f"expected at least {options.devices} layers for {options.devices} devices, the model has {names}. "
                f"Hint: --devices {max(2, len(names))}, or a model of more children."
            )
        return [[names[index] for index in part] for part in cut_by_cost(costs, options.devices)]
    chosen = [int(device) for device in options.map]
    if len(chosen) != len(names) or not all(0 <= device < options.devices for device in chosen):
        raise ConfigError(
            f"expected a device from 0 to {options.devices - 1} for each of the layers {names}, got map "
            f"{','.join(map(str, chosen))}."
        )
    return [[name for name, d in zip(names, chosen, strict=True) if d == device] for device in range(options.devices)]


def _bring_to(device: torch.device) -> Any:
    def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return move(args, device), move(kwargs, device)

    return hook
