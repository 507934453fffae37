"""Weights in and out of the formats that others use: a ``state_dict`` in a ``.pt`` file, or one ``.safetensors``.

Nothing that is read here can run code: ``torch.load`` is always called with ``weights_only=True``, and there is no way
around it.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from unisono.checkpoint.files import read_whole
from unisono.checkpoint.format import State, tied_names
from unisono.checkpoint.manifest import read_manifest
from unisono.checkpoint.store import list_steps, newest_valid, read
from unisono.checkpoint.values import few, from_json, printable
from unisono.errors import CheckpointError, ConfigError
from unisono.options.directions import mode_of
from unisono.system.directory import Directory
from unisono.system.disk import is_lasting
from unisono.system.files import replace_file
from unisono.system.hints import near_names

SUFFIXES = (".pt", ".pth", ".bin", ".safetensors")
_PREFIXES = ("module.", "_orig_mod.", "model.")  # DataParallel and DDP; torch.compile; common wrappers
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_MOST_BYTES = 1 << 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """What `load_weights` has found."""

    missing: tuple[str, ...]  #: Names of the model that the file does not hold; their tensors are unchanged.
    unexpected: tuple[str, ...]  #: Names in the file that the model does not have.
    prefix: str  #: What was cut off the file's names, such as ``module.``; mostly empty.


def state_dict_of(state: State, average: str | None = None) -> dict[str, Any]:
    """Return a checkpoint's model as ``model.state_dict()`` had it: tied tensors under all of their names.

    With `average`, the values of an average of weights (``EMA``) stand in place of those that it averages.

    Raises:
        CheckpointError: There is no such average in it.
    """
    tensors: dict[str, Any] = dict(state.tensors["model"])
    if average is not None:
        tensors |= _average_of(state, average)
    tensors |= {name: tensors[first] for name, first in state.values.get("tied", {}).items()}
    extra = from_json(state.values["model_extra"], state.tensors.get("objects", {}))
    return dict(sorted((tensors | extra).items()))


def _average_of(state: State, name: str) -> dict[str, Tensor]:
    """Return what was saved as an average: by EMA and SWA, or of a torch ``AveragedModel`` that was registered."""
    saved = from_json(state.values.get("objects", {}), state.tensors.get("objects", {}))
    averages: dict[str, dict[str, Tensor]] = {}
    for each, held in saved.items():
        if not isinstance(held, dict) or not held.get("num_averaged", held.get("n_averaged", True)):
            continue  # of no epoch yet
        modules = {key.removeprefix("module."): value for key, value in held.items() if key.startswith("module.")}
        found = held.get("average", modules if "n_averaged" in held else None)
        if isinstance(found, dict):
            averages[each.removeprefix("callback/")] = found
    if name not in averages:
        hint = "average= takes one of these" if averages else "callbacks.EMA() or SWA() of a Trainer keeps one"
        raise CheckpointError(
            f"expected a checkpoint with the average {name!r} of the weights; it has {', '.join(averages) or 'none'}. "
            f"Hint: {hint}."
        )
    return {key: value for key, value in averages[name].items() if key in state.tensors["model"]}


def export_weights(state: State, path: Path, average: str | None = None) -> list[str]:
    """Write a checkpoint's model as a plain ``state_dict``; returns the names that the format could not hold.

    Args:
        state: From `store.read`.
        path: Ends in ``.pt``, ``.pth``, ``.bin`` or ``.safetensors``; replaced when it is there. A ``.safetensors``
            file holds tied tensors once for each name, and no extra state.
        average: As `state_dict_of` takes it.

    Raises:
        ConfigError: Another suffix, or the directory is missing.
        CheckpointError: Writing failed; a file that was there is untouched.
    """
    _check_suffix(path)
    if not path.parent.is_dir():
        raise ConfigError(f"expected an existing directory for {path}, there is no {path.parent}.")
    content, left_out = state_dict_of(state, average), list[str]()
    if path.suffix == ".safetensors":
        left_out = [name for name, value in content.items() if not isinstance(value, Tensor)]
        data = save({name: value.clone() for name, value in content.items() if isinstance(value, Tensor)})
    else:
        buffer = io.BytesIO()
        torch.save(content, buffer)
        data = buffer.getvalue()
    try:
        replace_file(path, data)
    except OSError as error:
        text = f"could not write {path}: {error.strerror or error}."
        raise CheckpointError(text, is_final=is_lasting(error)) from error
    return left_out


def load_weights(
    model: nn.Module, path: str | Path, *, strict: bool = True, step: int | None = None, average: str | None = None,
    best: str | None = None, best_mode: str | None = None,
) -> Loaded:  # fmt: skip
    """Put pretrained weights into a model: all of them checked first, then all of them swapped in.

    Build the optimizer and call `Run.prepare` afterwards: the weights are then part of the score. Call it on all ranks;
    where only the leader has the file, `Run.load_weights` reads it there and hands the weights to all. The mode stays
    as it is: a new model is in training mode, so call ``model.eval()`` before you use it.

    Args:
        model: Gets the values in its own dtype and place.
        path: A ``state_dict`` (``.pt``, ``.pth``, ``.bin``, ``.safetensors``), one step's directory of a checkpoint, or
            a run directory (its newest valid checkpoint). Prefixes that wrappers leave (``module.``) are understood.
        strict: Whether missing or unexpected names are an error; shapes always have to fit, and values: complex numbers
            do not go into real tensors, nor fractions into whole numbers.
        step: Of a run directory: the checkpoint of this step, as `unisono checkpoint list` shows them.
        best: In place of that: the one with the best value of this score, as ``CheckpointPolicy(best=...)`` keeps it.
        best_mode: Whether ``max`` or ``min`` is best. None: as its name says (``test_loss``: min), else ``max``.
        average: Of a checkpoint: the average of the weights that a callback has kept, ``EMA`` or ``SWA``, or a
            registered ``torch.optim.swa_utils.AveragedModel`` by its name. What it does not average comes from the
            model. None: the weights that were trained.

    Returns:
        The names that are missing or unexpected.

    Raises:
        CheckpointError: The file cannot be read, is not a plain ``state_dict``, does not fit, or has no such average;
            the model is as it was. No code of the file runs.
        ConfigError: It is of an unknown kind, or `average` was asked of a file of weights.
    """
    check_order(model, path, "unisono.load_weights(model, path)")
    place = Path(path) if step is None and best is None else _checkpoint_of(Path(path), step, best, best_mode)
    found = tensors_in(place, average)
    fitting, loaded = fit_weights(model, found, strict=strict, source=str(path))
    write_weights(model, fitting)
    return loaded


def check_order(model: Any, path: Any, line: str) -> None:
    """Refuse (`ConfigError`) a model and a path of which one stands in the other's place."""
    if not isinstance(model, nn.Module) or isinstance(path, nn.Module):
        raise ConfigError(
            f"expected a model and a path, got {type(model).__name__} as the model and {type(path).__name__} as the "
            f"path. Hint: {line}."
        )


def fit_weights(
    model: nn.Module, found: Mapping[str, Tensor], *, strict: bool, source: str
) -> tuple[dict[str, Tensor], Loaded]:
    """Return the tensors that a model can take, by its own names, in its own dtypes; changes nothing."""
    live = {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
    prefix = _prefix(found, live)
    found = {name.removeprefix(prefix): value for name, value in found.items()}
    tied = tied_names(model)
    missing = tuple(name for name in live if name not in found and tied.get(name) not in found)
    unexpected = tuple(name for name in found if name not in live)
    shapes = [
        f"{name}: {tuple(found[name].shape)} -> {tuple(live[name].shape)}"
        for name in live
        if name in found and found[name].shape != live[name].shape
    ]
    is_other = bool(live) and bool(found) and len(unexpected) == len(found)
    if shapes or is_other or (strict and (missing or unexpected)):
        hint = "" if shapes else " Hint: strict=False takes what fits and returns the names."
        hint = " No name is one of the model's. Hint: build the model whose weights these are." if is_other else hint
        raise CheckpointError(
            f"{printable(source)} does not fit {type(model).__name__}: missing {few(missing)}, "
            f"unexpected {few(unexpected)}, other shapes {few(shapes)}.{hint}"
        )
    fitting = {name: found[name] for name in live if name in found}
    whys = [f"{name}: {why}" for name, value in fitting.items() if (why := _obstacle(value, live[name]))]
    if whys:
        raise CheckpointError(f"{printable(source)} cannot fill {type(model).__name__}: {few(whys)}.")
    cast = {name: value.detach().to(live[name].dtype) for name, value in fitting.items()}
    return cast, Loaded(missing=missing, unexpected=unexpected, prefix=prefix)


def write_weights(model: nn.Module, fitting: Mapping[str, Tensor]) -> None:
    """Put what `fit_weights` has returned into the model: everything is in its place before the first is written."""
    live: dict[str, Tensor] = model.state_dict(keep_vars=True)
    placed = {name: value.to(live[name].device) for name, value in fitting.items()}
    with torch.no_grad():
        for name, value in placed.items():
            live[name].copy_(value)


def _obstacle(value: Tensor, target: Tensor) -> str:
    """Return why a tensor of the right shape cannot be copied as it is; empty where it can."""
    for whose, tensor in (("the file's tensor", value), ("the model's tensor", target)):
        if tensor.layout != torch.strided or tensor.is_quantized:
            kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
            return f"{whose} is {kind}, expected a dense one"
        if tensor.is_meta:
            return f"{whose} is on the meta device, without values (to_empty(device=...) gives a model its memory)"
    if target.is_inference() or any(
        step == 0 < size - 1 for step, size in zip(target.stride(), target.shape, strict=True)
    ):
        return "the model's tensor cannot be written in place (made in inference mode, or by expand())"
    if value.is_complex() and not target.is_complex():
        return f"{value.dtype} into {target.dtype} would drop the imaginary parts"
    if not torch.can_cast(value.dtype, target.dtype) and not torch.equal(value.to(target.dtype).to(value.dtype), value):
        return f"{value.dtype} into {target.dtype} would change values"
    return ""


def _prefix(found: Mapping[str, Tensor], live: Mapping[str, Tensor]) -> str:
    """Return what all names of a file begin with, wrappers around wrappers included, unless the model's do too."""
    prefix = ""
    while more := next((p for p in _PREFIXES if found and all(name.startswith(prefix + p) for name in found)), ""):
        if any(name.startswith(more) for name in live):
            break
        prefix += more
    return prefix


def tensors_in(path: Path, average: str | None = None) -> dict[str, Tensor]:
    """Return the tensors of a file or directory, by name."""
    if path.is_dir():
        content = state_dict_of(_read_directory(path), average)
        return {name: value for name, value in content.items() if isinstance(value, Tensor)}
    if average is None:
        return _tensors_of(path)
    raise ConfigError(
        f"expected a run directory or a checkpoint's for average={average!r}, got {printable(str(path))!r}, which "
        "is no directory. Hint: unisono checkpoint export RUN FILE --average NAME writes the average itself."
    )


def _tensors_of(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file of weights, by name."""
    if not path.exists():
        there = path.parent.iterdir() if path.parent.is_dir() else ()
        near = near_names(path.name, [each.name for each in there if each.suffix in SUFFIXES or each.is_dir()])
        meant = " or ".join(repr(printable(str(path.with_name(each)))) for each in near)
        raise CheckpointError(
            f"expected a run directory, a checkpoint's directory or a file of weights, got {printable(str(path))!r} "
            f"(in {str(Path.cwd())!r}), where nothing is. Hint: "
            f"{f'did you mean {meant}?' if near else 'check the path; a run keeps what it saves in its out=.'}"
        )
    _check_suffix(path)
    shown = printable(str(path))
    content: Any
    try:
        real = path.resolve()  # a link to one file is its user's own choice; caches of models are made of them
        with Directory.open(real.parent) as home:
            data = read_whole(home, real.name, _MOST_BYTES)
        if path.suffix == ".safetensors":
            content = load(data)
        else:
            content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"cannot read {shown}: {error.strerror or error}.") from None
    except Exception as error:  # whatever a stranger's file brings about; nothing has been changed
        if type(error).__name__ == "UnpicklingError":
            raise CheckpointError(
                f"{shown} holds more than tensors and plain values, and was not loaded: it could run code. "
                "Hint: where you trust it, let its author's program save model.state_dict() alone."
            ) from error
        raise CheckpointError(
            f"{shown} is not a {path.suffix} file of weights: {type(error).__name__}: {printable(str(error))[:200]}"
        ) from error
    for wrapper in _WRAPPERS:
        inner = content.get(wrapper) if isinstance(content, Mapping) else None
        if isinstance(inner, Mapping) and any(isinstance(value, Tensor) for value in inner.values()):
            content = inner
            break
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise CheckpointError(f"{shown} holds {type(content).__name__}, expected a state_dict.")
    return {name: value for name, value in content.items() if isinstance(value, Tensor)}


def _read_directory(path: Path) -> State:
    if (path / "manifest.json").exists():
        return read(path)[1]
    directory = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    if not list_steps(directory):
        raise CheckpointError(
            f"{printable(str(path))} holds no checkpoint. Hint: give the out= of a run that has saved one: its first "
            "epoch is over, or checkpoint_every= steps."
        )
    newest, _ = newest_valid(directory)
    assert newest is not None
    return read(newest)[1]


def _checkpoint_of(run: Path, step: int | None, best: str | None, best_mode: str | None) -> Path:
    steps, shown = dict(list_steps(run / "checkpoints")), printable(str(run))
    if step is None and best is not None:
        scores = {each: read_manifest(place).facts.metrics for each, place in steps.items()}
        found = {each: metrics[best] for each, metrics in scores.items() if best in metrics}
        if not found:
            there = ", ".join(sorted({name for metrics in scores.values() for name in metrics})) or "none"
            raise CheckpointError(f"expected best as a score of the checkpoints in {shown} ({there}), got {best!r}.")
        sign = 1 if mode_of(best, best_mode, name="best_mode", default="max") == "max" else -1
        step = max(found, key=lambda each: (sign * found[each], each))
    if step not in steps:
        there = ", ".join(map(str, sorted(steps))) or "none"
        raise CheckpointError(f"expected a step of which {shown} has a checkpoint, got {step}; it has {there}.")
    return steps[step]


def _check_suffix(path: Path) -> None:
    """Refuse (`ConfigError`) another suffix than those of weights."""
    if path.suffix not in SUFFIXES:
        lightning = (
            " Hint: of a checkpoint of Lightning's, write the weights once: "
            "torch.save(LitModel.load_from_checkpoint(FILE).model.state_dict(), 'model.pt')."
        )
        hint = lightning if path.suffix == ".ckpt" else ""
        raise ConfigError(f"expected a file that ends in {', '.join(SUFFIXES)}, got {path.name!r}.{hint}")
