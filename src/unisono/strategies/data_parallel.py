"""DataParallel in one process: scatter the batch over devices, replicate the model, run all forward, gather.

Each device has a copy of the module tree. GPUs get copies of the parameters, too, whose gradients are added in the
order of the devices; on the CPU the devices are logical, threads that share the parameters, so that the strategy can be
tried anywhere. Buffers of the first copy are the model's own, those of the others are thrown away, as in torch's
DataParallel. Every device draws random numbers of its own: logical devices take turns, since they share one generator.
What a forward pass draws from Python, NumPy or the CPU while GPUs compute, depends on which of them comes first.

`balanced_dp` gives the first device, which also holds the gathered outputs and the optimizer's state, ``gpu0_bsz //
batch_chunk`` samples of each forward pass, and the others equal shares of the rest (see `split.balanced_sizes`).
"""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.collectives.placement import cut
from unisono.data.batches import change_tensors, move
from unisono.determinism import devices
from unisono.determinism.seeding import mix
from unisono.determinism.switches import set_generators
from unisono.errors import ConfigError, StepError
from unisono.strategies.base import StrategyContext
from unisono.strategies.options import BalancedDPOptions, DPOptions
from unisono.strategies.parts.split import balanced_sizes
from unisono.strategies.replicated import Replicated


@final
class DataParallel(Replicated):
    """See the module."""

    options: DPOptions

    def __init__(self, model: nn.Module, optimizer: Optimizer, context: StrategyContext, options: DPOptions) -> None:
        super().__init__(model, optimizer, context, options)
        self._has_gpus = devices.is_gpu(context.device)
        if self._has_gpus:
            kind, count = context.device.type, devices.count(context.device.type)
            if options.devices > count:
                raise ConfigError(f"expected devices <= {count}, got {options.devices}. Hint: --devices {count}.")
            self._devices = [devices.device_at(index, kind) for index in range(options.devices)]
        else:
            self._devices = [context.device] * options.devices
        self._draws: bool | None = None  # whether forward passes draw random numbers
        self._calls = 0
        self._step = 0
        self.sizes: list[int] = []

    def begin(self, step: int, samples: list[int]) -> None:
        self._step, self._calls = step, 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """See `Replicated.forward`: scatter, replicate, run, gather."""
        dim = self.options.dim
        batch = _size_along((args, kwargs), dim)
        first = self.options.first if isinstance(self.options, BalancedDPOptions) else None
        count = len(self._devices)
        self.sizes = [len(p) for p in cut(batch, count)] if first is None else balanced_sizes(batch, first, count)
        used = [index for index, size in enumerate(self.sizes) if size]
        pieces = _scatter((args, kwargs), self.sizes, dim)
        moved = [move(pieces[index], self._devices[index]) for index in used]
        if self._has_gpus:
            replicas = _copies_on([self._devices[index] for index in used], self.model)
            for index in used[used[0] == 0 :]:  # the first has been seeded with the step
                devices.seed(self._devices[index], mix(self.context.seed, "device", self._step, self._calls, index))
        else:  # the first one with samples is the model itself
            replicas = [_shadow(self.model) if number else self.model for number in range(len(used))]
        outputs = self._run(replicas, used, moved)
        self._calls += 1
        if not self._has_gpus:
            return _joined(outputs, dim)
        with torch.no_grad():
            for own, left in zip(self.model.buffers(), replicas[0].buffers(), strict=True):
                own.copy_(left)
        return _joined([move(output, self.context.device) for output in outputs], dim)

    def _run_in_turn(self, run_replica: Callable[[int], None], used: list[int]) -> None:
        """Run one device after the other, each with a random stream of its own, and notice whether any draws."""
        before, drew = torch.default_generator.get_state(), False
        for number, index in enumerate(used):
            if index:
                drew |= not torch.equal(torch.default_generator.get_state(), before)
                set_generators(mix(self.context.seed, "device", self._step, self._calls, index))
                before = torch.default_generator.get_state()
            run_replica(number)
        drew |= not torch.equal(torch.default_generator.get_state(), before)
        self._draws = bool(self._draws) or drew

    def _run(self, replicas: Sequence[nn.Module], used: list[int], inputs: Sequence[Any]) -> list[Any]:
        results: list[Any] = [None] * len(replicas)
        is_grad_enabled = torch.is_grad_enabled()
        kind = self.context.device.type
        enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

        def run_replica(number: int) -> None:
            try:
                args, kwargs = inputs[number]
                here = devices.being_current(self._devices[used[number]])
                with here, torch.set_grad_enabled(is_grad_enabled), torch.autocast(kind, enabled=enabled, dtype=dtype):
                    results[number] = replicas[number](*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - raised again below, in the caller's thread
                results[number] = error

        if self._draws is not False and kind == "cpu":
            self._run_in_turn(run_replica, used)
        else:
            threads = [threading.Thread(target=run_replica, args=(number,)) for number in range(len(replicas))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for index, result in zip(used, results, strict=True):
            if isinstance(result, Exception):
                result.add_note(f"on device {index} of {len(self._devices)}, with {self.sizes[index]} samples")
                raise result
        return results


class _Spread(torch.autograd.Function):
    """Parameters on several devices; their gradients are added in the order of the devices, on the first."""

    @staticmethod
    def forward(ctx: Any, places: Sequence[torch.device], *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.homes = [parameter.device for parameter in parameters]
        return tuple(
            parameter.view_as(parameter) if parameter.device == place else parameter.to(place)
            for place in places
            for parameter in parameters
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        sums: list[Tensor | None] = []
        for index, home in enumerate(ctx.homes):
            some = [gradient.to(home) for gradient in gradients[index :: len(ctx.homes)] if gradient is not None]
            sums.append(functools.reduce(torch.add, some) if some else None)
        return None, *sums


def _copies_on(places: Sequence[torch.device], model: nn.Module) -> list[nn.Module]:
    """Return a copy of a model on each of some devices; gradients come back to the model."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    spread = _Spread.apply(places, *trained) if trained else ()  # type: ignore[no-untyped-call]
    copies = []
    for number, place in enumerate(places):
        frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
        here: dict[Tensor, Tensor] = {parameter: parameter.to(place) for parameter in frozen}
        here |= zip(trained, spread[number * len(trained) :], strict=False)
        copies.append(_shadow(model, here, place))
    return copies


def _shadow(
    model: nn.Module, parameters: Mapping[Tensor, Tensor] | None = None, place: torch.device | None = None
) -> nn.Module:
    """Return a copy of the module tree with the same parameters, or those in their stead, and its own buffers."""
    copies: dict[nn.Module, nn.Module] = {}
    for module in model.modules():
        copy = module._replicate_for_data_parallel()  # torch's own: a shallow copy with empty parameter tables
        copy._former_parameters = {}
        copies[module] = copy
    for module, copy in copies.items():
        copy._modules = {name: None if child is None else copies[child] for name, child in module._modules.items()}
        copy._buffers = {
            name: None if buffer is None else buffer.clone() if place is None else buffer.to(place, copy=True)
            for name, buffer in module._buffers.items()
        }
        if parameters is None:
            copy._parameters = dict(module._parameters)
            continue
        for name, parameter in module._parameters.items():  # no leaves any more, so attributes, as torch does it
            setattr(copy, name, None if parameter is None else parameters[parameter])
    return copies[model]


def _size_along(value: Any, dim: int) -> int:
    sizes = {tensor.shape[dim] for tensor in _tensors(value) if tensor.dim() > dim}
    if len(sizes) != 1:
        raise StepError(
            f"expected inputs with one common length along dim {dim}, got {sorted(sizes) or 'no tensor'}. "
            "Hint: pass tensors of the same batch to the model, and choose --dim."
        )
    return sizes.pop()


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    change_tensors(value, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def _scatter(value: Any, sizes: list[int], dim: int) -> list[Any]:
    """Return each device's part of nested inputs: tensors are cut, other things given to all."""

    def part(index: int) -> Any:
        cut_out = lambda tensor: tensor.split(sizes, dim)[index].contiguous() if tensor.dim() > dim else tensor  # noqa: E731
        return change_tensors(value, cut_out)

    return [part(index) for index in range(len(sizes))]


def _joined(outputs: list[Any], dim: int) -> Any:
    first = outputs[0]
    if isinstance(first, Tensor):
        return torch.stack(outputs) if first.dim() == 0 else torch.cat(outputs, dim)
    if isinstance(first, dict):
        return {key: _joined([output[key] for output in outputs], dim) for key in first}
    if isinstance(first, list | tuple):
        parts = [_joined(list(column), dim) for column in zip(*outputs, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    raise StepError(f"expected a tensor, or tensors in a tuple, list or dictionary, got {type(first).__name__}.")
