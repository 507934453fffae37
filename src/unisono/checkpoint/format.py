"""What a checkpoint holds, as tensors and JSON: no pickle, nothing that depends on ranks or world size.

``pack`` turns model, optimizer and scheduler into named tensors and a JSON-able dictionary; ``unpack`` puts them
back. Tensors are keyed by the model's parameter names, so a checkpoint does not depend on the order of the
optimizer's groups.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.errors import CheckpointError

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Everything a run needs to go on, as plain values.

    Attributes:
        tensors: By file stem (``model``, ``optimizer``), then by name.
        values: JSON-able: optimizer groups, scheduler, whatever the trainer adds.
    """

    tensors: dict[str, dict[str, Tensor]]
    values: dict[str, Any]


def pack(model: nn.Module, optimizer: Optimizer, scheduler: Any, values: Mapping[str, Any]) -> State:
    """Return the state of a run; the tensors are the live ones, not copies.

    Args:
        model: Its parameters and persistent buffers are saved under their own names; tied ones once.
        optimizer: Its per-parameter state and its groups' settings.
        scheduler: Anything with ``state_dict()``, or None.
        values: What else belongs to the run; JSON-able.

    Raises:
        CheckpointError: Some state is neither a tensor nor JSON-able; names it.
    """
    names = parameter_names(model, optimizer)
    state = optimizer.state_dict()
    moments: dict[str, Tensor] = {}
    scalars: dict[str, dict[str, Any]] = {}
    for index, entries in state["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                moments[f"{names[index]}/{key}"] = value
            else:
                scalars.setdefault(names[index], {})[key] = value
    groups = [
        {key: value for key, value in group.items() if key != "params"}
        | {"params": [names[index] for index in group["params"]]}
        for group in state["param_groups"]
    ]
    packed = {
        **values,
        "model_extra": _extra_state(model),
        "optimizer": {"groups": groups, "scalars": scalars},
        "scheduler": None if scheduler is None else scheduler.state_dict(),
    }
    return State(tensors={"model": unique_tensors(model), "optimizer": moments}, values=to_json(packed, "state"))


def unpack(state: State, model: nn.Module, optimizer: Optimizer, scheduler: Any) -> None:
    """Put a state back into live objects; they are changed only after everything has been checked.

    Raises:
        CheckpointError: Names or shapes differ from the live objects'.
    """
    missing = {"model", "optimizer"} - state.tensors.keys() | (
        {"model_extra", "optimizer", "scheduler"} - state.values.keys()
    )
    if missing:
        raise CheckpointError(f"the checkpoint holds no {', '.join(sorted(missing))}: another version wrote it.")
    live = unique_tensors(model)
    _check_names("model", live, state.tensors["model"])
    names = parameter_names(model, optimizer)
    values = from_json(state.values)
    saved, fresh = values["optimizer"], optimizer.state_dict()
    known = {name for group in saved["groups"] for name in group["params"]}
    if known != set(names.values()):
        raise CheckpointError(
            f"the optimizer holds other parameters than the checkpoint: {known ^ set(names.values())}."
        )
    entries: dict[str, dict[str, Any]] = {name: dict(values) for name, values in saved["scalars"].items()}
    for key, value in state.tensors["optimizer"].items():
        name, _, entry = key.rpartition("/")
        entries.setdefault(name, {})[entry] = value
    by_names = {frozenset(group["params"]): group for group in saved["groups"]}
    members = [frozenset(names[index] for index in group["params"]) for group in fresh["param_groups"]]
    if set(members) != set(by_names):
        raise CheckpointError(
            f"the optimizer's {len(members)} parameter groups are not the checkpoint's {len(by_names)}. "
            "Hint: group the parameters as when the run was started."
        )
    groups = [
        by_names[member] | {"params": new["params"]} for member, new in zip(members, fresh["param_groups"], strict=True)
    ]
    with torch.no_grad():
        for name, tensor in live.items():
            tensor.copy_(state.tensors["model"][name])
    if values["model_extra"]:
        model.load_state_dict(values["model_extra"], strict=False)
    optimizer.load_state_dict(
        {"state": {index: entries[name] for index, name in names.items() if name in entries}, "param_groups": groups}
    )
    if scheduler is not None:
        scheduler.load_state_dict(values["scheduler"])


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by name, in name order; a tied tensor once, under its first name."""
    seen: dict[int, str] = {}
    found: dict[str, Tensor] = {}
    for name, tensor in sorted(model.state_dict(keep_vars=True).items()):
        if isinstance(tensor, Tensor) and id(tensor) not in seen:
            seen[id(tensor)] = name
            found[name] = tensor.detach()
    return found


def _extra_state(model: nn.Module) -> dict[str, Any]:
    """Return what modules keep besides tensors (``get_extra_state``), by its key in the ``state_dict``."""
    return {name: value for name, value in model.state_dict().items() if not isinstance(value, Tensor)}


def fingerprint(model: nn.Module) -> str:
    """Return the SHA-256 over parameters and buffers in name order: name, dtype, shape, bytes."""
    digest = hashlib.sha256()
    for name, tensor in unique_tensors(model).items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def parameter_names(model: nn.Module, optimizer: Optimizer) -> dict[int, str]:
    """Return the name of each parameter of the optimizer, by its index in the optimizer's ``state_dict``.

    Raises:
        CheckpointError: The optimizer holds a parameter that the model does not have.
    """
    by_id = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    strangers = sum(id(parameter) not in by_id for parameter in parameters)
    if strangers:
        raise CheckpointError(
            f"the optimizer holds {strangers} of {len(parameters)} parameters that the model does not have. "
            "Hint: create the optimizer from model.parameters() of the very model you pass."
        )
    return {index: by_id[id(parameter)] for index, parameter in enumerate(parameters)}


def _check_names(what: str, live: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    missing, extra = sorted(live.keys() - saved.keys()), sorted(saved.keys() - live.keys())
    shapes = [
        f"{name}: {tuple(saved[name].shape)} -> {tuple(live[name].shape)}"
        for name in live.keys() & saved.keys()
        if live[name].shape != saved[name].shape or live[name].dtype != saved[name].dtype
    ]
    if missing or extra or shapes:
        raise CheckpointError(
            f"the checkpoint's {what} is another one: missing {_few(missing)}, left over {_few(extra)}, "
            f"changed {_few(shapes)}."
        )


def _few(items: Iterable[str]) -> str:
    listed = list(items)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "") or "none"


def to_json(value: Any, where: str) -> Any:
    """Return `value` in JSON's types, so that `from_json` gives back what it was (tuples, counters, integer keys).

    Raises:
        CheckpointError: Something in it would need pickle; names the place.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list):
        return [to_json(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"$tuple": to_json(list(value), where)}
    if isinstance(value, dict):
        if type(value) is dict and all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: to_json(item, f"{where}.{key}") for key, item in value.items()}
        items = [[to_json(key, where), to_json(item, f"{where}[{key!r}]")] for key, item in value.items()]
        return {"$counter" if isinstance(value, Counter) else "$dict": items}
    raise CheckpointError(
        f"cannot save {where}: expected None, bool, int, float, str, list, tuple or dict, got {type(value).__name__}."
    )


def from_json(value: Any) -> Any:
    """Return what `to_json` was given."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = next(iter(value), "")
    if kind == "$tuple":
        return tuple(from_json(value[kind]))
    if kind in ("$dict", "$counter"):
        pairs = {from_json(key): from_json(item) for key, item in value[kind]}
        return Counter(pairs) if kind == "$counter" else pairs
    return {key: from_json(item) for key, item in value.items()}
