"""The world of a run whose ranks may die, and others join: who is in it, and how it changes."""

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar, final

from unisono.checkpoint.format import State
from unisono.collectives.leader import leader_says
from unisono.collectives.places import GuardedTransport, enter_world
from unisono.collectives.shm.live_boards import LetGo, Worlds
from unisono.errors import CheckpointError, ConfigError, RunStopped
from unisono.launchers.supervision.replacements import node_of_later
from unisono.launchers.worker.live_member import LiveMember, WorldChanged
from unisono.strategies.options import StrategyOptions
from unisono.train.run_directory.handover import hand_over
from unisono.world import World

T = TypeVar("T")
_JOIN = 2
_CHANGES = ("deaths", "joins", "released")


class Files(Protocol):
    """What a run keeps, and what a rank that joins is given; `Newcomers` does it."""

    def follow_world(self, changes: Mapping[str, int]) -> None:
        """Let the files follow when so many ranks have died, joined and left, by names of the result; collective."""

    def given(self) -> tuple[dict[str, Any], State]:
        """Return what a rank that joins needs, JSON-able, and the state of the parts; on the leader."""

    def place(self) -> str:
        """Return the absolute path of the run directory; empty where there is none."""


@final
class Live:
    """What a run needs to go on when a rank dies or joins: the others begin what they do again, in another world.

    What a step needs is a pure function of the score, the step and the replica, and of what every rank holds after the
    step before. So the dead rank's replicas are computed by others, and the bits are the same. Outside of steps whole
    operations (an evaluation, a save, the end) are done again by `again`. All survivors leave a world in the same
    operation, since all leave it between the same two meetings. Then the files are seen to: before the operation
    that is done again; but a step is finished first.

    A rank that joins has run the program alone up to its first step. The launcher tells the others, one of them says so
    in the report of a step, hence all know it, and behind this step they let it in: it gets from the leader what a
    checkpoint of this step would hold, and begins with the next one.

    Args:
        member: Hears the launcher.
        world: Of the start.
        transport: Of the run; its insides are replaced.
        worlds: What carries, one world after the other; None where it cannot go on.
        options: Of the strategy.
        why_not: Why this run cannot go on without a rank; empty where it can.

    Attributes:
        world: That of now.
        joined_after: The step after which this rank has joined the others; -1 where it was there from the start.
    """

    def __init__(
        self, member: LiveMember, world: World, transport: GuardedTransport, worlds: Worlds | None,
        options: StrategyOptions, why_not: str,
    ) -> None:  # fmt: skip
        self._member, self._transport, self._options = member, transport, options
        self._why_not, self._boards = why_not, worlds
        self._run: Any = None
        self._files: Files
        self._members: tuple[int, ...] = () if world.joins is not None else (*range(world.world_size),)
        self._new: tuple[int, ...] = ()  # members that have nothing of the run yet
        self._changes = dict.fromkeys(_CHANGES, 0)  # since the files have followed
        self._start = world
        self._is_let_in = False
        self.joined_after = -1
        self._is_new = False  # whether the files have still to follow
        self.world = world
        if self._boards is not None:
            transport.repeat = self.again

    @property
    def is_possible(self) -> bool:
        """Whether this run can go on without a rank at all."""
        return self._boards is not None

    def refuse(self, why_not: str) -> None:
        """Leave it to the launcher to start anew, before the first step."""
        self._why_not, self._boards, self._transport.repeat = why_not, None, None

    def serve(self, run: Any, files: Files) -> None:
        """Keep the `world` and the `placement` of a run as they are, and its files."""
        self._run, self._files = run, files

    def asks(self, is_stop_asked: Callable[[], bool]) -> Callable[[], int]:
        """Return what a rank asks of the others in a step's report: 1 to stop, 2 more to let others in."""
        member = self._member
        return lambda: is_stop_asked() + (_JOIN if member.is_knocked else 0)

    def over(self, steps: Generator[T]) -> Generator[T]:
        """Pass on `steps`; from the first one on, deaths can be lived through, until the leader has written the end."""
        is_open = is_over = False
        with contextlib.closing(steps):
            try:
                for batch in steps:
                    if not is_open:
                        is_open = True
                        self._member.open(self._why_not, replicas=self._run.replicas, directory=self._files.place())
                        if self._boards is not None:
                            self._boards.watch(is_on=True)
                    yield batch
                is_over = True
            except RunStopped:
                is_over = True
                raise
            finally:
                if is_open and self._boards is not None:
                    self._end(self._boards, is_over=is_over)

    def _end(self, boards: Worlds, *, is_over: bool) -> None:
        """Take leave of the others: the leader has written the end when all have met once more."""
        if is_over:
            self.again(self._transport.barrier)
        boards.watch(is_on=False)
        self._member.finish(boards.passed) if is_over else self._member.close()

    def again(self, act: Callable[[], T]) -> T:
        """Return what `act` gives, a collective operation that may be done again; see `Transport.again`."""
        if self._boards is None or not self._boards.is_watched or self._member.is_anchored:
            return act()
        while True:
            try:
                with self.anchored():
                    self.settle()
                    return act()
            except WorldChanged:
                self.move()

    def settle(self) -> None:
        """Let the files follow, where the world has changed; collective."""
        if self._new:
            self._hand_over()
        if self._is_new:
            self._files.follow_world(self._changes)
            self._is_new, self._changes = False, dict.fromkeys(_CHANGES, 0)

    def catch_up(self) -> None:
        """Let the files follow after a step that has been begun again; collective."""
        if self._is_new:
            self.again(lambda: None)

    def let_in(self) -> None:
        """Let in those that are ready to join, and leave where this rank is released, between two steps; collective."""
        self._is_let_in = False
        self.again(self._wait_at_door)

    def _wait_at_door(self) -> None:
        if not self._is_let_in and self._boards is not None:
            self._boards.wait_at_door()

    def join(self, check: Callable[[dict[str, Any]], str]) -> tuple[dict[str, Any], State]:
        """Wait until the others let this rank in; return what they give it, see `Files.given`.

        Args:
            check: Says why what is given does not fit what this rank has; empty where it does.
        """
        if self._boards is None:
            self._member.refuse(self._why_not)
        self._member.enter()
        while True:
            self.move()
            with contextlib.suppress(WorldChanged), self.anchored():
                facts, state = self._hand_over(check)
                self._changes, self.joined_after = facts["changes"], facts["done"]
                return facts, state

    def _hand_over(self, check: Callable[[dict[str, Any]], str] | None = None) -> tuple[dict[str, Any], State]:
        """Give those that have joined what they need, or (with `check`) take it; collective."""
        found: list[State] = []

        def read() -> dict[str, Any]:
            try:
                facts, state = self._files.given()
            except (CheckpointError, ConfigError) as error:
                return {"cannot": str(error)}
            found.append(state)
            new = [self._members.index(member) for member in self._new]
            return {**facts, "changes": self._changes, "new": new}

        facts: dict[str, Any] = leader_says(self._transport, read)
        why = facts.get("cannot", "")
        if check is not None and (why := why or check(facts)):
            self._member.refuse(why)
        state = State(tensors={}, values={})
        if not why:
            _, state = hand_over(self._transport, 0, lambda: (0, found[0]), to=facts["new"])
        self._new = ()
        return facts, state

    def look(self) -> None:
        """Raise `WorldChanged` where the world has changed; between the meetings of what is done again."""
        if self._boards is not None and self._member.is_anchored:
            self._boards.look()

    @contextlib.contextmanager
    def anchored(self) -> Iterator[None]:
        """Surround what can be begun again; `WorldChanged` comes out of it where it has to be."""
        self._member.is_anchored = True
        try:
            yield
        except LetGo as wait:
            wait.answer()
        finally:
            self._member.is_anchored = False

    def move(self) -> None:
        """Go to the new world: transport, world and placement of the run are those of the ranks that are left.

        Raises:
            PeerLost: The launcher ends this world.
        """
        assert self._boards is not None
        with self.anchored():
            while True:
                with contextlib.suppress(WorldChanged):  # one more has died: the next epoch
                    below = self._boards.move()
                    break
        self._follow_members()
        self._transport.replace(below)
        rank, size = below.rank, below.world_size
        if below.rank == 0 != self.world.rank:
            self._member.lead()
        here = [member for member in self._members if self._is_here(member)]
        local = here.index(self._member.number)
        self.world = replace(self.world, rank=rank, world_size=size, local_rank=local, local_world_size=len(here))
        self._is_new = True
        enter_world(self.world, self._transport)
        self._run.world = self.world
        self._run.placement[:] = self._options.place(self._run.replicas, size)

    def _is_here(self, member: int) -> bool:
        """Whether a member is on this host."""
        start, first = self._start, self._start.rank - self._start.local_rank
        if start.is_single_host or member < start.world_size:
            return start.is_single_host or first <= member < first + start.local_world_size
        return node_of_later(member, start.world_size, start.num_nodes) == start.node_rank

    def _follow_members(self) -> None:
        assert self._boards is not None
        world = self._boards.world
        assert world is not None
        before, now = {*self._members}, {*world.members}
        if before:
            self._new = tuple(sorted({*self._new, *(now - before)} & now))
            found = (before - now) - self._member.released, now - before, (before - now) & self._member.released
            for member in sorted(found[0] & self._member.deaths.keys()):
                self._run.phases.lost(member, self._member.deaths[member])
            self._changes = {
                name: self._changes[name] + len(ranks) for name, ranks in zip(_CHANGES, found, strict=True)
            }
        self._members = world.members
        self._is_let_in |= world.is_door

    def close(self) -> None:
        """Leave the last world's memory; safe to call twice."""
        if self._boards is not None:
            self._boards.close()
