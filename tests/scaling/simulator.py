"""A discrete-event simulator of collectives: runs the moves of a `Schedule` on a `Machine` (pure).

It checks the closed formulas of `costs`, and shows what they leave out: ranks that start late or are slow, and messages
that want the same port or network card at the same time. A rank enters a round when its own sends of the round before
have left and what it was to receive has arrived and been added: no other rank is waited for, as in
`unisono.collectives.execute`. All chunks from one rank to another in one round are one message. A rank sends to its
right neighbour first and to its left last, so that the messages of an all-to-all do not meet at one target.

Ports are taken in the order in which messages ask for them (first come, first served). Source of the method: Fujimoto,
"Parallel discrete event simulation", Comm. ACM 33 (1990), the sequential event list.
"""

import heapq
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from unisono.collectives.placement import cut
from unisono.collectives.schedules import Schedule
from unisono.errors import ConfigError
from unisono.scaling.machine import Machine


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One message as it was run.

    Attributes:
        source: Rank that sends.
        target: Rank that receives.
        round: Number of the round, from 1.
        num_bytes: Its length.
        began_s: When it took its ports.
        arrived_s: When its last byte arrived.
    """

    source: int
    target: int
    round: int
    num_bytes: int
    began_s: float
    arrived_s: float


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedRun:
    """What came out.

    Attributes:
        seconds: When the last rank had finished.
        finished_s: When each rank had.
        messages: In the order in which they took their ports.
    """

    seconds: float
    finished_s: tuple[float, ...]
    messages: tuple[Message, ...]


def run_schedule(
    schedule: Schedule,
    num_bytes: int,
    machine: Machine,
    *,
    contention: bool = False,
    late_s: Sequence[float] | None = None,
    slow: Mapping[int, float] | None = None,
) -> SimulatedRun:
    """Run a schedule of one collective on a buffer.

    Args:
        schedule: What to run.
        num_bytes: The whole buffer; the first chunks are a byte longer where they do not divide it.
        machine: What it is run on.
        contention: Whether messages also wait for the port of their target and, between nodes, for the network cards
            of both; without it, only for their source's port, which has its share of the cards.
        late_s: When each rank begins; None: all at 0.
        slow: For some ranks, how many times longer their port takes for a message and they take to add.

    Raises:
        ConfigError: Not as many times as ranks, a negative time, or a factor below 1.
    """
    world_size = schedule.world_size
    starts = list(late_s) if late_s is not None else [0.0] * world_size
    factors = dict.fromkeys(range(world_size), 1.0) | dict(slow or {})
    if len(starts) != world_size or any(not start >= 0 for start in starts):
        raise ConfigError(f"expected {world_size} times of 0 s or more in late_s, got {starts[:8]}.")
    if any(not factor >= 1 for factor in factors.values()) or len(factors) != world_size:
        raise ConfigError(f"expected factors of 1 or more for ranks 0 to {world_size - 1} in slow, got {slow}.")
    return _Simulation(schedule, num_bytes, machine, contention, starts, factors).run()


@dataclass(slots=True)
class _Stage:
    """What one rank has to do in one round."""

    outgoing: list[tuple[int, int]] = field(default_factory=list)  # target, bytes
    open: int = 0  # messages that have not left or arrived yet
    added_bytes: int = 0
    ready_s: float = 0.0


class _Simulation:
    def __init__(
        self, schedule: Schedule, num_bytes: int, machine: Machine, contention: bool,
        starts: list[float], factors: Mapping[int, float],
    ) -> None:  # fmt: skip
        self._machine, self._contention, self._factors = machine, contention, factors
        self._ranks, self._starts = schedule.world_size, starts
        lengths = [len(part) for part in cut(num_bytes, schedule.num_chunks)]
        self._stages = [_stages(schedule, number, lengths) for number in range(len(schedule.rounds))]
        self._shares = [_senders(stages, machine) for stages in self._stages]
        self._round = [-1] * self._ranks
        self._finished = list(starts)
        self._free: dict[tuple[str, int], float] = {}
        self._cards: dict[tuple[str, int], list[float]] = {}
        self._events: list[tuple[float, int, str, int, int, int]] = []  # time, number, kind, rank, round, place
        self._numbers = itertools.count()
        self._messages: list[Message] = []

    def run(self) -> SimulatedRun:
        for rank, start in enumerate(self._starts):
            self._enter(rank, start)
        while self._events:
            now, _, kind, rank, number, place = heapq.heappop(self._events)
            if kind == "arrive":
                self._close(rank, number, now)
            else:
                self._send(rank, number, place, now, kind)
        return SimulatedRun(
            seconds=max(self._finished), finished_s=tuple(self._finished), messages=tuple(self._messages)
        )  # fmt: skip

    def _enter(self, rank: int, now: float) -> None:
        """Let a rank begin its next rounds, as far as it has nothing to wait for."""
        while True:
            self._finished[rank] = now
            self._round[rank] += 1
            number = self._round[rank]
            if number == len(self._stages):
                return
            stage = self._stages[number][rank]
            stage.ready_s = max(stage.ready_s, now)
            if stage.outgoing:
                for port in ("inside", "between"):  # each port sends its own messages one after the other
                    self._ask(rank, number, -1, now, port)
            if stage.open:
                return
            now = self._done_s(stage, rank)

    def _ask(self, rank: int, number: int, last: int, now: float, port: str) -> None:
        """Let the next message after `last` of a port ask for its way, if there is one."""
        outgoing = self._stages[number][rank].outgoing
        for place in range(last + 1, len(outgoing)):
            if (port == "inside") == _is_local(self._machine, rank, outgoing[place][0]):
                heapq.heappush(self._events, (now, next(self._numbers), port, rank, number, place))
                return

    def _send(self, rank: int, number: int, place: int, now: float, port: str) -> None:
        target, num_bytes = self._stages[number][rank].outgoing[place]
        link = self._machine.inside if port == "inside" else self._machine.between
        share = 1.0
        if port == "between" and not self._contention:
            share = self._machine.share(self._shares[number][rank // self._machine.node_size])
        took_s = (link.overhead_s + num_bytes * link.s_per_byte * share) * self._factors[rank]
        ports = [(f"out {port}", rank)]
        if self._contention:
            ports.append((f"in {port}", target))
        began = max([now, *(self._free.get(one, 0.0) for one in ports)])
        cards: list[tuple[list[float], int]] = []
        if self._contention and port == "between":
            for side, end in (("out", rank), ("in", target)):
                free = self._cards.setdefault((side, end // self._machine.node_size), [0.0] * self._machine.nics)
                cards.append((free, free.index(min(free))))
            began = max([began, *(free[index] for free, index in cards)])
        left = began + took_s
        for one in ports:
            self._free[one] = left
        for free, index in cards:
            free[index] = left
        arrived = left + link.latency_s
        self._messages.append(
            Message(source=rank, target=target, round=number + 1, num_bytes=num_bytes, began_s=began, arrived_s=arrived)
        )
        heapq.heappush(self._events, (arrived, next(self._numbers), "arrive", target, number, 0))
        self._ask(rank, number, place, left, port)
        self._close(rank, number, left)

    def _close(self, rank: int, number: int, now: float) -> None:
        """One message of a rank's round has left or arrived."""
        stage = self._stages[number][rank]
        stage.open -= 1
        stage.ready_s = max(stage.ready_s, now)
        if not stage.open and self._round[rank] == number:
            self._enter(rank, self._done_s(stage, rank))

    def _done_s(self, stage: _Stage, rank: int) -> float:
        return stage.ready_s + stage.added_bytes * self._machine.add_s_per_byte * self._factors[rank]


def _stages(schedule: Schedule, number: int, lengths: Sequence[int]) -> list[_Stage]:
    """Return what each rank does in a round."""
    ranks = schedule.world_size
    stages = [_Stage() for _ in range(ranks)]
    sizes: dict[tuple[int, int], int] = {}
    for move in schedule.rounds[number]:
        sizes[move.source, move.target] = sizes.get((move.source, move.target), 0) + lengths[move.chunk]
        stages[move.target].added_bytes += lengths[move.chunk] if move.action != "copy" else 0
    for (source, target), size in sorted(sizes.items(), key=lambda item: (item[0][1] - item[0][0]) % ranks):
        stages[source].outgoing.append((target, size))
        stages[source].open += 1
        stages[target].open += 1
    return stages


def _senders(stages: Sequence[_Stage], machine: Machine) -> dict[int, int]:
    """Return for each node how many of its ranks send to other nodes in a round."""
    found: dict[int, int] = {}
    for rank, stage in enumerate(stages):
        if any(not _is_local(machine, rank, target) for target, _ in stage.outgoing):
            node = rank // machine.node_size
            found[node] = found.get(node, 0) + 1
    return found


def _is_local(machine: Machine, source: int, target: int) -> bool:
    """Whether two ranks are on one node."""
    return source // machine.node_size == target // machine.node_size
