"""The process groups of a world that loses or gains ranks: each epoch has one of gloo, which met at a place of its own.

Of sockets it does not hold what holds of a board, that data which one rank has got is there for all: the dead rank may
have sent it to some only. So each collective is followed by a meeting, a message of one byte from each to each. Who has
passed it knows that all had begun it, hence had their data; nobody is ever one collective ahead of what the others can
still finish. No wait blocks: works are polled, beside the launcher's word. What belongs to an old epoch is kept until
the process ends: its works may still write into their tensors, and dropping it waits for peers that only stand still.

The exchange of a step is one meeting: its first agreement, all pieces and the step's report are what ranks must have
before they begin it, and one byte to each is the *seal* behind them. While it is on its way, a rank reads what it has
got; it writes nothing that stays. Here waits do block, in several threads, since
pieces cannot be polled; the thread that hears the launcher breaks off the group's connections (`LiveWaits`). Whoever is
called, or sees a peer's end, before he has begun the seal, leaves the exchange without asking: nobody can have passed a
meeting that he has not begun. The thread that trains asks then, for all of them; it alone begins seals.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from unisono.collectives.process_groups.across_hosts import share_within
from unisono.collectives.process_groups.exchanges import Exchanges
from unisono.collectives.process_groups.live_waits import Asking, LiveWaits
from unisono.collectives.process_groups.speakers import Hosts, group_by_host, host_of
from unisono.collectives.process_groups.within_host import WithinHost
from unisono.collectives.shm.board import Watcher
from unisono.collectives.shm.live_boards import LetGo, LiveWorlds, Speaker, World
from unisono.collectives.transport import TIMEOUT_S, Transport
from unisono.errors import PeerLost
from unisono.system.leaving import leave_groups_at_exit

if TYPE_CHECKING:
    from unisono.collectives.process_groups.exchange import PieceExchange

_CONNECT_S = 30.0
"""How long ranks connect that have all come, where nobody calls them to another world."""

T = TypeVar("T")

_SPINS, _PAUSE_S = 200, 0.0002
_LOOK_S = 0.002
_kept: list[Any] = []


class _OthersHavePassed(Exception):
    """A meeting is over, though this rank has not heard so from all."""


@final
class LiveGroupTransport(Asking):
    """Moves tensors between ranks of one epoch through a group that no other epoch uses.

    Args:
        group: Of these ranks.
        timeout_s: Longest wait for a rank that lives.

    Attributes:
        num_meetings: How many this rank has begun; counted through all epochs.
        live: Asked while waiting whether the world has changed, where ranks may go on without one that has died.
    """

    def __init__(self, group: dist.ProcessGroupGloo, timeout_s: float = TIMEOUT_S) -> None:
        self._group: Any = group
        self._timeout_s = timeout_s
        self.rank, self.world_size = group.rank(), group.size()
        self.bytes_sent = self.num_meetings = 0
        self.live: Watcher | None = None
        self._here = torch.ones(1, dtype=torch.uint8), torch.zeros(self.world_size, dtype=torch.uint8)
        self._waits = LiveWaits(self, group, timeout_s)
        self._hosts: Hosts | None = None
        self._within: WithinHost | None = None
        self._exchanges = Exchanges(self._new_exchange)
        self.make_exchange, self.tree_reducer = self._exchanges.new, self._reduce

    def all_to_all(self, send: Tensor, send_splits: list[int], recv: Tensor, recv_splits: list[int]) -> None:
        self.bytes_sent += (send.numel() - send_splits[self.rank]) * send.element_size()
        self._meet("all_to_all", lambda: self._group.alltoall_base(recv, send, recv_splits, send_splits), send, recv)

    def all_gather(self, send: Tensor, recv: Tensor) -> None:
        self.bytes_sent += send.nbytes * (self.world_size - 1)
        self._meet("all_gather", lambda: self._group._allgather_base(recv, send), send, recv)

    def _meet(self, what: str, start: Callable[[], Any], *tensors: Tensor) -> None:
        """Do a collective, and meet behind it.

        Raises:
            PeerLost: A rank has died, or has not come within the timeout.
            WorldChanged: It does not take place, the ranks go on in another world; only where there is a `live`.
        """
        meeting = self.num_meetings + 1
        if self.live is not None and self.live.is_called:
            self.live.at(meeting)
        self._wait(start(), what, meeting, tensors)
        self.num_meetings = meeting
        with contextlib.suppress(_OthersHavePassed):  # so all have begun it: what they have sent is there
            self._wait(self.begin_meeting(), what, meeting, self._here)

    def share_memory(self, host: str) -> None:
        """Let the exchange go through memory inside each host, where its ranks are consecutive; collective."""
        hosts = group_by_host(self.all_gather_json(host))
        if hosts is None or not 1 < len(hosts) < self.world_size:
            return
        self._within = share_within(self, hosts, timeout_s=self._timeout_s)
        if self._within is not None:
            self._within.watch(self._waits)
            self._hosts = hosts

    def seal(self, begin: Callable[[], Callable[[], None]]) -> Callable[[], None]:
        """Begin to meet behind an exchange, of which this rank has got all; the thread that trains calls it.

        Args:
            begin: Tells the others that this rank has its data, and returns what waits until all have said so.

        Returns:
            What waits for them, and raises the same.

        Raises:
            PeerLost: See `all_gather`.
            WorldChanged: The same.
        """
        meeting = self.num_meetings + 1
        if self.live is not None and self.live.is_called:
            self.live.at(meeting)
        self.num_meetings = meeting
        wait = self._sealed(meeting, begin)
        return lambda: wait and self._sealed(meeting, wait)

    def _sealed(self, meeting: int, act: Callable[[], T]) -> T | None:
        """Return what a part of the meeting gives; nothing where it is over."""
        try:
            return act()
        except LetGo as wait:
            with contextlib.suppress(_OthersHavePassed):  # so all have begun it: what they have sent is there
                self._answer(meeting, wait.why)
            return None

    def answer(self, why: str) -> NoReturn:
        """Say what it means that a wait for pieces of an exchange has been let go."""
        self._answer(self.num_meetings + 1, why)

    def interrupt(self) -> None:
        """Let threads go that wait in an exchange; another one calls this when the ranks are called."""
        self._waits.let_go()

    def _reduce(self, *args: Any) -> None:
        try:
            self._exchanges.reduce(*args)
        except LetGo as wait:  # of code that nobody anchors, too
            wait.answer()

    def _new_exchange(self) -> "PieceExchange":
        from unisono.collectives.process_groups.exchange import PieceExchange  # what loads this, too

        is_alone = self._hosts is None or len(self._hosts[host_of(self._hosts, self.rank)]) == 1
        within = None if is_alone else self._within
        return PieceExchange(self, lambda: self._group, self._hosts, within, self._waits)

    def begin_meeting(self) -> Any:
        """Tell the others that this rank has its data, and return what ends when all have said so."""
        return self._group._allgather_base(*reversed(self._here))

    def _wait(self, work: Any, what: str, meeting: int, tensors: tuple[Tensor, ...]) -> None:
        began, spins = time.monotonic(), 0
        try:
            while not work.is_completed():
                self._look(meeting)
                if time.monotonic() - began > self._timeout_s:
                    raise PeerLost(self._lost(what, f"a rank has not come within {self._timeout_s:g} s"))
                spins += 1
                os.sched_yield() if spins < _SPINS else time.sleep(_PAUSE_S)
            try:
                work.wait()
            except RuntimeError as error:
                self._answer(meeting, f"another rank has died ({str(error).strip().splitlines()[-1]})", what)
        except BaseException:
            _kept.append((work, tensors))
            raise

    def _answer(self, meeting: int, why: str, what: str = "exchange of gradients") -> NoReturn:
        """Raise what the launcher says of a meeting that cannot go on by itself; `PeerLost` where it says nothing."""
        while self.live is not None and not self.live.is_called and self.live.is_word_due():
            time.sleep(_PAUSE_S)
        self._look(meeting)
        raise PeerLost(self._lost(what, why))

    def _look(self, meeting: int) -> None:
        if self.live is not None and self.live.is_called and self.live.at(meeting):
            raise _OthersHavePassed

    def _lost(self, what: str, why: str) -> str:
        doing = f"{self.told(what)}, meeting {self.num_meetings}"
        return f"[rank {self.rank}/{self.world_size}] {why} (in {doing}). Hint: look for the first failure in its log."

    def close(self) -> None:
        """Keep the group, and what is on its way, until the process ends; safe to call twice."""
        self._waits.close(self._group)
        if self._within is not None:
            self._within.close()
        _kept.append([self._group, *self._exchanges.open()])


@final
class LiveGroups(LiveWorlds[LiveGroupTransport]):
    """The groups of one rank, an epoch after the other; `LiveBoards` for ranks that do not share memory.

    Args:
        store: Returns the store of an epoch by its name, for so many ranks: one that survives every rank. Takes what
            says, while a call waits for it, why to give up.
        ranks: This rank and the number of ranks; None for a rank that joins others.
        live: Speaks for this rank when the world changes.
        name: Returns what the others are told of an epoch whose first rank this is.
        host: Of this rank, where the ranks of a host are to share memory.

    Attributes:
        first: What joins the ranks of the start; None for a rank that joins others. Making it is collective.
    """

    def __init__(
        self, store: Callable[[str, int, Callable[[], str]], Store], ranks: tuple[int, int] | None, live: Speaker,
        name: Callable[[int], str] = "e{}".format, host: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(live)
        self._store, self._host = store, host
        live.offer = lambda size, epoch: "" if size == 1 else name(epoch)
        live.interrupt = self._interrupt
        leave_groups_at_exit()
        self.first = None if ranks is None else LiveGroupTransport(self._connect("e0", *ranks, 1))
        self._now = self.first
        if self.first is not None and host is not None:
            self.first.share_memory(host)

    def _interrupt(self) -> None:
        if self._now is not None and self._now.live is not None:
            self._now.interrupt()

    def _join(self, world: World, rank: int) -> Transport:
        self.close()
        self._now = now = LiveGroupTransport(self._connect(world.offer, rank, len(world.members), world.passed + 1))
        now.num_meetings, now.live = world.passed, self._live
        now.barrier() if self._host is None else now.share_memory(self._host)
        return now

    def close(self) -> None:
        """Leave the present group; safe to call twice."""
        if self._now is not None:
            self._now.close()

    def _connect(self, name: str, rank: int, size: int, meeting: int) -> dist.ProcessGroupGloo:
        """Return the group of an epoch, when all its ranks have come and are connected.

        It is made in a thread, which waits for stores and connections of hosts that may be lost just then. Who is
        called to another world leaves the thread behind. It ends at its next look at the store, or, in gloo's own
        connecting, when that is over; the interpreter waits for it when it ends.

        Raises:
            WorldChanged: The launcher calls to another world.
            PeerLost: They have not come, or have not connected.
        """
        is_left = threading.Event()
        executor = ThreadPoolExecutor(1, "unisono-connect")
        group = executor.submit(self._make, name, rank, size, is_left)
        executor.shutdown(wait=False)
        try:
            while not wait([group], _LOOK_S).done:
                if self._live.is_called:
                    self._live.at(meeting)
            return group.result()
        except RuntimeError as error:
            self._live.await_call()
            self._live.at(meeting)
            raise PeerLost(f"[rank {rank}/{size}] the ranks did not connect: {error}") from error
        except BaseException:
            is_left.set()
            raise

    def _make(self, name: str, rank: int, size: int, is_left: threading.Event) -> dist.ProcessGroupGloo:
        began = time.monotonic()

        def cut_off() -> str:
            return "this rank goes to another world" if is_left.is_set() else ""

        store = self._store(name, size, cut_off)
        store.set(f"here/{rank}", "")
        while not store.check([f"here/{other}" for other in range(size)]):  # gloo's own wait is shorter
            if is_left.wait(_LOOK_S):
                raise RuntimeError(cut_off())
            if time.monotonic() - began > TIMEOUT_S:
                raise PeerLost(f"[rank {rank}/{size}] a rank has not come within {TIMEOUT_S:g} s to the others.")
        group = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=_CONNECT_S))
        group.set_timeout(timedelta(seconds=2 * TIMEOUT_S))  # waits are ended by this rank itself
        return group
