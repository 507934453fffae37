"""A state as it is at one moment, held without a copy: the copy is made later, in a thread, beside the next step.

In: live tensors. Out: their values at that moment, whatever is written to them meanwhile. A large tensor shares its
memory with the snapshot by torch's copy-on-write: whoever writes first, by any way torch knows (in place, ``.data``, an
alias, a NumPy array made from now on), moves the live tensor to new memory and leaves the old one alone. Copied at once
is what cannot be shared so: tensors on a GPU, memory that is not torch's own, and memory that something else holds too,
since a NumPy array made before could be written to unseen.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from unisono.checkpoint.format import State
from unisono.checkpoint.policy import stem_of
from unisono.checkpoint.staging import Files, Staging
from unisono.determinism.switches import add_checksums, address_of, checksum

_SHARED_FROM_BYTES = 1 << 18  # smaller ones are copied about as fast as they are shared
_MOVED_FROM_BYTES = 1 << 20  # from here on, fresh memory for a tensor that is written to costs more than its copy
Place = tuple[str, str]
"""File stem and name of a tensor."""


@final
class Snapshot:
    """Holds a state from its making on; `copied` may be called in another thread.

    Args:
        files: Live tensors, by file and name: what this rank writes.
        staging: Where the copies go.
        restless: What is copied at once; grows by what is written to between now and `release`.
        recorded: Live tensors, this rank's or not, whose checksum the ledger will tell of the step that follows. None:
            no step need follow; everything is copied at once.

    Attributes:
        checksum: Of this rank's copies of `recorded`, once they are made.
    """

    def __init__(
        self, files: Files, staging: Staging, restless: set[Place], recorded: Mapping[Place, Tensor] | None = None
    ) -> None:
        self._staging, self._restless, self._recorded = staging, restless, recorded or {}
        self._is_made, self.checksum = threading.Event(), 0
        self._word: int | None = None
        places = {(stem_of(file), name): tensor for file, part in files.items() for name, tensor in part.items()}
        self._shared = {  # live, and as it is now
            place: (live, held)
            for place, live in {**places, **self._recorded}.items()
            if recorded is not None and place not in restless and (held := shared(live)) is not None
        }
        self._small = {  # the same of what is not worth sharing
            place: (live, live.detach().clone())
            for place, live in self._recorded.items() if place not in self._shared and live.nbytes < _SHARED_FROM_BYTES
        }  # fmt: skip
        self._copies: dict[str, dict[str, Tensor]] = {file: {} for file in files}
        self._later: list[tuple[str, str, int]] = []
        for file, name, offset in staging.lay_out(files):
            if (stem_of(file), name) in self._shared:
                self._later.append((file, name, offset))
            else:
                self._copies[file][name] = staging.put(files[file][name], offset)
        staging.finish(files)

    def copied(self) -> dict[str, dict[str, Tensor]]:
        """Return the copies, made now; they hold until the staging is used again."""
        try:
            for file, name, offset in self._later:
                _, held = self._shared[stem_of(file), name]
                self._copies[file][name] = self._staging.put(held, offset)
        finally:
            self._is_made.set()
        self.checksum = checksum(
            copy for file, part in self._copies.items() for name, copy in part.items()
            if (stem_of(file), name) in self._recorded
        )  # fmt: skip
        return self._copies

    def expect(self, weights: int) -> None:
        """Hear the checksum that the ledger tells of the step that begins now.

        It says nothing of the snapshot where the program has changed weights since, in a way that torch knows.
        """
        pairs = [self._shared.get(place) for place in self._recorded if place not in self._small]
        is_as_it_was = all(pair is not None and address_of(pair[0]) == address_of(pair[1]) for pair in pairs)
        if self._recorded and is_as_it_was and all(torch.equal(live, was) for live, was in self._small.values()):
            self._word = weights

    def release(self) -> None:
        """Return when all is copied: from here on nobody need make room for the snapshot."""
        self._is_made.wait()
        self._restless |= {
            place for place, (live, held) in self._shared.items()
            if live.nbytes >= _MOVED_FROM_BYTES and address_of(live) != address_of(held)
        }  # fmt: skip
        self._shared.clear()

    def differs(self, others: int = 0) -> bool:
        """Whether the copies are not what the ledger says; with the checksums that other ranks tell of theirs."""
        return self._word is not None and self._word != add_checksums([self.checksum, others])


def places_of(recorded: Sequence[Tensor], state: State) -> dict[Place, Tensor]:
    """Return by place what the ledger's checksum is about; empty where the state does not hold all of it as it is."""
    names = {address_of(tensor): name for name, tensor in state.tensors.get("model", {}).items() if tensor.nbytes}
    live = [tensor for tensor in recorded if tensor.nbytes]
    found = {("model", names.get(address_of(tensor), "")): tensor for tensor in live}
    return found if len(found) == len(live) and ("model", "") not in found else {}


def shared(tensor: Tensor) -> Tensor | None:
    """Return what keeps a tensor's present values, whoever writes to it, without a copy; None where there is no way."""
    if not CAN_SHARE:
        return None
    live = tensor.detach()
    is_plain = type(live) is Tensor and live.device.type == "cpu" and live.layout is torch.strided
    if not is_plain or live.is_conj() or live.is_neg() or live.nbytes < _SHARED_FROM_BYTES:
        return None
    del live
    if holders_of(tensor) > _HOLDERS:
        return None
    try:
        return torch._lazy_clone(tensor.detach())
    except RuntimeError:  # memory that torch has not allocated: of NumPy, a file, other processes
        return None


def holders_of(tensor: Tensor) -> int:
    """Return how many objects hold a tensor's memory: tensors and views, those behind NumPy arrays, storages."""
    count: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return count


def _count_usual() -> int:
    """Return the holders of a live tensor of which a state has an alias; fewer, and somebody has let go of it."""
    live = torch.empty(1)
    alias = live.detach()
    return holders_of(alias)


_NAMES = ("_storage_Use_Count", "_data_address", "_is_cow_tensor")
CAN_SHARE = hasattr(torch, "_lazy_clone") and all(hasattr(torch._C, name) for name in _NAMES)
"""Whether this torch has what `shared` needs: names for its own use (2.13 has them). Without, all is copied at once."""
_HOLDERS = _count_usual() if CAN_SHARE else 0
