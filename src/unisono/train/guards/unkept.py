"""What a loss function can reach and the loop changes, and no checkpoint holds: a teacher, a running mean.

Every rank changes it alike, so no comparison of ranks finds it; but a resumed run, or a worker that joins, begins
with the first values, and trains other weights. Looked at in the steps of `Repeated`: tensors as one such step leaves
them and as the next one finds them, numbers at the end of the iteration and before the next step. Of parameters that
nothing trains: to which the loss has sent gradients in a step, and which the loop has not changed after it.
"""

import re
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unisono.determinism.source.code_names import accessed, made_of_itself
from unisono.system.messages import warn
from unisono.train.guards.kept_state import OF_TORCH, KeptState
from unisono.train.kept_dict import KeptDict

_SAMPLE, _MOST_ENTRIES, _LONGEST = 256, 64, 4096
_Entries = dict[str, Any]
_prepared: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()
"""The models of all runs of this process: each is held by the checkpoints of its own."""


@final
class Unkept:
    """What a run's loop has been seen to change.

    Args:
        model: The prepared one.
        registered: Objects that checkpoints hold beside it, by name; may still grow.

    Attributes:
        names: Of the tensors that were found; none as long as none was.
        numbers: Of numbers, texts and lists of them, likewise.
        told: What has been told of, as the source calls it: nothing more is said of that.
        matters: Whether the run can be resumed or joined: else nothing is told.
    """

    def __init__(self, model: nn.Module, registered: Mapping[str, Any]) -> None:
        self._model, self._registered = model, registered
        _prepared.add(model)
        self._noted: dict[str, tuple[weakref.ref[Tensor], int, bytes]] = {}
        self._holders: dict[str, tuple[Any, _Entries]] = {}
        self._ended: dict[str, _Entries] | None = None  # the same, at the end of the iteration
        self._codes: list[tuple[CodeType, bool]] = []
        self._changing = set[str]()
        self._idle: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._is_idle_told = False
        self.matters = True
        self.told = set[str]()
        self._hint = _NUMBERS
        self.names: list[str] = []
        self.numbers: list[str] = []

    def note(self, state: KeptState, changing: list[str]) -> None:
        """Note tensors and numbers as a loss leaves them, but for those that it is itself `changing`."""
        if not self.numbers:
            for name, holder in (*state.holders.items(), *state.modules.items()):
                self._holders[name] = (holder, _entries(name, holder))
            self._changing |= {*changing}
            self._codes += state.codes
        if self.names:
            return
        own = {*map(id, self._model.parameters())}
        found = {
            name: each for name, each in state.tensors.items()
            if id(each) not in own and name not in changing and not is_lazy(each) and not each.is_inference()
        }  # fmt: skip
        for name, each in found.items():  # those of the losses of other updates stay
            self._noted[name] = (weakref.ref(each), each._version, _sample(each))

    def look(self, step: int, state: KeptState, *, speaks: bool) -> None:
        """Compare tensors with what was noted; warn once, where this rank `speaks`."""
        changed = [name for name, each in state.tensors.items() if self._is_changed(name, each)]
        if self.names or not changed:
            return
        kept = {id(each) for each in self._kept()}
        self.names = [name for name in changed if id(state.tensors[name]) not in kept]
        if speaks and self.matters and (new := [name for name in self.names if not self._is_told(name)]):
            warn(f"step {step}: {_describe(new)} {_TENSORS}")

    def note_leaves(self, leaves: Iterable[Tensor]) -> None:
        """Note to which tensors outside of the prepared model a loss sends gradients."""
        if not self._is_idle_told:
            self._idle |= {id(each): (weakref.ref(each), each._version) for each in leaves if _is_parameter(each)}

    def end_iteration(self, step: int, *, speaks: bool) -> None:
        """Note numbers once more, at the end of the loop's body: what has changed lasts into the next iteration.

        Parameters that nothing has trained by then are warned of, once, where this rank `speaks`.
        """
        if self._idle:
            self._tell_idle(step, speaks=speaks)
        if self._holders:
            self._ended = {name: _entries(name, holder) for name, (holder, _) in self._holders.items()}

    def look_at_numbers(self, step: int, *, speaks: bool) -> None:
        """Compare numbers with what was noted, before the step after that; warn once, where this rank `speaks`.

        What the body sets before each step may be computed from the step's number, so it counts only where a method
        of the object makes it of what was there before.
        """
        if self._ended is None:
            return
        changed = [
            (name, holder)
            for place, (holder, noted) in self._holders.items()
            for name in _changed(holder, noted, self._ended[place], _entries(place, holder))
        ]
        codes, self._codes = self._codes, []
        self._holders, self._ended = {}, None
        if not changed:
            return
        read, written = accessed(codes)
        held = {id(holder) for each in self._states() for holder in each.holders.values()}
        found = [
            (name, holder) for name, holder in changed
            if id(holder) not in held and not self._is_of_the_loss(name)
            and (_last(name) in read - written or type(holder).__module__.startswith("torch.nn."))
        ]  # fmt: skip
        self.numbers = [name for name, _ in found]
        self._hint = _SETTINGS if found and isinstance(found[0][1], nn.Module) else _NUMBERS
        if speaks and self.matters and (new := [name for name in self.numbers if not self._is_told(name)]):
            warn(f"step {step}: {_describe(new)} {self._hint}")

    def forget(self) -> None:
        """Forget numbers: what a program does between two loops over steps, it does again in a resumed run."""
        self._holders, self._ended, self._codes = {}, None, []

    def describe(self) -> str:
        """Return what was found, as a sentence with a hint; empty where nothing was."""
        if not self.names + self.numbers:
            return ""
        return f"{_describe(self.names + self.numbers)} {_TENSORS if self.names else self._hint}"

    def _tell_idle(self, step: int, *, speaks: bool) -> None:
        trained = {id(each) for model in _prepared for each in model.parameters()}
        reached = [(each, version) for made, version in self._idle.values() if (each := made()) is not None]
        idle = [
            each for each, version in reached
            if each._version == version and each.requires_grad and id(each) not in trained
        ]  # fmt: skip
        self._idle = {}
        if not idle or self._is_idle_told:
            return
        self._is_idle_told = True
        places = {id(made()): name for name, (made, *_) in self._noted.items()}
        first = f"{places.get(id(idle[0]), '')} {tuple(idle[0].shape)}".lstrip()
        if speaks:
            warn(
                f"step {step}: the loss sends gradients to trainable parameters that are in no prepared model, and "
                f"stay as they are: {first}{', ...' if len(idle) > 1 else ''}. Hint: make them part of the model, and "
                "of its optimizer, before run.prepare(): nn.ModuleDict({'body': body, 'head': head}); "
                "requires_grad_(False) if they are not to learn."
            )

    def _is_told(self, name: str) -> bool:
        return any(name == each or name.startswith((f"{each}.", f"{each}[")) for each in self.told)

    def _is_of_the_loss(self, name: str) -> bool:
        return any(each == name or each.startswith(f"{name}[") for each in self._changing)

    def _is_changed(self, name: str, now: Tensor) -> bool:
        made, version, sample = self._noted.get(name, (None, 0, b""))
        return made is not None and made() is now and (now._version != version or _sample(now) != sample)

    def _kept(self) -> Iterator[Tensor]:
        """Yield the tensors that the registered objects hold, and the runs' models."""
        for model in _prepared:
            yield from (*model.parameters(), *model.buffers())
        for each in self._states():
            yield from each.tensors.values()

    def _states(self) -> Iterator[KeptState]:
        """Yield what each registered object reaches."""
        nothing = nn.Module()
        for each in self._registered.values():
            yield KeptState(each.kept if isinstance(each, KeptDict) else each, nothing)


def _sample(tensor: Tensor) -> bytes:
    """Return some elements, where they can be read at once: writing to ``.data`` counts in no version."""
    is_plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and not tensor.is_quantized
    if not is_plain or tensor.device.type != "cpu" or not tensor.numel():
        return b""
    flat = tensor.detach().resolve_conj().resolve_neg().flatten()
    return flat[:: -(-flat.numel() // _SAMPLE)].contiguous().view(torch.uint8).numpy().tobytes()


def _is_parameter(leaf: Tensor) -> bool:
    return isinstance(leaf, nn.Parameter) and not is_lazy(leaf) and not leaf.is_inference()


def _entries(place: str, holder: Any) -> _Entries:
    """Return the numbers and texts that an object, a dictionary or a list holds, by place."""
    if isinstance(holder, list | deque):
        is_small = len(holder) <= _MOST_ENTRIES and all(map(_is_plain, holder))
        return {place: repr(holder)} if is_small else {}
    is_dict = isinstance(holder, dict)
    found = holder if is_dict else getattr(holder, "__dict__", {})
    if isinstance(holder, nn.Module):
        found = {key: value for key, value in found.items() if key not in OF_TORCH}
    if len(found) > _MOST_ENTRIES:
        return {}
    dot = f"{place}." if place else ""
    return {
        f"{place}[{key!r:.40}]" if is_dict else f"{dot}{key}": repr(value)
        for key, value in found.items() if isinstance(key, str) and _is_plain(value)
    }  # fmt: skip


def _is_plain(value: Any) -> bool:
    """Whether a value is a number or a text, or a small tuple of them."""
    if type(value) is tuple:
        return len(value) <= _MOST_ENTRIES and all(map(_is_plain, value))
    if type(value) in (int, str):  # a long one is no setting, and slow to compare
        return (value.bit_length() if type(value) is int else len(value)) <= _LONGEST
    return value is None or type(value) in (bool, float)


def _changed(holder: Any, noted: _Entries, ended: _Entries, now: _Entries) -> list[str]:
    """Return the places of what lasts from one iteration into the next, and has changed."""
    names = {**noted, **ended}
    lasting = [name for name in names if noted.get(name) != ended.get(name) and ended.get(name) == now.get(name)]
    moved = [name for name in names if ended.get(name) != now.get(name)]
    by_methods = made_of_itself(type(holder)) if moved else set()
    return [*lasting, *(name for name in moved if _last(name) in by_methods)]


def _last(name: str) -> str:
    """Return the last name in a place: of ``tracker.history`` and of ``state['history']`` it is ``history``."""
    found: list[str] = re.findall(r"[^\W\d]\w*", name)
    return found[-1] if found else ""


def _describe(names: list[str]) -> str:
    return (
        f"{names[0]!r}{', ...' if len(names) > 1 else ''}, which the loss function can reach, is changed by the loop, "
        "and no checkpoint holds it: after a resume, or in a worker that joins, it begins with its first values, and "
        "the result may differ. Hint:"
    )


_TENSORS = (
    "run.register('teacher', teacher), before the loop, saves and restores a module, or what else has state_dict() and "
    "load_state_dict(); a tensor of its own goes into a module by register_buffer(name, tensor)."
)
_NUMBERS = (
    "run.register('tracker', tracker), before the loop, saves and restores a dictionary, or an object with "
    "state_dict() and load_state_dict(); or compute it from batch.step, before run.step()."
)
_SETTINGS = (
    "a number of a module is part of a checkpoint as a buffer, register_buffer('beta', torch.tensor(1.0)); or compute "
    "it from batch.step, before run.step()."
)
