"""What a ``Fabric`` knows of processes: who is the first, what they wait for, what they tell each other."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from unisono.checkpoint.format import fingerprint_of
from unisono.collectives.leader import ranks_say
from unisono.compat.gathering import apply, is_of_tensors
from unisono.compat.interface import Interface
from unisono.data.batches import move
from unisono.errors import ConfigError, PlaceError, RankDivergence
from unisono.train.run import Run
from unisono.train.run_directory.handover import send_bytes


class Processes(Interface):
    """The part of `Fabric` that needs no model."""

    unisono: Run  #: The run underneath: its ``seed``, ``replicas``, ``directory``, ``fingerprint()``.
    world_size: int  #: V: processes of the script, which ranks play; the same on any number of them.

    @property
    def global_rank(self) -> int:
        """This rank; there are ``fabric.unisono.world.world_size`` of them, at most `world_size`."""
        return self.unisono.world.rank

    @property
    def local_rank(self) -> int:
        """This rank among those of its host."""
        return self.unisono.world.local_rank

    @property
    def node_rank(self) -> int:
        """The number of this host."""
        return self.unisono.world.node_rank

    @property
    def is_global_zero(self) -> bool:
        """Whether this is rank 0."""
        return self.unisono.world.rank == 0

    def to_device(self, obj: Any) -> Any:
        """Return a model, a tensor or a batch on this rank's device."""
        return obj.to(self.device) if isinstance(obj, nn.Module) else move(obj, self.device)

    def barrier(self, name: str | None = None) -> None:
        """Return on no rank before all have called; collective."""
        self._wait("barrier()")

    @contextlib.contextmanager
    def rank_zero_first(self, local: bool = False) -> Iterator[None]:
        """Let rank 0, or with `local` the first of each host, run the block before the others; collective."""
        yield from self._first(self.barrier, is_first=(self.local_rank if local else self.global_rank) == 0)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return what rank `src` has, on all ranks; collective.

        Args:
            obj: A tensor, or what JSON knows (texts, numbers, lists, dictionaries); looked at on `src` only.
            src: A rank that is there.

        Raises:
            ConfigError: It is neither, or there is no such rank.
            PlaceError: In a turn of a training loop that is not the step's last.
        """
        self._turns.refuse_alone("broadcast(...)")
        transport = self.unisono.transport
        if not 0 <= src < transport.world_size:
            raise ConfigError(f"expected src of a rank from 0 to {transport.world_size - 1}, got {src}.")

        def describe() -> Any:
            if isinstance(obj, Tensor):
                return {"dtype": str(obj.dtype)[6:], "shape": [*obj.shape]}
            if not _is_json(obj):
                raise ConfigError(
                    f"expected a tensor, or texts, numbers, lists and dictionaries with texts as keys, got "
                    f"{type(obj).__name__}. Hint: nothing is pickled between ranks; broadcast its parts."
                )
            return [obj]

        told = ranks_say(transport, transport.rank == src, describe)[src]
        if isinstance(told, list):
            return told[0]
        empty = torch.empty(told["shape"], dtype=getattr(torch, told["dtype"]))
        own = obj.detach().cpu().contiguous() if transport.rank == src else empty
        data = own.reshape(-1).view(torch.uint8).numpy().tobytes() if transport.rank == src else b""
        came = send_bytes(transport, src, data, empty.nbytes)
        found = torch.frombuffer(bytearray(came), dtype=empty.dtype) if came else empty
        return found.reshape(told["shape"]).to(self.device)

    def all_gather(self, data: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """Return `data`, which all ranks must have alike, as Fabric does on one device; collective.

        In evaluation each rank has all the data, so what it has found is that of all processes; nothing is added.

        Args:
            data: Tensors and numbers, also nested.
            group: Refused.
            sync_grads: Refused.

        Raises:
            RankDivergence: The ranks have unlike values.
            PlaceError: In a turn of a training loop.
            ConfigError: There is a group, or gradients are to be gathered.
        """
        if group is not None or sync_grads:
            raise ConfigError("all_gather takes neither group= nor sync_grads=True. Hint: Run.step(embed=) is exact.")
        return self._the_same("all_gather", data)

    def all_reduce(self, data: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return `data`, which all ranks must have alike, as Fabric does on one device; collective; see `all_gather`.

        Args:
            data: Tensors and numbers, also nested.
            group: Refused.
            reduce_op: Without effect.

        Raises:
            RankDivergence: The ranks have unlike values.
            PlaceError: In a turn of a training loop.
            ConfigError: There is a group.
        """
        if group is not None:
            raise ConfigError("all_reduce takes no group=. Hint: leave it out.")
        return self._the_same("all_reduce", data)

    def _the_same(self, what: str, data: Any) -> Any:
        if self._turns.is_in_turn:
            raise PlaceError(
                f"fabric.{what} was called in a turn of the training loop, where each rank has parts of the batch. "
                "Hint: fabric.last_loss after optimizer.step() is the loss over all; fabric.broadcast(...) where "
                "fabric.sync_gradients says that the step is whole; unisono.metrics in a run's own loop."
            )
        found = change_numbers(data, self.device)
        if not is_of_tensors(found):
            raise ConfigError(f"expected tensors and numbers, in lists, tuples or dictionaries, got {data!r}.")
        tensors = dict[str, Tensor]()
        apply(lambda tensor: tensors.setdefault(str(len(tensors)), tensor), found)
        told = self.unisono.transport.all_gather_json(fingerprint_of(tensors))
        if any(other != told[0] for other in told):
            raise RankDivergence(
                f"fabric.{what} was given unlike values by the ranks, and each would count another number of "
                "processes. In evaluation every rank has all the data, so that they are alike. Hint: "
                "fabric.broadcast(value) gives all what rank 0 has."
            )
        return found


def change_numbers(data: Any, device: torch.device) -> Any:
    """Return nested data with tensors in place of numbers, as Fabric's collectives do it."""
    if isinstance(data, dict):
        return {name: change_numbers(value, device) for name, value in data.items()}
    if isinstance(data, list | tuple) and not hasattr(data, "_fields"):
        return type(data)(change_numbers(value, device) for value in data)
    return torch.tensor(data, device=device) if isinstance(data, bool | int | float) else data


def _is_json(data: Any) -> bool:
    if isinstance(data, dict):
        return all(isinstance(name, str) for name in data) and all(map(_is_json, data.values()))
    return all(map(_is_json, data)) if isinstance(data, list) else data is None or isinstance(data, str | int | float)
