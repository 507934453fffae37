"""What a checkpoint holds, as tensors and JSON: no pickle, nothing that depends on ranks or world size.

``pack`` turns model, optimizer, scheduler and the objects a user has registered into named tensors and a JSON-able
dictionary; ``unpack`` puts them back. Tensors are keyed by the model's parameter names, so a checkpoint does not depend
on the order of the optimizer's groups.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.checkpoint.files import check_dtypes
from unisono.checkpoint.optimizer_state import load_optimizer, optimizer_entries, pack_optimizer
from unisono.checkpoint.optimizer_state import parameter_names as parameter_names
from unisono.checkpoint.values import few, printable
from unisono.checkpoint.values import from_json as from_json
from unisono.checkpoint.values import to_json as to_json
from unisono.errors import CheckpointError


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Everything a run needs to go on, as plain values."""

    tensors: dict[str, dict[str, Tensor]]  #: By file stem (``model``, ``optimizer``, ``objects``), then by name.
    values: dict[str, Any]  #: JSON-able: optimizer groups, scheduler, registered objects, whatever the trainer adds.


class Stateful(Protocol):
    """What can be registered with a run: its state is nested dicts, lists and tuples of plain values and tensors."""

    def state_dict(self) -> Any:
        """Return the state."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Take over a state that `state_dict` has returned."""


def pack(
    model: nn.Module,
    optimizer: Optimizer | Mapping[str, Optimizer],
    scheduler: Any,
    values: Mapping[str, Any],
    objects: Mapping[str, Stateful] | None = None,
) -> State:
    """Return the state of a run; the tensors are the live ones, not copies.

    Args:
        model: Its parameters and persistent buffers are saved under their own names; tied ones once.
        optimizer: Its per-parameter state and its groups' settings; or several by name, none with another's parameter.
        scheduler: Anything with ``state_dict()``, or None; beside several optimizers, those there are by name.
        values: What else belongs to the run; plain values and tensors.
        objects: Registered objects, by name.

    Raises:
        CheckpointError: Some state is neither a tensor nor JSON-able; names it.
    """
    moments: dict[str, Tensor] = {}
    learning: dict[str, Any]
    if isinstance(optimizer, Mapping):
        learning = {
            "optimizers": {name: pack_optimizer(model, each, moments) for name, each in optimizer.items()},
            "schedulers": {name: each.state_dict() for name, each in scheduler.items()},
        }
    else:
        learning = {
            "optimizer": pack_optimizer(model, optimizer, moments),
            "scheduler": None if scheduler is None else scheduler.state_dict(),
        }
    packed = {
        **values,
        "model_extra": _extra_state(model),
        "tied": tied_names(model),
        "frozen": [name for name, parameter in model.named_parameters() if not parameter.requires_grad],
        **learning,
        "objects": {name: registered.state_dict() for name, registered in (objects or {}).items()},
    }
    others: dict[str, Tensor] = {}
    plain = to_json(packed, "state", others)
    tensors = {"model": unique_tensors(model), "optimizer": moments}
    return State(tensors=tensors | ({"objects": others} if others else {}), values=plain)


def check_storable(
    optimizers: Iterable[Optimizer],
    model: nn.Module | None = None,
    schedulers: Iterable[Any] = (),
    objects: Mapping[str, Stateful] | None = None,
) -> None:
    """Encode what `pack` would, without copying a tensor; for the very objects a rank holds, sharded or not.

    Raises:
        CheckpointError: Some state is neither a tensor that a file takes nor JSON-able; names it.
    """
    tensors: dict[str, Tensor] = {}
    for optimizer in optimizers:
        for number, group in enumerate(optimizer.param_groups):
            settings = {key: value for key, value in group.items() if key != "params"}
            to_json(settings, f"optimizer.param_groups[{number}]", tensors)
        for number, state in enumerate(optimizer.state.values()):
            to_json(state, f"optimizer.state[{number}]", tensors)
    for scheduler in schedulers:
        to_json(scheduler.state_dict(), "scheduler", tensors)
    for name, registered in (objects or {}).items():
        to_json(registered.state_dict(), f"registered part {name!r}: state", tensors)
    if model is not None:
        to_json(_extra_state(model), "model", tensors)
        tensors |= {f"model.{name}": tensor for name, tensor in unique_tensors(model).items()}
    check_dtypes(tensors)


def unpack(
    state: State,
    model: nn.Module,
    optimizer: Optimizer | Mapping[str, Optimizer],
    scheduler: Any,
    objects: Mapping[str, Stateful] | None = None,
) -> dict[str, Any]:
    """Put a state back into live objects, as `pack` takes them, and return its values; nothing is changed before
    everything was checked.

    Raises:
        CheckpointError: Names or shapes differ from the live objects'.
    """
    live, registered, many = unique_tensors(model), dict(objects or {}), "s" if isinstance(optimizer, Mapping) else ""
    optimizers = optimizer if isinstance(optimizer, Mapping) else {"": optimizer}
    schedulers = scheduler if many else {} if scheduler is None else {"": scheduler}
    names = {name: parameter_names(model, each) for name, each in optimizers.items()}
    try:
        values = _checked_values(state, live, set(registered), many)
        saved = values["optimizers"] if many else {"": values["optimizer"]}
        found = {
            name: optimizer_entries(state.tensors["optimizer"], saved[name], each, names[name])
            for name, each in optimizers.items()
        }
        schedules = {name: values["schedulers"][name] if many else values["scheduler"] for name in schedulers}
        frozen = set(values["frozen"])
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"the checkpoint's state is not what a run writes: {type(error).__name__}: {printable(str(error))}"
        ) from error
    with torch.no_grad():
        for name, tensor in live.items():
            tensor.copy_(state.tensors["model"][name])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    if values["model_extra"]:
        model.load_state_dict(values["model_extra"], strict=False)
    for name, each in optimizers.items():
        groups, entries = found[name]
        load_optimizer(each, groups, entries, names[name], saved[name])
    for name, each in schedulers.items():
        each.load_state_dict(schedules[name])
    for name, value in values["objects"].items():
        registered[name].load_state_dict(value)
    return values


def _checked_values(state: State, live: Mapping[str, Tensor], registered: set[str], many: str) -> dict[str, Any]:
    missing = {"model", "optimizer"} - state.tensors.keys() | (
        {"model_extra", "frozen", f"optimizer{many}", f"scheduler{many}", "objects"} - state.values.keys()
    )
    if missing:
        raise CheckpointError(f"the checkpoint holds no {', '.join(sorted(missing))}: another version wrote it.")
    _check_names("model", live, state.tensors["model"])
    values: dict[str, Any] = from_json(state.values, state.tensors.get("objects", {}))
    for name in ("model_extra", f"optimizer{many}", "objects"):
        if type(values[name]) is not dict:
            raise CheckpointError(f"the checkpoint's state is not what a run writes: {name} is no dictionary.")
    if registered != values["objects"].keys():
        raise CheckpointError(
            f"the checkpoint holds the registered objects {few(sorted(values['objects']))}, "
            f"this run has {few(sorted(registered))}. Hint: register the same names as when it was written."
        )
    return values


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by name, in name order; a tied tensor once, under its first name."""
    named = _named_tensors(model)
    tied = _tied(named)
    return {name: tensor.detach() for name, tensor in named if name not in tied}


def tied_names(model: nn.Module) -> dict[str, str]:
    """Return the names that `unique_tensors` leaves out, with the name that their tensor is saved under."""
    return _tied(_named_tensors(model))


def _tied(named: list[tuple[str, Tensor]]) -> dict[str, str]:
    first = {id(tensor): name for name, tensor in reversed(named)}
    return {name: first[id(tensor)] for name, tensor in named if first[id(tensor)] != name}


def _named_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    found = sorted(model.state_dict(keep_vars=True).items())
    return [(name, value) for name, value in found if isinstance(value, Tensor) and not _is_extra(name)]


def _extra_state(model: nn.Module) -> dict[str, Any]:
    """Return what modules keep besides tensors (``get_extra_state``), by its key in the ``state_dict``."""
    return {name: value for name, value in model.state_dict().items() if _is_extra(name)}


def _is_extra(name: str) -> bool:
    return name.rpartition(".")[2] == "_extra_state"


def fingerprint(model: nn.Module) -> str:
    """Return the SHA-256 over parameters and buffers in name order: name, dtype, shape, bytes."""
    return fingerprint_of(unique_tensors(model))


def fingerprint_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the same over tensors by name; a tied tensor once."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_names(what: str, live: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    missing, extra = sorted(live.keys() - saved.keys()), sorted(saved.keys() - live.keys())
    shapes = [
        f"{name}: {tuple(saved[name].shape)} -> {tuple(live[name].shape)}"
        for name in live.keys() & saved.keys()
        if live[name].shape != saved[name].shape or live[name].dtype != saved[name].dtype
    ]
    if missing or extra or shapes:
        raise CheckpointError(
            f"the checkpoint's {what} is another one: missing {few(missing)}, left over {few(extra)}, "
            f"changed {few(shapes)}."
        )
