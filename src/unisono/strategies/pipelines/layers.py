"""The layers of a model as a row, and how the row is cut into stages; what is not a row is refused.

A model is a row if its forward pass hands its input to one child, what that returns to the next one, and so on, and
does nothing else: an `nn.Sequential`, or any model that calls its children so (`torch.fx` says whether it does).
Sequentials within it are taken apart, so that stages may begin inside them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch.fx
from torch import nn

from unisono.errors import ConfigError
from unisono.strategies.parts.split import cut_by_cost

_HINT = "Hint: write the model as an nn.Sequential, or with a forward() that only calls its children one by one."


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers of a model by name, in the order in which they are called.

    Raises:
        ConfigError: The model is not a row of layers, calls a layer with weights twice, has hooks of its own, or keeps
            state beside parameters and buffers.

    Children that are never called are in no layer.
    """
    layers = _row(model, "")
    weighted = [module for _, module in layers if [*module.parameters(), *module.buffers()]]
    if len({id(module) for module in weighted}) < len(weighted):
        raise ConfigError(
            f"strategy pipeline: {type(model).__name__} calls one layer with weights twice, which two stages would "
            "have to share. Hint: strategy exact or ddp."
        )
    found: dict[str, nn.Module] = {}
    for name, module in layers:
        found[name if name not in found else f"{name}#{len(found)}"] = module
    _refuse_extra_state(model)
    return found


def cut_layers(names: Sequence[str], costs: Sequence[float], stages: int, cuts: Sequence[str] | None) -> list[range]:
    """Return the layers of each stage.

    Args:
        names: Of the layers, in order.
        costs: Of the layers; the dearest stage is made as cheap as it can be.
        stages: How many.
        cuts: By hand: the layer that each stage but the first begins with; a name may stop early (``features`` is its
            first layer). None: by cost.

    Raises:
        ConfigError: More stages than layers, or cuts that are no layers, in another order, or too few or many.
    """
    if stages > len(names):
        raise ConfigError(
            f"strategy pipeline: expected at most {len(names)} stages for a model of {len(names)} layers, got {stages} "
            f"(stages x chunks). Hint: --stages {max(1, len(names))}, or a model of more layers; it has: "
            f"{', '.join(names)}."
        )
    if cuts is None:
        return cut_by_cost(costs, stages)
    starts = [0]
    for cut in cuts:
        at = next((i for i, name in enumerate(names) if name == cut or name.startswith(f"{cut}.")), None)
        if at is None:
            raise ConfigError(f"strategy pipeline: expected cuts at layers: {', '.join(names)}; got {cut!r}.")
        starts.append(at)
    if len(starts) != stages or starts != sorted(set(starts)):
        raise ConfigError(
            f"strategy pipeline: expected {stages - 1} cuts for {stages} stages (stages x chunks), each after the one "
            f"before and none at the first layer {names[0]!r}; got {','.join(cuts)}."
        )
    return [range(start, stop) for start, stop in zip(starts, [*starts[1:], len(names)], strict=True)]


def costs_of(layers: Mapping[str, nn.Module]) -> list[float]:
    """Return the cost of each layer: its parameters, and a little for being there."""
    return [1 + sum(parameter.numel() for parameter in layer.parameters()) for layer in layers.values()]


def _row(model: nn.Module, prefix: str) -> list[tuple[str, nn.Module]]:
    """Return the layers of a model, or of a Sequential within it, with their names."""
    if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward and not _is_changed(model):
        children = [(name, child) for name, child in model._modules.items() if child is not None]
    elif not prefix:
        children = _called_children(model)
    else:
        return [(prefix, model)]
    found: list[tuple[str, nn.Module]] = []
    for name, child in children:
        path = f"{prefix}.{name}" if prefix else name
        found += _row(child, path) if isinstance(child, nn.Sequential) else [(path, child)]
    return found or [(prefix, model)]


def _is_changed(module: nn.Module) -> bool:
    """Whether something is done around or in place of the class's forward pass."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in vars(module) or module._compiled_call_impl is not None


class _Tracer(torch.fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Take every child as it is."""
        return True


def _called_children(model: nn.Module) -> list[tuple[str, nn.Module]]:
    kind = type(model).__name__
    if _is_changed(model):
        raise ConfigError(
            f"strategy pipeline: {kind} has hooks, a forward() of its own instance, or is compiled, which no stage "
            "would run. Hint: hook or compile its children instead."
        )
    try:
        nodes = list(_Tracer().trace(model).nodes)
    except Exception as error:
        raise ConfigError(
            f"strategy pipeline: {kind} cannot be taken for a row of layers ({str(error).splitlines()[0]}). {_HINT}"
        ) from error
    inputs = [node for node in nodes if node.op == "placeholder"]
    inner = [node for node in nodes if node.op not in ("placeholder", "output")]
    before: Any = tuple(inputs)
    for node in inner:
        if node.op != "call_module":
            raise ConfigError(
                f"strategy pipeline: between its children {kind} does more than handing on: {node.name} "
                f"({node.op} of {getattr(node.target, '__name__', node.target)}). {_HINT}"
            )
        if node.args != before or node.kwargs:
            raise ConfigError(
                f"strategy pipeline: in {kind} the layer {node.target!r} gets something else than what the one before "
                f"it returns. {_HINT}"
            )
        before = (node,)
    if not inner or nodes[-1].args != before:
        raise ConfigError(f"strategy pipeline: {kind} returns something else than its last layer does. {_HINT}")
    return [(str(node.target), model.get_submodule(str(node.target))) for node in inner]


def _refuse_extra_state(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise ConfigError(
                f"strategy pipeline: {name or 'the model'} ({type(module).__name__}) keeps extra state, which only its "
                "own stage would know. Hint: keep it in buffers."
            )
