"""All ranks inside one process: for proofs, tests, and debugging an eight-worker run with one debugger.

Each rank is a thread, and a baton lets exactly one of them run at a time, in a fixed order: the baton passes on only
where a rank waits in a collective. So ranks may share process-wide state such as torch's generators without a race,
as long as nothing survives in it across a collective (nothing does in the exact step).
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, final

from torch import Tensor

from unisono.collectives.messages import Messages
from unisono.collectives.transport import Transport
from unisono.errors import ConfigError, PeerLost

T = TypeVar("T")


class _Stage:
    """What the threads of one world share: the baton, and each rank's parcel for the current collective."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.turn = threading.Condition()
        self.holder = 0
        self.parcels: list[Any] = [None] * world_size
        self.gone: dict[int, BaseException | None] = {}
        self.letters: dict[tuple[int, int, int], deque[Tensor]] = {}  # by source, target, tag
        self.waits = 0  # in a row, in which no rank has sent anything, received anything or left

    def pass_on(self, rank: int) -> None:
        """Hand the baton to the next rank that is still there."""
        with self.turn:
            for offset in range(1, self.world_size + 1):
                following = (rank + offset) % self.world_size
                if following not in self.gone:
                    self.holder = following
                    break
            self.turn.notify_all()

    def wait_for_turn(self, rank: int) -> None:
        with self.turn:
            self.turn.wait_for(lambda: self.holder == rank)

    def exchange(self, rank: int, parcel: Any) -> list[Any]:
        """Leave a parcel, let every other rank reach the same point, and return all parcels."""
        # The list is made anew each time, because a rank that goes on may leave its next parcel before a later rank has
        # read this one. Once round is enough, unless a rank waits for a message on its way here.
        parcels = self.parcels
        parcels[rank] = (parcel,)
        self.waits = 0
        if all(item is not None for item in parcels):
            self.parcels = [None] * self.world_size
        self.pass_on(rank)
        self.wait_for_turn(rank)
        while missing := [other for other, item in enumerate(parcels) if item is None]:
            if missing[0] not in self.gone:
                self.let_others_run(rank)
                continue
            raise PeerLost(f"[rank {rank}/{self.world_size}] rank {missing[0]} left before this collective.")
        return [item[0] for item in parcels]

    def let_others_run(self, rank: int) -> None:
        """Pass the baton round once; refuses to do so for ever."""
        self.waits += 1
        if self.waits > 2 * self.world_size:
            raise PeerLost(f"[rank {rank}/{self.world_size}] all ranks wait for each other: nobody can go on.")
        self.pass_on(rank)
        self.wait_for_turn(rank)


@final
class LoopbackTransport(Transport):
    """One rank's end of a world that lives inside this process; `Loopback()` alone is a world of one."""

    is_one_thread = True

    def __init__(self, rank: int = 0, stage: _Stage | None = None) -> None:
        self._stage = stage or _Stage(1)
        self.rank = rank
        self.world_size = self._stage.world_size
        self.bytes_sent = 0

    def all_to_all(self, send: Tensor, send_splits: list[int], recv: Tensor, recv_splits: list[int]) -> None:
        parts = send.clone().split(send_splits)
        self.bytes_sent += sum(part.nbytes for rank, part in enumerate(parts) if rank != self.rank)
        arrived = self._stage.exchange(self.rank, parts)
        for source, target in zip(arrived, recv.split(recv_splits), strict=True):
            target.copy_(source[self.rank])

    def all_gather(self, send: Tensor, recv: Tensor) -> None:
        self.bytes_sent += send.nbytes * (self.world_size - 1)
        arrived = self._stage.exchange(self.rank, send.clone())
        for source, target in zip(arrived, recv.split(len(send)), strict=True):
            target.copy_(source)

    def messages(self) -> Messages:
        return LoopbackMessages(self.rank, self._stage)


@final
class LoopbackMessages(Messages):
    """Messages between the ranks of one process; the baton passes on where a rank waits for one."""

    def __init__(self, rank: int, stage: _Stage) -> None:
        self._stage = stage
        self.rank, self.world_size = rank, stage.world_size

    def send(self, message: Tensor, target: int, tag: int) -> None:
        self._stage.waits = 0
        self._stage.letters.setdefault((self.rank, target, tag), deque()).append(message.clone())

    def receive(self, message: Tensor, source: int, tag: int) -> None:
        stage = self._stage
        while not (letters := stage.letters.get((source, self.rank, tag))):
            if source in stage.gone:
                raise PeerLost(f"[rank {self.rank}/{stage.world_size}] rank {source} left before it sent a message.")
            stage.let_others_run(self.rank)
        stage.waits = 0
        message.copy_(letters.popleft())

    def flush(self) -> None:
        """See `Messages.flush`: a copy is on its way already."""


def run_ranks(program: Callable[[LoopbackTransport], T], world_size: int) -> list[T]:
    """Run `program` once per rank, all in this process, and return the results in rank order.

    Args:
        program: Called with the rank's transport, in a thread of its own; never two at the same moment.
        world_size: Number of ranks, at least 1.

    Raises:
        ConfigError: No ranks.
        Exception: The first exception that a rank raised, other than `PeerLost` caused by it.
    """
    if world_size < 1:
        raise ConfigError(f"expected world_size >= 1, got {world_size}.")
    stage = _Stage(world_size)
    results: list[T | None] = [None] * world_size

    def run_rank(rank: int) -> None:
        stage.wait_for_turn(rank)
        failure: BaseException | None = None
        try:
            results[rank] = program(LoopbackTransport(rank, stage))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            failure = error
        with stage.turn:
            stage.gone[rank] = failure
            stage.waits = 0
        stage.pass_on(rank)

    threads = [threading.Thread(target=run_rank, args=(rank,), name=f"rank-{rank}") for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failures = [error for error in stage.gone.values() if error is not None]
    for error in sorted(failures, key=lambda failure: isinstance(failure, PeerLost)):
        raise error
    return results  # type: ignore[return-value]  # no failure: every rank has left its result
