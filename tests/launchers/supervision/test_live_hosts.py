"""One launcher decides for the workers of several hosts: who is told what, and what comes of late and lost words."""

import itertools
import random

import pytest

from unisono.launchers.control import Asked
from unisono.launchers.membership import Form, Halt, Membership
from unisono.launchers.supervision import live_hosts
from unisono.launchers.supervision.channels import HostSaid, Told
from unisono.launchers.supervision.live_following import Account, FollowingRecovery
from unisono.launchers.supervision.live_hosts import DecidingRecovery
from unisono.launchers.supervision.replacements import Replacements, node_of, numbers_of
from unisono.launchers.supervision.resizing import PassedOn
from unisono.launchers.worker.member import Member
from unisono.nodes.live.succession import Decree, is_majority

ENDLESS = 10**9  # a meeting that nobody has passed
OPEN = {"open": True, "why": "", "replicas": 8, "directory": "/runs/a"}


class Wire:
    """Carries words between launchers by hand: in order for each pair, whenever the test says so."""

    def __init__(self, spans, node, hosts):
        self.spans, self.node, self._lines, self._cuts = spans, node, hosts.lines, hosts.cuts
        self._idle, self.gone = hosts.idle, hosts.gone
        self.is_armed, self.hosts, self.decider, self.term = False, tuple(range(len(spans))), 0, 0

    def settle(self, term, hosts, decider):
        """Take in a decree; return whether another one decides by it."""
        if term < self.term:
            return False
        before, self.term, self.hosts, self.decider = self.decider, term, hosts, decider
        return decider != before

    def send(self, node, message):
        """What a host says that is cut off is lost."""
        if not {node, self.node} & self._cuts and node in self.hosts:
            self._lines.setdefault((self.node, node), []).append(message)

    def arm(self, *, is_on):
        self.is_armed = is_on

    def rest(self, *, is_idle):
        (self._idle.add if is_idle else self._idle.discard)(self.node)


class Hosts:
    """Launchers of hosts with so many workers each, and the lines between them."""

    def __init__(self, *sizes, spares=0, budget=0):
        ends = [0, *itertools.accumulate(sizes)]
        self.spans = [range(start, stop) for start, stop in itertools.pairwise(ends)]
        self.agreed, self.decider, self.term = tuple(range(len(sizes))), 0, 0
        self.lines, self.cuts, self.said, self.to_workers = {}, set(), [], []
        self.idle, self.gone = set(), {}
        self.wires = [Wire(self.spans, node, self) for node in range(len(sizes))]
        send = lambda rank, message: self.to_workers.append((rank, message))  # noqa: E731
        rules = [
            Replacements(len(span), spares, budget, numbers_of(node, self.spans))
            for node, span in enumerate(self.spans)
        ]
        self.all = [
            (FollowingRecovery if wire.node else DecidingRecovery)(wire, send, self.said.append, rule)
            for wire, rule in zip(self.wires, rules, strict=True)
        ]
        self.ranks = range(ends[-1])
        self.reasons = {}

    def of(self, rank):
        return node_of(rank, self.spans)

    def hears(self, rank, message):
        """A worker says something to its launcher."""
        self.take(self.of(rank), self.all[self.of(rank)].heard(Told(rank, message)))

    def ended(self, rank):
        self.take(self.of(rank), self.all[self.of(rank)].ended(rank))

    def dies(self, rank, code=-9, place=(4, -1), *, has_report=False):
        node = self.of(rank)
        self.take(node, self.all[node].died(rank, code, place, has_report=has_report))

    def take(self, node, reason):
        self.all[node] = self.all[node].heir
        if reason and node not in self.cuts:
            self.reasons.setdefault(node, reason)

    def silent(self, node):
        """The others have agreed to go on without a host; if that one decided, the first of them does now."""
        before, self.agreed = self.decider, tuple(other for other in self.agreed if other != node)
        first = min({*self.agreed} - self.idle, default=self.agreed[0])
        self.decider = now = first if node == before else before
        self.term, self.gone[node] = self.term + 1, 1.5 + node / 10
        said = {"silent": True} if now == before else {"succeeds": self.agreed}
        for other in self.agreed:
            if other != now:  # each hears of it later, behind what it has heard before
                settled = (self.term, self.agreed, now)
                self.lines.setdefault((now, other), []).append({"settled": settled, **said})
        self.wires[now].settle(self.term, self.agreed, now)
        self.take(now, self.all[now].heard_host(HostSaid(node if now == before else now, said)))

    def asks(self, node, workers):
        """Somebody asks a launcher for so many workers; returns where its answers come."""
        answers = []
        self.all[node].resize(Asked(workers, answers.append))
        return answers

    def look(self):
        """All launchers look at how things are."""
        for node, one in enumerate(self.all):
            if node not in self.cuts:
                self.take(node, one.look())

    def deliver(self, line):
        """Bring the oldest word of a line."""
        (source, target), message = line, self.lines[line].pop(0)
        if source not in self.wires[target].hosts:
            return
        if "settled" in message and not self.wires[target].settle(*message.pop("settled")):
            return
        self.take(target, self.all[target].heard_host(HostSaid(source, message)))

    def deliver_all(self):
        while ready := [line for line, words in self.lines.items() if words]:
            self.deliver(ready[0])

    def begin(self):
        for rank in self.ranks:
            self.hears(rank, OPEN)
        self.deliver_all()

    def form(self, epoch, members, passed=7):
        """Let members freeze for an epoch, and meet."""
        for what in ("ready", "up"):
            for rank in members:
                said = (
                    {"ready": epoch, "passed": passed, "refusal": "", "offer": "x"}
                    if what == "ready"
                    else {"up": epoch}
                )
                self.hears(rank, said)
            self.deliver_all()


def test_a_worker_of_another_host_dies():
    """Its launcher tells the deciding one, whose words reach the workers of all hosts; then nobody waits for it."""
    hosts = Hosts(2, 2)
    hosts.begin()
    assert [wire.is_armed for wire in hosts.wires] == [True, True]
    hosts.dies(3)
    assert (hosts.to_workers, hosts.all[1].is_waiting) == ([], True)
    hosts.deliver_all()
    assert hosts.said == ["rank 3 was killed by SIGKILL in step 4; 3 workers go on without it."]
    assert hosts.to_workers == [(rank, {"halt": 1, "members": (0, 1, 2), "deaths": {3: 4}}) for rank in (0, 1, 2)]
    hosts.form(1, (0, 1, 2))
    assert [one.excluded for one in hosts.all] == [{3}, {3}]
    assert (hosts.all[1].is_waiting, hosts.all[1].look(), hosts.reasons) == (True, "", {})
    hosts.ended(2)
    hosts.wires[0].send(1, {"over": True})
    hosts.deliver_all()
    assert (hosts.all[1].is_waiting, hosts.all[1].look(), hosts.reasons) == (False, "", {})


@pytest.mark.parametrize("ends", [False, True])
def test_all_is_over_for_the_deciding_launcher(ends):
    """A worker that runs still has been interrupted; the control: one that has ended well has not."""
    hosts = Hosts(1, 2)
    hosts.begin()
    hosts.ended(1)
    if ends:
        hosts.ended(2)
    hosts.wires[0].send(1, {"over": True})
    hosts.deliver_all()
    assert hosts.reasons == ({} if ends else {1: "the deciding launcher has ended its part"})
    assert not hosts.all[1].is_waiting


def test_a_host_that_is_silent():
    """Its workers are dead to the others, and what it says later counts no more; a second silence changes nothing."""
    hosts = Hosts(1, 2, 1)
    hosts.begin()
    hosts.cuts.add(1)
    hosts.silent(1)
    assert hosts.said[-1] == "rank 2 is on host 1, which has not been heard for 1.6 s; 2 workers go on without it."
    hosts.deliver_all()
    assert {rank for rank, _ in hosts.to_workers} == {0, 3}  # a worker of the lost host is sent nothing
    before = len(hosts.to_workers)
    for late in ({"rank": 1, "told": {"ready": 2, "passed": 9, "refusal": "", "offer": "x"}}, {"rank": 2}):
        assert hosts.all[0].heard_host(HostSaid(1, late)) == ""
    hosts.silent(1)
    assert (len(hosts.to_workers), len(hosts.said)) == (before, 2)
    hosts.form(2, (0, 3))
    assert hosts.all[2].excluded == {1, 2}
    assert hosts.all[0].is_waiting  # for rank 3
    hosts.all[2].ended(3)
    hosts.deliver_all()
    assert not hosts.all[0].is_waiting


def test_a_silent_host_whose_workers_had_finished():
    """They are waited for by nobody: the others finish."""
    hosts = Hosts(1, 1)
    hosts.begin()
    hosts.hears(1, {"finished": 9})
    hosts.deliver_all()
    hosts.silent(1)
    assert (hosts.reasons, hosts.said, hosts.all[0].is_waiting) == ({}, [], False)


@pytest.mark.parametrize("lost", [0, 1])
def test_no_worker_is_left_where_it_is_decided(lost):
    """The last one of the deciding host ends the attempt on all hosts; the control: one of two does not."""
    hosts = Hosts(2, 2)
    hosts.begin()
    hosts.dies(lost)
    hosts.deliver_all()
    hosts.form(1, [rank for rank in hosts.ranks if rank != lost])
    assert hosts.reasons == {}
    hosts.dies(1 - lost)
    hosts.deliver_all()
    assert {*hosts.reasons.values()} == {"no worker is left on the deciding host"}
    assert {*hosts.reasons} == {0, 1}
    assert {rank for rank, message in hosts.to_workers if "leave" in message} >= {2, 3}


def test_what_cannot_go_on_is_told_to_all_launchers():
    """An exception on the second host, and a death before the first step: both launchers hear why."""
    for is_open, why in ((True, "it ended by an error of its own"), (False, "not all workers had begun their steps")):
        hosts = Hosts(1, 1, 1)
        if is_open:
            hosts.begin()
        hosts.dies(1, 1 if is_open else -9, has_report=is_open)
        hosts.deliver_all()
        assert hosts.reasons == dict.fromkeys((0, 1, 2), why)


def test_the_deciding_launcher_ends_first():
    """Who waits for its word on a death hears that none comes; who waits for none goes on."""
    hosts = Hosts(1, 1, 1)
    hosts.begin()
    hosts.dies(1)
    hosts.ended(2)
    hosts.lines.clear()  # that is not heard
    for node in (1, 2):
        hosts.take(node, hosts.all[node].heard_host(HostSaid(0, {"over": True})))
    assert hosts.reasons == {1: "the deciding launcher has ended its part"}


class Worker:
    """A worker that passes meetings when all of its world have begun them; its own launcher's words come in order.

    In a new world there is one more first; where others have joined, one more then, in which they get the state.
    """

    def __init__(self, rank, members=()):
        self.side, self.members, self.begun, self.is_alive, self.inbox = Member(rank), tuple(members), 0, True, []
        self.left = {}  # what it had begun in each world that it has left
        self.is_guest, self.has_state = not members, bool(members)
        self.is_new = self.is_knocked = self.at_door = False
        self.gives, self.said = set(), -1

    @property
    def waits(self):
        """Whether it begins no meeting before it is called from the door."""
        return self.at_door and not (self.is_new or self.gives)


class Game:
    """A run of several hosts, one event after the other as a seed has it: meetings, deaths, joiners, a host cut off,
    and wishes for more or fewer workers, on any host.

    Half of them are short, with deaths that come together; in the others there is time for those that join.
    """

    def __init__(self, seed):
        self.chance, self.meetings, self.pace = random.Random(seed), *((40, 0.01) if seed % 2 else (6, 0.1))
        spares, budget = self.chance.choice([(0, 0), (1, 0), (1, 9)])
        most, hosts = (3, 3) if seed % 2 else (2, 4)
        sizes = [self.chance.randint(1, most) for _ in range(self.chance.randint(2, hosts))]
        self.hosts = Hosts(*sizes, spares=spares, budget=budget)
        self.hosts.begin()
        self.workers = {rank: Worker(rank, self.hosts.ranks) for rank in self.hosts.ranks}
        self.deaths, self.worlds, self.dead_hosts = self.chance.randint(0, 6 if seed % 2 else 3), {}, set()
        self.finished, self.bits, self.firsts = set(), {}, {}
        self.wishes, self.asked, self.released = self.chance.choice([0, 0, 1, 2]), [], set()

    def play(self):
        """Play to the end; return the ranks that have finished."""
        for _ in range(5000):
            events = [*self.events()]
            if not events:
                break
            self.chance.choice(events)()
            self.hosts.look()
            self.sort_out()
        return self.finished

    def wish(self, node):
        self.wishes -= 1
        workers = self.chance.randint(1, 6)
        self.asked.append((node, workers, self.hosts.asks(node, workers)))

    def sort_out(self):
        hosts = self.hosts
        for node, one in enumerate(hosts.all):
            for rank in one.start() if node not in hosts.cuts else ():
                assert rank not in self.workers, "a number is used twice"
                self.workers[rank] = Worker(rank)
            if isinstance(one, DecidingRecovery) and one._members.phase == "form" and node not in hosts.cuts:
                self.check_first(one, one._members)
        for rank, message in hosts.to_workers:
            self.workers[rank].inbox.append(message)
        hosts.to_workers.clear()

    def check_first(self, launcher, side):
        """The first of a world leads: it is where it is decided, unless they have finished there, and is the only one.

        A member that is left out may live on; one of the host where it is decided is known to be dead.
        """
        if side.epoch in self.firsts:
            return
        first, home = side.active[0], [rank for rank in side.members if launcher._is_own(rank)]
        assert self.workers[first].has_state, "the first has nothing to give"
        assert first in home or {*home} & side.finished, "the first is on another host"
        _, before = max(self.firsts.items(), default=(0, 0))
        assert before not in {*side.active} - {first}, "the first of the world before lives"
        self.firsts[side.epoch] = first

    def events(self):
        hosts = self.hosts
        if hosts.reasons:
            return
        for line in [line for line, words in hosts.lines.items() if words]:
            yield lambda line=line: hosts.deliver(line)
        for rank in [rank for node, one in enumerate(hosts.all) if node not in hosts.cuts for rank in one.unwanted]:
            if self.workers[rank].is_alive:
                yield lambda rank=rank: self.kill(self.workers[rank])
        if self.deaths and self.chance.random() < self.pace:
            for worker in self.workers.values():
                if worker.is_alive and worker.side.number not in self.finished:
                    yield lambda worker=worker: self.kill(worker, 1)
            for node in range(len(hosts.spans)):
                if node not in hosts.cuts and not hosts.cuts - self.dead_hosts and self.has_majority(node):
                    yield lambda node=node: self.cut(node)
        if self.wishes and self.chance.random() < self.pace:
            for node in {*range(len(hosts.spans))} - hosts.cuts:
                yield lambda node=node: self.wish(node)
        for node in hosts.cuts - self.dead_hosts:
            yield lambda node=node: self.notice(node)
        for worker in [*self.workers.values()]:
            if worker.is_alive and worker.side.number not in self.finished:
                yield from self.acts(worker)

    def has_majority(self, node):
        hosts = self.hosts.agreed
        decree = Decree(0, self.hosts.decider, hosts)
        return node in hosts and is_majority([other for other in hosts if other != node], decree)

    def kill(self, worker, planned=0):
        self.deaths -= planned
        worker.is_alive = False
        self.hosts.dies(worker.side.number, place=(-1, -1))

    def cut(self, node):
        self.deaths -= 1
        self.hosts.cuts.add(node)

    def notice(self, node):
        self.dead_hosts.add(node)
        self.hosts.silent(node)

    def acts(self, worker):
        side, number = worker.side, worker.side.number
        if worker.inbox:
            yield lambda: self.hear(worker)
        if worker.is_guest and worker.said < 0:
            yield lambda: self.says(worker, 0, {"arrived": True})
        advice = side.advise(ENDLESS if worker.is_guest else side.passed + 1)
        if worker.is_guest and advice not in ("freeze", "move"):
            return
        if side.passed >= self.meetings and advice == "go" and not (worker.is_new or worker.gives):
            yield lambda: self.finish(worker)
        elif advice == "go" and worker.waits and worker.said < side.epoch:
            yield lambda: self.says(worker, side.epoch, {"door": side.epoch})
        elif advice == "go" and worker.begun <= side.passed and not worker.waits:
            yield lambda: setattr(worker, "begun", side.passed + 1)
        elif advice == "go" and worker.begun > side.passed and self.is_full(worker):
            yield lambda: self.past(worker)
        elif advice == "freeze":
            yield lambda: self.freeze(worker)
        elif advice == "complete":
            assert worker.begun > side.passed, f"{number}: a meeting that others have passed was not begun by all"
            yield lambda: self.past(worker)
        elif advice == "move":
            yield lambda: self.move(worker)

    def says(self, worker, epoch, message):
        worker.said = epoch
        self.hosts.hears(worker.side.number, message)

    def is_full(self, worker):
        others = [self.workers[number] for number in worker.members]
        here, passed = worker.side.epoch, worker.side.passed
        return all(passed < (other.begun if other.side.epoch == here else other.left.get(here, -1)) for other in others)

    def hear(self, worker):
        message = worker.inbox.pop(0)
        worker.is_knocked |= "knock" in message
        if worker.side.number in message.get("released", ()):
            assert worker.at_door and worker.has_state, "released within a step"
            assert worker.side.number not in self.firsts.values(), "the first has been released"
            worker.is_alive = False
            self.released.add(worker.side.number)
            self.hosts.ended(worker.side.number)
            return
        if "halt" in message:
            worker.side = worker.side.hear(Halt(message["halt"], tuple(message["members"])))
        elif "form" in message:
            form = Form(
                message["form"], tuple(message["members"]), message["passed"], message["offer"], message["door"]
            )
            worker.side = worker.side.hear(form)

    def past(self, worker):
        """Be behind a meeting: the first of a world, that in which the state is given, or the end of a step."""
        worker.side = side = worker.side.has_passed(worker.side.passed + 1)
        if worker.is_new:
            worker.is_new = False
            self.hosts.hears(side.number, {"up": side.epoch})
        elif worker.gives:
            worker.gives = set()
            if not worker.has_state:
                assert self.workers[worker.members[0]].has_state, "nobody has the state"
                worker.has_state = True
                self.hosts.hears(side.number, OPEN)
        else:
            is_knocked = any(self.workers[number].is_knocked for number in worker.members)
            bit = self.bits.setdefault(side.passed, is_knocked and self.chance.random() < 0.7)
            worker.at_door = bit and side.passed < self.meetings

    def freeze(self, worker):
        worker.side = worker.side.froze()
        said = {"ready": worker.side.called, "passed": worker.side.passed, "refusal": "", "offer": "x"}
        self.hosts.hears(worker.side.number, said)

    def move(self, worker):
        world, number = worker.side.world, worker.side.number
        worker.left[worker.side.epoch] = worker.begun
        come = {number} if worker.is_guest else {*world.members} - {*worker.members}
        worker.gives = (worker.gives | come) & {*world.members}
        worker.at_door &= not world.is_door
        worker.is_knocked &= not world.is_door
        worker.said, worker.is_guest, worker.is_new = -1 if worker.is_guest else worker.said, False, True
        worker.members, worker.side = world.members, worker.side.moved()
        worker.begun = worker.side.passed
        key = worker.side.epoch
        known = self.worlds.setdefault(key, (worker.members, worker.side.passed))
        assert known == (worker.members, worker.side.passed), "two worlds of one epoch"

    def finish(self, worker):
        self.finished.add(worker.side.number)
        self.hosts.hears(worker.side.number, {"finished": worker.side.passed})


def _died(side):
    return {rank for rank, how in side._account._known.items() if how["died"]}


def play_all(seeds):
    """Play games; return how often somebody was lost, another one succeeded, one joined, there were as many as wanted,
    and how often one joined, or a wish was fulfilled, after a succession.

    Raises where a promise is broken.
    """
    lived_through = succeeded = joined = both = fulfilled = later = 0
    for seed in seeds:
        game = Game(seed)
        finished, hosts = game.play(), game.hosts
        if hosts.reasons:
            hosts.deliver_all()
            assert {*hosts.reasons} >= {*range(len(hosts.spans))} - hosts.cuts, seed
            continue
        for node, workers, answers in game.asked:
            if node not in hosts.cuts:
                assert len(answers) == 1, (seed, "no answer")
                assert answers[0].get("workers", workers) == workers, seed
                fulfilled += "workers" in answers[0]
                later += "workers" in answers[0] and hosts.decider > 0
        there = [w for w in game.workers.values() if w.is_alive and hosts.of(w.side.number) not in hosts.cuts]
        left = {w.side.number for w in there if not w.is_guest}
        assert left <= finished, seed
        is_home = any(hosts.of(number) == hosts.decider for number in left)
        assert is_home or "the others had finished" in hosts.said[-1], seed
        following = [one for one in hosts.all if one._relay.node not in {*hosts.cuts, hosts.decider}]
        assert all(_died(one) <= one.excluded for one in following), seed
        lived_through += game.deaths == 0 and bool(game.worlds)
        has_joined = bool({*finished} - {*hosts.ranks})
        joined, succeeded = joined + has_joined, succeeded + (hosts.decider > 0)
        both += has_joined and hosts.decider > 0
    return lived_through, succeeded, joined, fulfilled, both, later


@pytest.mark.slow
def test_every_game_ends():
    """Seeded orders of words, deaths and cuts: whoever is left finishes in one world, or all hosts are told why not."""
    *each, both, later = play_all(range(1000))
    assert min(each) > 30 and both > 2 and later > 2


def test_the_deciding_host_is_lost():
    """The second one decides from now on: for its own workers and the third's, and no word of the first counts."""
    hosts = Hosts(1, 1, 2)
    hosts.begin()
    hosts.cuts.add(0)
    hosts.silent(0)
    assert isinstance(hosts.all[1], FollowingRecovery)  # it has not heard of the third's workers
    hosts.deliver_all()
    assert isinstance(hosts.all[1], DecidingRecovery)
    lost = "rank 0 is on host 0, which has not been heard for 1.5 s; 3 workers go on without it."
    assert hosts.said == ["host 1 decides from now on.", lost]
    assert hosts.to_workers == [(rank, {"halt": 1, "members": (1, 2, 3)}) for rank in (1, 2, 3)]
    assert hosts.all[2].heard_host(HostSaid(0, {"rank": 2, "told": {"leave": "late"}})) == ""
    hosts.form(1, (1, 2, 3))
    assert [one.excluded for one in hosts.all[1:]] == [{0}, {0}]
    hosts.dies(3)
    hosts.deliver_all()
    hosts.form(2, (1, 2))
    assert (hosts.all[2].excluded, hosts.reasons) == ({0, 3}, {})
    hosts.ended(2)
    hosts.deliver_all()
    assert not hosts.all[1].is_waiting


def test_it_is_lost_within_a_recovery():
    """The epoch that it has called to is not used again, and a death that nobody has heard of is not forgotten."""
    hosts = Hosts(1, 1, 1, 1)
    hosts.begin()
    hosts.dies(3)
    hosts.deliver_all()  # called to epoch 1
    hosts.to_workers.clear()
    hosts.cuts.add(0)
    hosts.silent(0)
    hosts.deliver_all()
    halts = dict(hosts.to_workers)
    expected = {"halt": 3, "members": (1, 2), "deaths": {3: 4}}
    assert {rank: halts[rank] for rank in (1, 2)} == dict.fromkeys((1, 2), expected)
    hosts.form(3, (1, 2))
    assert hosts.all[2].excluded == {0, 3}


@pytest.mark.parametrize(("replica", "is_poison"), [(2, True), (3, False)])
@pytest.mark.parametrize("is_formed", [True, False])
def test_a_poison_that_the_lost_launcher_has_seen(is_formed, replica, is_poison):
    """A worker of the lost host has died in that replica; so does another one after it; the control: in another one."""
    hosts = Hosts(2, 1, 2)
    hosts.begin()
    hosts.dies(1, place=(9, 2))
    hosts.deliver_all()
    if is_formed:
        hosts.form(1, (0, 2, 3, 4))
    hosts.cuts.add(0)
    hosts.silent(0)
    hosts.deliver_all()
    hosts.form(2 if is_formed else 3, (2, 3, 4))
    assert hosts.reasons == {}
    hosts.dies(4, place=(9, replica))
    hosts.deliver_all()
    poison = dict.fromkeys((1, 2), "a worker died in step 9, replica 2 before")
    assert hosts.reasons == (poison if is_poison else {})


def test_a_death_that_both_launchers_hear_of_is_one():
    """It was told to the lost launcher, and comes again with the account: it is no second death in that replica."""
    hosts = Hosts(1, 1, 2)
    hosts.begin()
    hosts.dies(3, place=(9, 2))
    hosts.deliver_all()
    hosts.cuts.add(0)
    hosts.silent(0)
    hosts.deliver_all()
    hosts.form(3, (1, 2))
    assert (hosts.reasons, hosts.all[2].excluded) == ({}, {0, 3})


def test_a_host_without_workers_does_not_decide():
    """The next one does, and all go on; the control: where the first of them decides, they cannot."""
    for is_known in (True, False):
        hosts = Hosts(1, 1, 2)
        hosts.begin()
        hosts.dies(1)
        hosts.deliver_all()
        hosts.form(1, (0, 2, 3))
        if not is_known:
            hosts.idle.clear()
        hosts.cuts.add(0)
        hosts.silent(0)
        hosts.deliver_all()
        if is_known:
            hosts.form(2, (2, 3))
        why = "no worker is left on the deciding host"
        assert hosts.reasons == ({} if is_known else dict.fromkeys((1, 2), why))


@pytest.mark.parametrize(("code", "has_report"), [(1, False), (-9, True)])
def test_an_error_that_the_lost_host_has_not_heard(code, has_report):
    """It ends all workers, whoever decides."""
    hosts = Hosts(1, 1, 1)
    hosts.begin()
    hosts.cuts.add(0)
    hosts.dies(2, code, has_report=has_report)
    hosts.silent(0)
    hosts.deliver_all()
    assert {*hosts.reasons} == {1, 2}


def test_two_are_lost_before_the_successor_knows():
    """It waits for the accounts of those that go on, and no longer for one that is lost meanwhile."""
    hosts = Hosts(1, 1, 1, 1)
    hosts.begin()
    hosts.cuts.add(0)
    hosts.silent(0)
    hosts.cuts.add(3)
    hosts.silent(3)
    hosts.deliver_all()
    assert isinstance(hosts.all[1], DecidingRecovery)
    hosts.form(2, (1, 2))
    assert hosts.all[2].excluded == {0, 3}


def replaced(hosts, rank, number, epoch, left):
    """Let a worker die in the world of an epoch, and another one be let in, which those that are left then meet."""
    hosts.dies(rank)
    hosts.deliver_all()
    hosts.form(epoch + 1, left)
    assert [one.start() for one in hosts.all] == [[number] if node == hosts.of(rank) else [] for node in (0, 1)]
    hosts.hears(number, {"arrived": True})
    hosts.deliver_all()
    for member in left:
        hosts.hears(member, {"door": epoch + 1})
    hosts.deliver_all()
    hosts.to_workers.clear()
    hosts.form(epoch + 2, (*left, number))


def test_each_launcher_replaces_its_own():
    """Numbers tell the host; who joins may lead only as one of the deciding host, when it has the state."""
    hosts = Hosts(2, 1, budget=3)
    hosts.begin()
    replaced(hosts, 2, 4, 0, (0, 1))
    assert [one.guests for one in hosts.all] == [set(), set()]
    hosts.hears(4, OPEN)
    hosts.deliver_all()
    assert hosts.said[-1].startswith("rank 4 has joined the others, 0.")
    replaced(hosts, 1, 3, 2, (0, 4))
    assert hosts.to_workers[0][1]["members"] == (0, 4, 3)  # it has nothing yet
    hosts.hears(3, OPEN)
    hosts.dies(0)
    hosts.deliver_all()
    assert (3, {"halt": 5, "members": (3, 4), "deaths": {2: 4, 1: 4, 0: 4}}) in hosts.to_workers
    assert hosts.reasons == {}
    hosts.dies(3)
    hosts.deliver_all()
    assert {*hosts.reasons.values()} == {"no worker is left on the deciding host"}


def test_one_that_has_no_state_does_not_lead():
    """The last other worker of the deciding host dies before it has got it: all are started again."""
    hosts = Hosts(2, 1, budget=3)
    hosts.begin()
    replaced(hosts, 1, 3, 0, (0, 2))
    hosts.dies(0)
    hosts.deliver_all()
    assert {*hosts.reasons.values()} == {"no worker is left on the deciding host"}


@pytest.mark.parametrize("is_called", [False, True])
def test_one_that_joins_dies(is_called):
    """Before it is called and after: its launcher starts another one, until too many in a row have not joined."""
    hosts = Hosts(2, 1, budget=2)
    hosts.begin()
    if is_called:
        replaced(hosts, 2, 4, 0, (0, 1))
    else:
        hosts.dies(2)
        hosts.deliver_all()
        hosts.form(1, (0, 1))
        assert hosts.all[1].start() == [4]
    hosts.dies(4, 1, has_report=True)
    hosts.deliver_all()
    hosts.form(3, (0, 1))
    assert (hosts.reasons, hosts.all[1].excluded >= {2, 4}) == ({}, True)
    assert "rank 4 has ended with code 1 before it had joined the others." in hosts.said
    assert hosts.all[1].start() == [6]
    hosts.dies(6, 1, has_report=True)
    assert hosts.said[-1].startswith("No other worker is started in its place: ")
    assert hosts.all[1].start() == []


def test_a_host_is_lost_with_one_that_is_about_to_join():
    """Nobody waits for it, and it cannot come later."""
    hosts = Hosts(1, 1, 1, spares=1)
    hosts.begin()
    assert [one.start() for one in hosts.all] == [[3], [4], [5]]
    hosts.hears(5, {"arrived": True})  # a spare that nobody needs: nobody is told
    assert not any(hosts.lines.values())
    hosts.dies(2)
    hosts.deliver_all()
    hosts.form(1, (0, 1))
    assert ("knock", True) in {(*message.items(),)[0] for _, message in hosts.to_workers}
    hosts.cuts.add(2)
    hosts.silent(2)
    assert hosts.all[0].heard_host(HostSaid(2, {"rank": 5, "told": {"arrived": True}})) == ""
    hosts.hears(0, {"door": 1})
    hosts.hears(1, {"door": 1})
    hosts.deliver_all()
    hosts.form(2, (0, 1))
    assert (hosts.reasons, hosts.all[1].excluded) == ({}, {2, 5})


def test_the_successor_hears_of_those_that_join():
    """One that had been called has still no state; one that waits, of another host, is let in by the successor."""
    hosts = Hosts(1, 2, 1, budget=3)
    hosts.begin()
    hosts.dies(2)
    hosts.dies(3)
    hosts.deliver_all()
    hosts.form(2, (0, 1))
    assert [one.start() for one in hosts.all] == [[], [5], [6]]
    hosts.hears(5, {"arrived": True})
    hosts.deliver_all()
    for member in (0, 1):
        hosts.hears(member, {"door": 2})
    hosts.deliver_all()
    hosts.hears(6, {"arrived": True})
    hosts.cuts.add(0)
    hosts.silent(0)
    hosts.deliver_all()
    side = hosts.all[1]._members
    assert (side.members, side.new, side.guests, side.is_door) == ((1, 5), {5}, (6,), True)
    hosts.form(4, (1, 5))
    hosts.hears(5, OPEN)
    hosts.to_workers.clear()
    for member in (1, 5):
        hosts.hears(member, {"door": 4})
    hosts.deliver_all()
    assert hosts.to_workers[-1] == (6, {"halt": 5, "members": (1, 5, 6), "door": True, "deaths": {2: 4, 3: 4}})


START = {
    "waits": False, "has_state": True, "open": False, "finished": -1, "up": 0, "ended": False, "died": None
}  # fmt: skip


def test_an_account_of_workers():
    """What they have said last counts: one that had finished may have begun other steps."""
    account = Account(range(2, 4))
    account.heard(2, OPEN)
    account.heard(2, {"finished": 7})
    account.heard(3, {"finished": 7})
    account.heard(3, OPEN)
    account.ended(2)
    assert account.packed({0}) == {
        "epoch": 0,
        "members": [],
        "is_door": False,
        "excluded": [0],
        "places": [],
        "workers": {
            "2": {**START, "open": True, "finished": 7, "ended": True},
            "3": {**START, "open": True},
        },
    }


def _forgets_the_epoch(side, accounts):
    return _resume(side, [{**account, "epoch": 0} for account in accounts])


def _forgets_who_has_finished(side, rank, message):
    _account_heard(side, rank, {} if "finished" in message else message)


_resume, _account_heard = DecidingRecovery.resume, Account.heard


def _heeds_the_lost(side, said):
    """Let words of a host count that has been left out."""
    side._far |= {said.message["rank"]} if "rank" in said.message else set()
    return _heard_host(side, said)


def _only_here(side, rank, message):
    if side._is_own(rank):
        side._send_here(rank, message)


_heard_host = DecidingRecovery.heard_host


def test_a_lost_host_whose_words_count(monkeypatch):
    """A lost host's last words, that its worker has left its steps, are not heard; the control: heard, they end all."""
    late = HostSaid(1, {"rank": 1, "told": {"open": False, "why": ""}})
    for is_heard in (False, True):
        hosts = Hosts(1, 1)
        hosts.begin()
        hosts.silent(1)
        if is_heard:
            monkeypatch.setattr(DecidingRecovery, "heard_host", _heeds_the_lost)
        assert bool(hosts.all[0].heard_host(late)) == is_heard


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        pytest.param(Membership, "_ordered", lambda side, first: side.members, id="any host may have the first"),
        pytest.param(live_hosts, "_is_door", lambda newest, workers: False, id="who is at the door is forgotten"),
    ],
)
def test_a_broken_rule_of_those_that_join_is_found(monkeypatch, owner, name, broken):
    """Negative control: the games find it."""
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        play_all(range(1000))


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        pytest.param("_shared", lambda side, reason: reason, id="nobody is told"),
        pytest.param("_pass_on", _only_here, id="other hosts' workers hear nothing"),
    ],
)
def test_a_broken_rule_is_found(monkeypatch, name, broken):
    """Negative control: the games find each rule that is taken away."""
    monkeypatch.setattr(DecidingRecovery, name, broken)
    with pytest.raises(AssertionError):
        play_all(range(1000))


def test_an_epoch_that_is_used_twice(monkeypatch):
    """Negative control: the successor begins with the epoch that the lost launcher has called to."""
    monkeypatch.setattr(DecidingRecovery, "resume", _forgets_the_epoch)
    with pytest.raises(AssertionError):
        test_it_is_lost_within_a_recovery()


@pytest.mark.parametrize("is_told", [True, False])
def test_who_has_finished_is_told_to_the_successor(monkeypatch, is_told):
    """Nobody waits for them; the control, a launcher that forgets it: they are called with the others."""
    hosts = Hosts(1, 1, 1)
    hosts.begin()
    if not is_told:
        monkeypatch.setattr(Account, "heard", _forgets_who_has_finished)
    hosts.hears(2, {"finished": 9})
    hosts.cuts.add(0)
    hosts.silent(0)
    hosts.deliver_all()
    assert (1, {"halt": 1, "members": (1,) if is_told else (1, 2)}) in hosts.to_workers


def shrunk(hosts, workers=2):
    """Let somebody ask the second host for fewer workers than the four there are; returns where the answer comes."""
    hosts.begin()
    hosts.to_workers.clear()
    answers = hosts.asks(1, workers)
    hosts.deliver_all()
    for rank in range(4):
        hosts.hears(rank, {"door": 0})
    hosts.deliver_all()
    return answers


def test_more_or_fewer_workers():
    """Asked on the second host, four become two, and then five: where the fewest are, more are started."""
    hosts = Hosts(2, 2)
    answers = shrunk(hosts)
    assert dict(hosts.to_workers)[3] == {"halt": 1, "members": (0, 1), "released": (2, 3), "door": True}
    hosts.dies(3, 1)
    hosts.ended(2)
    hosts.form(1, (0, 1))
    hosts.look()
    hosts.deliver_all()
    assert [(found["workers"], found["before"], found["left"]) for found in answers] == [(2, 4, [2, 3])]
    assert (hosts.idle, hosts.reasons, hosts.all[1].is_waiting) == ({1}, {}, True)
    assert hosts.said[-1] == "rank 3, which had left, has ended with code 1."
    answers = hosts.asks(0, 5)
    hosts.deliver_all()
    assert [one.start() for one in hosts.all] == [[4], [5, 7]]
    hosts.dies(5, 1)
    hosts.look()
    hosts.deliver_all()
    assert not answers  # two may join still
    for rank in (4, 7):
        hosts.dies(rank, 1)
    hosts.look()
    hosts.deliver_all()
    hosts.look()
    assert "no more can join: host 0: " in answers[0]["failed"] and "; host 1: " in answers[0]["failed"]


def test_a_word_of_release_is_lost():
    """The deciding host is lost with it: the launcher that hears from another that its worker is out lets it go."""
    hosts = Hosts(1, 1, 2)
    hosts.begin()
    hosts.asks(1, 3)
    hosts.deliver_all()
    for rank in range(4):
        hosts.hears(rank, {"door": 0})
    while hosts.lines.get((2, 0)):
        hosts.deliver((2, 0))
    while hosts.lines.get((1, 0)):
        hosts.deliver((1, 0))
    while hosts.lines.get((0, 1)):
        hosts.deliver((0, 1))
    hosts.lines[0, 2] = []
    hosts.to_workers.clear()
    hosts.cuts.add(0)
    hosts.silent(0)
    hosts.deliver_all()
    assert [message["released"] for rank, message in hosts.to_workers if rank == 3] == [(3,)]
    hosts.form(2, (1, 2))
    hosts.look()
    hosts.ended(3)
    assert (hosts.all[2].excluded, hosts.reasons) == ({0, 3}, {})


@pytest.mark.parametrize("node", [0, 1])
def test_a_host_is_lost_while_somebody_waits(node):
    """The others take over what was its share: they hear of it anew, or ask the successor again."""
    hosts = Hosts(1, 1, 1)
    hosts.begin()
    hosts.asks(2, 4)
    if node:
        hosts.deliver_all()
    hosts.cuts.add(node)
    hosts.silent(node)
    hosts.deliver_all()
    assert {1 - node: hosts.all[1 - node]._shares} == {1 - node: {1 - node: 2, 2: 2}}
    left = (1 - node, 2)
    hosts.form(2 - node, left)
    assert [len(hosts.all[other].start()) for other in left] == [1, 1]


def test_a_successor_that_is_not_asked_again(monkeypatch):
    """Negative control: a launcher forgets the wish that it has passed on, and somebody waits for ever."""
    monkeypatch.setattr(PassedOn, "ask_again", lambda side, ask: None)
    with pytest.raises(AssertionError, match="no answer"):
        play_all(range(200))


def test_a_released_worker_that_counts_as_dead(monkeypatch):
    """Negative control: its end is then no end of a released one."""
    monkeypatch.setattr(FollowingRecovery, "_release", lambda side, rank: None)
    with pytest.raises(AssertionError):
        test_more_or_fewer_workers()
