"""Membership, played through: every order of deaths, meetings and messages, until nothing new can happen."""

import functools
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import pytest

from unisono.launchers.membership import Form, Halt, Knock, Leave, Membership
from unisono.launchers.worker.member import Member

ENDLESS = 10**9  # a meeting that nobody has passed


class Worker(NamedTuple):
    """A member with its program: steps of some meetings, the last of which seals it.

    In a new world there is one more first; where others have joined, one more then, in which they get the state.
    """

    side: Member
    members: tuple[int, ...]
    is_alive: bool = True
    is_waiting: bool = False  # in the meeting after those it has passed
    begun: int = 0
    is_new: bool = False  # in a world where it has not met the others yet
    at: int = 0  # meetings of the step that it has passed
    done: int = 0
    has_ended: bool = False
    is_guest: bool = False  # it waits to be called to a world
    has_state: bool = True
    is_knocked: bool = False
    at_door: bool = False  # nothing is begun before a world is called from the door
    said: int = -1  # the epoch in which it has said that it is there
    gives: tuple[int, ...] = ()  # who has to get the state
    is_released: bool = False
    is_cut: bool = False  # its launcher is not heard any more, but it lives and meets the others where they come

    @property
    def next_meeting(self):
        return self.side.passed + 1

    @property
    def is_held(self):
        """Whether it passes no meeting of its world by itself: `LiveMember.at` does not return until it moves."""
        return self.side.told > self.side.epoch


class State(NamedTuple):
    """Everything: both sides, and what is under way between them, in order for each worker."""

    launcher: Membership
    workers: tuple[Worker, ...]
    up: tuple[tuple, ...]
    down: tuple[tuple, ...]
    deaths: int
    sizes: tuple[int, ...] = ()  # that the world is still to be given, one after the other
    noticed: frozenset = frozenset()
    joined: frozenset = frozenset()  # (epoch, members, steps done): of all that have moved there
    ready: frozenset = frozenset()  # (epoch, member): who has said so
    bits: frozenset = frozenset()  # (meeting, whether its report told of guests): of all seals


def put(values, index, value):
    return (*values[:index], value, *values[index + 1 :])


class Play:
    """All that can happen, from one state to the next."""

    def __init__(self, size, deaths, steps, per_step=2, fewest=1, guests=0, sizes=(), far=(), is_cut=True):
        self.steps, self.per_step, self.is_cut = steps, per_step, is_cut
        self.far = far  # workers of another host, which may fall silent with all of them
        members = tuple(range(size))
        workers = tuple(Worker(Member(number), members) for number in members)
        come = [Worker(Member(size + number), (), is_guest=True, has_state=False) for number in range(guests)]
        workers, nothing = (*workers, *come), ((),) * (size + guests)
        launcher = Membership(members, fewest, far=frozenset({*far} & {*members}))
        self.first = State(launcher, workers, nothing, nothing, deaths, sizes)
        self.ends, self.num_states, self.answers = Counter(), 0, {}

    def run(self):
        """Visit every state that can be reached; raise where a promise is broken."""
        seen, line = {self.first}, [self.first]
        while line:
            state = line.pop()
            if state.launcher.phase == "left":
                self.check_reason(state)
                continue
            found = [*self.next_states(state)]
            if not found:
                self.check_end(state)
            for other in [*found, *self.killed(state)]:
                known = len(seen)
                seen.add(other)
                if len(seen) > known:
                    line.append(other)
        self.num_states = len(seen)
        return self

    def killed(self, state):
        """A member may die at any time, or its whole host be cut off: what it says then is not heard."""
        if self.is_cut and self.far and not any(state.workers[number].is_cut for number in self.far):
            workers = state.workers
            for number in self.far:
                workers = put(workers, number, workers[number]._replace(is_cut=True))
            yield state._replace(workers=workers)
        if state.deaths:
            for index, worker in enumerate(state.workers):
                if worker.is_alive and not worker.has_ended:
                    workers = put(state.workers, index, worker._replace(is_alive=False))
                    yield state._replace(workers=workers, down=put(state.down, index, ()), deaths=state.deaths - 1)

    def next_states(self, state):
        """Whatever else may happen next."""
        if state.sizes:
            known = state._replace(sizes=state.sizes[1:])
            yield self.launch(known, Membership.resize, state.sizes[0])
        cut = [index for index in self.far if state.workers[index].is_cut and index not in state.noticed]
        if cut:
            # `DecidingRecovery` lets nobody come of a host that is left out; of members late words come.
            up = tuple(
                () if index in {*cut} - {*state.launcher.members} else said for index, said in enumerate(state.up)
            )
            known = state._replace(noticed=state.noticed | {*cut}, up=up)
            yield self.launch(known, self.lose, tuple(cut))
        for index, worker in enumerate(state.workers):
            if not worker.is_alive and index not in state.noticed:
                known = state._replace(noticed=state.noticed | {index}, up=put(state.up, index, ()))
                yield self.launch(known, Membership.died, index)
            if state.up[index]:
                what, *rest = state.up[index][0]
                known = state._replace(up=put(state.up, index, state.up[index][1:]))
                yield self.launch(known, self.tell, what, tuple(rest))
            if worker.is_alive and not worker.has_ended:
                yield from self.acts(state, index, worker)

    @staticmethod
    def lose(side, cut):
        """Leave out a host, as `DecidingRecovery` does: nobody waits for those that have finished."""
        orders = ()
        for member in (member for member in cut if member not in side.finished):
            side, more = side.died(member)
            orders += more
        return side, orders

    def tell(self, side, what, rest):
        if what == "ready":
            epoch, member, passed = rest
            return side.heard_ready(epoch, member, passed=passed, offer=f"{member} at {epoch}")
        events = {
            "finished": side.has_finished, "door": side.came_to_door, "state": side.has_state,
            "arrived": functools.partial(side.invite, is_far={*rest} <= {*self.far}),
        }  # fmt: skip
        if what in events:
            return events[what](*rest)
        return side.heard_up(*rest) if what == "up" else side.ended(*rest)

    def launch(self, state, event, *about):
        """An event for the launcher: its orders go to all members; the same event again changes nothing.

        Many states share a launcher's side, which is pure: each side is asked about each event once.
        """
        asked = state.launcher, event, about
        if asked not in self.answers:
            side, _ = self.answers[asked] = event(state.launcher, *about)
            assert event(side, *about) == (side, ()), "not idempotent"
        side, orders = self.answers[asked]
        down = state.down
        for order in orders:
            if isinstance(order, Form):
                assert not state.noticed & {*order.members}, "a world with a member that is known to be dead"
                assert {(order.epoch, member) for member in order.members} <= state.ready, "not all were asked"
                offers = (f"{order.members[0]} at {order.epoch}", "" if side.finished else None)
                assert order.offer in offers, "the offer is of another epoch"
                self.check_first(state, side, order.members)
            released = order.released if isinstance(order, Halt) else ()
            for worker in (state.workers[number] for number in released):
                assert worker.at_door and worker.said == order.epoch - 1, "released within a step"
            if not isinstance(order, Leave):
                told = (*side.members, *released)
                for member in (number for number in told if state.workers[number].is_alive):
                    down = put(down, member, (*down[member], order))
        ready = frozenset(entry for entry in state.ready if entry[0] >= side.epoch)
        return state._replace(launcher=side, down=down, ready=ready)

    def check_first(self, state, side, members):
        """The first member has the state, and is on this host if one is that has not finished; nobody has two."""
        first, home = members[0], {*side.members} - {*self.far}
        assert state.workers[first].has_state, "the first has nothing to give"
        assert first in home or home <= side.finished | side.new, "the first is on another host"
        before = {worker.members[0] for worker in state.workers if worker.is_alive and worker.members}
        assert not before & {*members} - {first}, "the first of a world before lives"

    def acts(self, state, index, worker):
        """What one worker can do."""

        def become(changed, *said):
            said = () if worker.is_cut else said
            up = put(state.up, index, (*state.up[index], *said))
            return state._replace(workers=put(state.workers, index, changed), up=up)

        if state.down[index]:
            order, *rest = state.down[index]
            known = state._replace(down=put(state.down, index, tuple(rest)))
            if isinstance(order, Knock):
                heard = worker._replace(is_knocked=True)
            elif isinstance(order, Halt) and index in order.released:
                heard = worker._replace(has_ended=True, is_released=True)
                self.ends["released"] += 1
            else:
                heard = worker._replace(side=worker.side.hear(order))
                assert heard.side.hear(order) == heard.side, "not idempotent"
            yield known._replace(workers=put(known.workers, index, heard))
        if worker.is_guest:
            yield from self.waits(become, index, worker)
            return
        advice, meeting = worker.side.advise(worker.next_meeting), worker.next_meeting
        if worker.done == self.steps and not worker.is_new and not worker.gives:
            ended = worker._replace(has_ended=True)
            yield become(ended, ("finished", index, worker.side.passed), ("ended", index))
            return
        if (
            advice == "go"
            and worker.at_door
            and worker.said < worker.side.epoch
            and not (worker.is_new or worker.gives)
        ):
            yield become(worker._replace(said=worker.side.epoch), ("door", worker.side.epoch, index))
        if advice == "go" and not worker.is_waiting and (worker.is_new or worker.gives or not worker.at_door):
            yield become(worker._replace(is_waiting=True, begun=meeting))
        if advice == "freeze":
            frozen = become(
                worker._replace(side=worker.side.froze()), ("ready", worker.side.called, index, worker.side.passed)
            )
            yield frozen._replace(ready=frozen.ready | {(worker.side.called, index)})
        if advice == "complete":
            assert worker.is_waiting, "a meeting that others have passed was not begun by all"
            yield from self.past(state, become, worker)
        elif advice == "move":
            yield self.move(become, worker)
        elif worker.is_waiting and not worker.is_held and self.is_full(state, worker):
            yield from self.past(state, become, worker)

    def waits(self, become, index, worker):
        """What a guest does: it says that it is there, freezes when it is called, and comes to the world."""
        advice = worker.side.advise(ENDLESS)
        if worker.said < 0:
            yield become(worker._replace(said=0), ("arrived", index))
        elif advice == "freeze":
            epoch = worker.side.called
            frozen = become(worker._replace(side=worker.side.froze()), ("ready", epoch, index, 0))
            yield frozen._replace(ready=frozen.ready | {(epoch, index)})
        elif advice == "move":
            yield self.move(become, worker._replace(said=-1))

    @staticmethod
    def is_full(state, worker):
        """Whether all of the worker's world have begun its meeting."""
        others = [state.workers[number] for number in worker.members]
        return all(other.begun >= worker.next_meeting and other.side.epoch >= worker.side.epoch for other in others)

    def past(self, state, become, worker):
        """The worker behind its meeting, and what it says."""
        meeting = worker.next_meeting
        passed = worker._replace(side=worker.side.has_passed(meeting), is_waiting=False)
        if worker.is_new:
            yield become(passed._replace(is_new=False), ("up", worker.side.epoch, worker.side.number))
        elif worker.gives:
            given = passed._replace(gives=())
            if worker.has_state:
                yield become(given)
                return
            known = {done for epoch, _, done in state.joined if epoch == worker.side.epoch}
            assert len(known) == 1, "nobody has the state"
            (done,) = known
            self.ends["joined"] += 1
            yield become(given._replace(has_state=True, done=done), ("state", worker.side.number))
        elif worker.at + 1 < self.per_step:
            yield become(passed._replace(at=worker.at + 1))
        else:
            known = dict(state.bits)
            others = [state.workers[number] for number in worker.members]
            for bit in [known[meeting]] if meeting in known else {False, any(other.is_knocked for other in others)}:
                done = worker.done + 1
                sealed = become(passed._replace(at=0, done=done, at_door=bit and done < self.steps))
                yield sealed._replace(bits=state.bits | {(meeting, bit)})

    @staticmethod
    def move(become, worker):
        """The worker in the new world, its step to be done again."""
        world = worker.side.world
        assert world.offer or len(world.members) == 1, "there is no place to meet"
        come = {*world.members} - {*worker.members} if worker.has_state or not worker.is_guest else {worker.side.number}
        moved = worker._replace(side=worker.side.moved(), members=world.members, is_waiting=False, begun=world.passed,
            is_new=True, at=0, is_guest=False, gives=tuple(sorted({*worker.gives, *come} & {*world.members})),
            at_door=worker.at_door and not world.is_door, is_knocked=worker.is_knocked and not world.is_door,
        )  # fmt: skip
        state = become(moved)
        others = {entry[1:] for entry in state.joined if entry[0] == world.epoch}
        if not worker.has_state:
            assert not {members for members, _ in others} - {world.members}, "one is in another world"
            return state
        assert not others - {(world.members, worker.done)}, "one is a step ahead, or in another world"
        return state._replace(joined=state.joined | {(world.epoch, world.members, worker.done)})

    def check_reason(self, state):
        """It was given up, for what cannot be mended."""
        side, alive = state.launcher, [worker for worker in state.workers if worker.is_alive]
        there = {*side.members} - side.new - side.finished  # as far as the launcher knows
        able = [worker for worker in alive if worker.has_state and worker.side.number in there]
        is_home = any(worker.side.number not in self.far for worker in able)
        assert len(able) < side.fewest or not is_home, "given up without need"
        self.ends["few"] += 1

    def check_end(self, state):
        """Nothing more can happen: the survivors have done everything, in one world."""
        away = lambda worker: worker.is_guest | worker.is_released | worker.is_cut  # noqa: E731
        left = [worker for worker in state.workers if worker.is_alive and not away(worker)]
        assert all(worker.has_ended for worker in left), "deadlock"
        assert all(worker.has_state for worker in left)
        assert {worker.done for worker in left} == {self.steps}
        members = [
            number for number in state.launcher.members if not state.workers[number].is_cut
        ]  # these had finished
        assert sorted(members) == [worker.side.number for worker in left]
        assert (state.launcher.phase, state.launcher.active) == ("steady", ())
        self.ends[state.launcher.epoch] += 1


@pytest.mark.parametrize(
    ("size", "deaths", "steps", "per_step"),
    [
        (2, 1, 2, 2),
        (3, 1, 1, 2),
        (3, 2, 1, 1),
        pytest.param(3, 2, 1, 2, marks=pytest.mark.slow),
        pytest.param(4, 2, 1, 1, marks=pytest.mark.slow),
    ],
)
def test_every_order_of_events(size, deaths, steps, per_step):
    """Survivors end in one world with one list of members, none a step ahead, and nobody waits for ever."""
    play = Play(size, deaths, steps, per_step).run()
    assert play.num_states > 1000
    assert {*range(deaths + 1)} == {*play.ends}  # each number of deaths can be lived through


@pytest.mark.parametrize(
    ("size", "deaths", "steps"),
    [(2, 0, 2), pytest.param(1, 1, 2, marks=pytest.mark.slow), pytest.param(2, 1, 2, marks=pytest.mark.slow)],
)
def test_every_order_in_which_one_joins(size, deaths, steps):
    """Guests join at the door, whoever dies meanwhile: with the state, none a step ahead, and nobody waits for ever."""
    play = Play(size, deaths, steps, 1, guests=1).run()
    assert play.ends["joined"]
    assert play.num_states > 1000


@pytest.mark.parametrize(
    ("size", "deaths", "steps", "guests", "sizes"),
    [
        (3, 0, 2, 0, (2,)),
        (2, 1, 2, 0, (1,)),
        pytest.param(3, 1, 2, 0, (2,), marks=pytest.mark.slow),
        pytest.param(2, 0, 2, 1, (2, 1, 2), marks=pytest.mark.slow),
        pytest.param(1, 1, 3, 1, (1, 2), marks=pytest.mark.slow),
    ],
)
def test_every_order_in_which_the_world_is_resized(size, deaths, steps, guests, sizes):
    """Who is released has finished a step that all have; the others go on, whoever dies or joins meanwhile."""
    play = Play(size, deaths, steps, 1, guests=guests, sizes=sizes).run()
    assert play.ends["released"]
    assert play.num_states > 300


def test_who_is_let_in_and_who_leaves():
    """Those that came last leave; a guest is let in where there is room, and waits where there is none."""
    side, orders = Membership((0, 1, 2), most=3).invite(3)
    assert orders == ()
    side, orders = side.resize(2)
    assert orders == (Knock(),)
    for member in (0, 1, 2):
        side, orders = side.came_to_door(0, member)
    assert orders == (Halt(1, (0, 1), (2,), is_door=True),)
    assert (side.members, side.guests, side.died(2), side.ended(2)) == ((0, 1), (3,), (side, ()), (side, ()))
    for member in (0, 1):
        side, _ = side.heard_ready(1, member, passed=4)
    for member in (0, 1):
        side, orders = side.heard_up(1, member)
    assert (orders, side.phase) == ((), "steady")
    side, orders = side.resize(3)
    assert orders == (Knock(),)
    for member in (0, 1):
        side, orders = side.came_to_door(1, member)
    assert orders == (Halt(2, (0, 1, 3), is_door=True),)


@pytest.mark.parametrize(
    ("size", "deaths", "steps", "far"),
    [(3, 0, 1, (1, 2)), (2, 0, 2, (1,)), pytest.param(3, 1, 1, (2,), marks=pytest.mark.slow)],
)
def test_every_order_in_which_a_host_falls_silent(size, deaths, steps, far):
    """Its members live on, unheard, and come to meetings: the others end in one world without them."""
    play = Play(size, deaths, steps, 2 - deaths, far=far).run()
    assert play.num_states > 300
    assert {0, 1} <= {*play.ends}


@pytest.mark.parametrize("far", [(1,), pytest.param((1, 2), marks=pytest.mark.slow)])
def test_every_order_in_which_one_joins_on_several_hosts(far):
    """A guest of either host: whoever dies, the first is on this host and has the state, and stays first."""
    play = Play(2, 1, 2, 1, guests=1, far=far, is_cut=False).run()
    assert play.ends["joined"]
    assert {0, 1, "few"} <= {*play.ends}


@pytest.mark.parametrize("far", [pytest.param((1,), marks=pytest.mark.slow), (1, 2)])
def test_every_order_in_which_a_host_falls_silent_and_one_joins(far):
    """The guest is of either host: nobody waits for one of the lost host, and one of this host is let in."""
    play = Play(2, 0, 2, 1, guests=1, far=far).run()
    assert play.ends["joined"]
    assert {0, 1, 2} <= {*play.ends}


def test_a_silent_host_is_left_out_as_a_whole(monkeypatch):
    """Negative control: members that had finished are no dead ones; nobody waits for them."""
    monkeypatch.setattr(Play, "lose", staticmethod(lambda side, cut: functools.reduce(_lost, cut, (side, ()))))
    with pytest.raises(AssertionError, match="without need"):
        Play(3, 0, 1, 2, far=(1, 2)).run()


def _lost(told, member):
    side, orders = told[0].died(member)
    return side, told[1] + orders


def test_too_few_are_left():
    """With fewer members than asked for it is given up, and only then."""
    assert {*Play(3, 2, 1, 1, fewest=2).run().ends} == {0, 1, "few"}


def _any_epoch(side, epoch, member, **told):
    return _heard_ready(side, side.epoch, member, **told)


def _only_the_last(side, epoch, member, **told):
    return _heard_ready(replace(side, passed=0), epoch, member, **told)


def _same_epoch(side, member):
    changed, orders = _died(side, member)
    return replace(changed, epoch=1), tuple(replace(order, epoch=1) for order in orders if isinstance(order, Halt))


def _deaf(side, order):
    return replace(side, called=order.epoch, world=None)


def _never_answered(side, first, released=()):
    return _call(replace(side, is_door=False), first, released)


def _released_at_once(side, most):
    """Let those that are too many go wherever they are."""
    changed, orders = _resize(side, most)
    return changed._changed_at_door() if orders else (changed, ())


def _by_seniority(side, first):
    return side.members


def _home_first(side, first):
    return tuple(sorted(side.members, key=lambda one: one in side.far))


def _none_is_new(side, member):
    return _died(replace(side, new=frozenset()), member)


_heard_ready, _died = Membership.heard_ready, Membership.died
_call, _resize = Membership._call, Membership.resize


@pytest.mark.parametrize(
    ("kind", "name", "broken", "play"),
    [
        pytest.param(Membership, "heard_ready", _any_epoch, (3, 2, 1, 1), id="late words count"),
        pytest.param(Membership, "heard_ready", _only_the_last, (3, 1, 1, 2), id="who passed most"),
        pytest.param(Membership, "died", _same_epoch, (3, 2, 1, 1), id="one epoch for two deaths"),
        pytest.param(Worker, "is_held", False, (3, 1, 2, 1), id="thaws"),
        pytest.param(Member, "hear", _deaf, (2, 1, 1, 1), id="hears the same twice"),
        pytest.param(Membership, "_call", _never_answered, (2, 0, 2, 1, 1, 1), id="nobody is let in"),
        pytest.param(
            Membership, "_ordered", _by_seniority, (2, 1, 2, 1, 1, 1, (), (1,), False), id="any host may be first",
        ),
        pytest.param(Membership, "resize", _released_at_once, (2, 0, 2, 1, 1, 0, (1,)), id="released within a step"),
        pytest.param(
            Membership, "died", _none_is_new, (1, 1, 2, 1, 1, 1), id="goes on without the state",
            marks=pytest.mark.slow,
        ),
        # Only four members and two deaths show it: one is frozen in a meeting of a world that others have left.
        pytest.param(
            Worker, "is_held", property(lambda worker: worker.side.told == worker.side.called > worker.side.epoch),
            (4, 2, 1, 2), id="thaws when called again", marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_a_broken_rule_is_found(monkeypatch, kind, name, broken, play):
    """Negative control: the play finds an order of events for each rule that is taken away."""
    monkeypatch.setattr(kind, name, broken)
    with pytest.raises(AssertionError):
        Play(*play).run()


def test_what_cannot_go_on():
    """A member's refusal, a word from outside and a death after a member's end lead to one `Leave`, with the reason."""
    called, orders = Membership((0, 1, 2)).died(1)
    assert orders == (Halt(1, (0, 2)),)
    assert called.heard_ready(1, 2, passed=3, refusal="2 cannot")[1] == (Leave("2 cannot"),)
    left, orders = called.give_up("20 s are over")
    assert orders == (Leave("20 s are over"),)
    assert [left.died(0), left.ended(0), left.heard_ready(1, 0, passed=3)] == [(left, ())] * 3
    ending, orders = Membership((0, 1, 2)).ended(0)
    assert orders == ()
    assert ending.died(1)[1] == (Leave("a worker has ended already"),)
    assert called.ended(0)[1] == (Leave("a worker has ended already"),)


def test_the_first_member_offers_where_to_meet():
    """Whoever says it is ready when, the offer is that of the first survivor; numbers are those of the start."""
    side, _ = Membership((0, 1, 2)).died(0)
    for member in (2, 1):
        side, orders = side.heard_ready(1, member, passed=member, offer=f"at {member}")
    assert orders == (Form(1, (1, 2), 2, "at 1"),)


def test_who_joins_comes_behind_those_who_have_the_state():
    """Also where it was started earlier, as a spare that was slower: it must not be the one who gives."""
    side, _ = Membership((0, 3)).invite(2)
    side, _ = side.came_to_door(0, 0)
    side, orders = side.came_to_door(0, 3)
    assert orders == (Halt(1, (0, 3, 2), is_door=True),)
    side, orders = side.died(0)
    assert orders == (Halt(2, (3, 2), is_door=True),)
    for member in (2, 3):
        side, orders = side.heard_ready(2, member, passed=9, offer=f"at {member}")
    assert orders == (Form(2, (3, 2), 9, "at 3", is_door=True),)
