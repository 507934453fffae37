"""What an optimizer keeps, as tensors and plain values under the parameters' names, and back, to the bit.

Tensors that stand directly in a parameter's state go into a file of their own, so that ranks may hold parts of them.
All else goes with the plain values: tensors in lists and dictionaries, entries of no parameter, and what an optimizer's
own ``state_dict`` adds to torch's.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.checkpoint.values import few
from unisono.errors import CheckpointError


def pack_optimizer(model: nn.Module, optimizer: Optimizer, moments: dict[str, Tensor]) -> dict[str, Any]:
    """Return what an optimizer keeps besides the tensors of its parameters; those go into `moments`, live.

    Raises:
        CheckpointError: It holds a parameter that the model does not have, or the state of one is no dictionary.
    """
    names = parameter_names(model, optimizer)
    state = optimizer.state_dict()
    own: dict[str, Tensor] = {}
    scalars: dict[str, dict[Any, Any]] = {}
    shared: dict[Any, Any] = {}
    for index, entries in state["state"].items():
        if index not in names:  # of no parameter: a counter of all steps, say
            shared[index] = entries
            continue
        if not isinstance(entries, Mapping):
            raise CheckpointError(
                f"cannot save the optimizer's state of {names[index]!r}: expected a dictionary, got "
                f"{type(entries).__name__}."
            )
        for key, value in entries.items():
            if isinstance(value, Tensor) and isinstance(key, str) and "/" not in key:
                own[f"{names[index]}/{key}"] = value.detach()
            else:
                scalars.setdefault(names[index], {})[key] = value
    groups = [
        {key: value for key, value in group.items() if key != "params"}
        | {"params": [names[index] for index in group["params"]]}
        for group in state["param_groups"]
    ]
    moments |= own
    strides = {key: list(value.stride()) for key, value in own.items() if not value.is_contiguous()}
    extra = {key: value for key, value in state.items() if key not in ("state", "param_groups")}
    found = {"groups": groups, "scalars": scalars, "strides": strides}
    return found | ({"shared": shared} if shared else {}) | ({"extra": extra} if extra else {})


def optimizer_entries(
    moments: Mapping[str, Tensor], saved: dict[str, Any], optimizer: Optimizer, names: dict[int, str]
) -> tuple[list[dict[str, Any]], dict[str, dict[Any, Any]]]:
    """Return the groups in the live optimizer's order, and the state of each parameter by its name.

    Raises:
        CheckpointError: The optimizer holds or groups other parameters.
    """
    known = {name for group in saved["groups"] for name in group["params"]}
    if known != set(names.values()):
        raise CheckpointError(
            f"the optimizer holds other parameters than the checkpoint: {few(sorted(known ^ set(names.values())))}."
        )
    entries: dict[str, dict[Any, Any]] = {name: _copied(values) for name, values in saved["scalars"].items()}
    for key, value in moments.items():
        name, _, entry = key.rpartition("/")
        if name not in known:
            continue  # another optimizer's
        # Memory of our own, laid out as it was: kernels may add up in another order over another layout.
        stride = saved["strides"].get(key)
        own = torch.empty_like(value) if stride is None else value.new_empty_strided(value.shape, stride)
        entries.setdefault(name, {})[entry] = own.copy_(value)
    by_names = {frozenset(group["params"]): group for group in saved["groups"]}
    fresh = optimizer.state_dict()["param_groups"]
    members = [frozenset(names[index] for index in group["params"]) for group in fresh]
    if set(members) != set(by_names):
        raise CheckpointError(
            f"the optimizer's {len(members)} parameter groups are not the checkpoint's {len(by_names)}. "
            "Hint: group the parameters as when the run was started."
        )
    groups = [by_names[member] | {"params": new["params"]} for member, new in zip(members, fresh, strict=True)]
    return groups, entries


def load_optimizer(
    optimizer: Optimizer, groups: list[dict[str, Any]], entries: dict[str, dict[Any, Any]], names: dict[int, str],
    saved: Mapping[str, Any],
) -> None:  # fmt: skip
    """Let an optimizer take over what `optimizer_entries` has found in `saved`.

    Casts of ``Optimizer.load_state_dict`` are undone, which gives state the parameter's dtype (NAdam's float32 scalars
    beside float64 weights, say); where it has moved a tensor to, it stays.
    """
    kept = {index: entries[name] for index, name in names.items() if name in entries}
    extra, shared = _copied(saved.get("extra", {})), _copied(saved.get("shared", {}))
    optimizer.load_state_dict({**extra, "state": {**shared, **kept}, "param_groups": groups})
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, name in names.items():
        if name in entries:
            live = optimizer.state[parameters[index]]
            live |= {key: _as_saved(value, live[key]) for key, value in entries[name].items() if key in live}


def parameter_names(model: nn.Module, optimizer: Optimizer) -> dict[int, str]:
    """Return each parameter's name by its index in the optimizer's ``state_dict``; `CheckpointError` for a stranger."""
    by_id = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    strangers = sum(id(parameter) not in by_id for parameter in parameters)
    if strangers:
        raise CheckpointError(
            f"the optimizer holds {strangers} of {len(parameters)} parameters that the model does not have. "
            "Hint: create the optimizer from model.parameters() of the very model you pass."
        )
    return {index: by_id[id(parameter)] for index, parameter in enumerate(parameters)}


def _copied(value: Any) -> Any:
    """Return nested state whose tensors lie in memory of their own, laid out as they are."""
    if isinstance(value, Tensor):
        return value.clone()
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return {key: _copied(item) for key, item in value.items()} if type(value) is dict else value


def _as_saved(saved: Any, loaded: Any) -> Any:
    """Return nested state as it was saved, on the devices to which it was moved while it was loaded."""
    if isinstance(saved, Tensor) and isinstance(loaded, Tensor):
        return saved.to(loaded.device)
    if isinstance(saved, str):  # torch takes it for a list
        return saved
    if type(saved) is type(loaded) and isinstance(saved, list | tuple) and len(saved) == len(loaded):
        return type(saved)(map(_as_saved, saved, loaded))
    if type(saved) is type(loaded) is dict and saved.keys() == loaded.keys():
        return {key: _as_saved(item, loaded[key]) for key, item in saved.items()}
    return loaded
