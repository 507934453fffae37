"""One launcher decides for the workers of several hosts: who is told what, and what comes of late and lost words."""

import itertools
import random

import pytest

from unisono.launchers.membership import Form, Halt, Member
from unisono.launchers.supervision.channels import HostSaid, Told
from unisono.launchers.supervision.live_hosts import DECIDING, DecidingRecovery, FollowingRecovery
from unisono.launchers.supervision.live_recovery import LiveRecovery

OPEN = {"open": True, "why": "", "replicas": 8, "directory": "/runs/a"}


class Wire:
    """Carries words between launchers by hand: in order for each pair, whenever the test says so."""

    def __init__(self, spans, node, lines, cuts):
        self.spans, self.node, self._lines, self._cuts = spans, node, lines, cuts
        self.is_armed, self.left_out = False, []

    def send(self, node, message):
        """What a host says that is cut off is lost."""
        if not {node, self.node} & self._cuts:
            self._lines.setdefault((self.node, node), []).append(message)

    def arm(self, *, is_on):
        self.is_armed = is_on

    def leave_out(self, node):
        self.left_out.append(node)


class Hosts:
    """Launchers of hosts with so many workers each, and the lines between them."""

    def __init__(self, *sizes):
        ends = [0, *itertools.accumulate(sizes)]
        self.spans = [range(start, stop) for start, stop in itertools.pairwise(ends)]
        self.lines, self.cuts, self.said, self.to_workers = {}, set(), [], []
        self.wires = [Wire(self.spans, node, self.lines, self.cuts) for node in range(len(sizes))]
        send = lambda rank, message: self.to_workers.append((rank, message))  # noqa: E731
        self.all = [
            FollowingRecovery(wire, send) if wire.node else DecidingRecovery(wire, send, self.said.append)
            for wire in self.wires
        ]
        self.ranks = range(ends[-1])
        self.reasons = {}

    def of(self, rank):
        return next(node for node, span in enumerate(self.spans) if rank in span)

    def hears(self, rank, message):
        """A worker says something to its launcher."""
        self.take(self.of(rank), self.all[self.of(rank)].heard(Told(rank, message)))

    def dies(self, rank, code=-9, place=(4, -1), *, has_report=False):
        node = self.of(rank)
        self.take(node, self.all[node].died(rank, code, place, has_report=has_report))

    def take(self, node, reason):
        if reason:
            self.reasons.setdefault(node, reason)

    def silent(self, node):
        self.take(DECIDING, self.all[DECIDING].heard_host(HostSaid(node, {"silent": 1.5})))

    def deliver(self, line):
        """Bring the oldest word of a line."""
        source, target = line
        self.take(target, self.all[target].heard_host(HostSaid(source, self.lines[line].pop(0))))

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
    assert hosts.to_workers == [(rank, {"halt": 1, "members": (0, 1, 2)}) for rank in (0, 1, 2)]
    hosts.form(1, (0, 1, 2))
    assert [one.excluded for one in hosts.all] == [{3}, {3}]
    assert (hosts.all[1].is_waiting, hosts.all[1].look(), hosts.reasons) == (False, "", {})


def test_a_host_that_is_silent():
    """Its workers are dead to the others, and what it says later counts no more; a second silence changes nothing."""
    hosts = Hosts(1, 2, 1)
    hosts.begin()
    hosts.cuts.add(1)
    hosts.silent(1)
    assert hosts.wires[0].left_out == [1]
    assert hosts.said[-1] == "rank 2 is on host 1, which has not been heard for 1.5 s; 2 workers go on without it."
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
    assert {*hosts.reasons.values()} == {"no worker is left on the host whose launcher decides"}
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
    hosts.cuts.add(1)  # the death is not heard
    hosts.dies(1)
    for node in (1, 2):
        hosts.take(node, hosts.all[node].heard_host(HostSaid(0, {"over": True})))
    assert hosts.reasons == {1: "the deciding launcher has ended its part"}


class Worker:
    """A worker that passes meetings when all of its world have begun them; its own launcher's words come in order."""

    def __init__(self, rank, ranks):
        self.side, self.members, self.begun, self.is_alive, self.inbox = Member(rank), tuple(ranks), 0, True, []
        self.left = {}  # what it had begun in each world that it has left


class Game:
    """A run of several hosts, one event after the other as a seed has it: meetings, deaths, a host that is cut off."""

    def __init__(self, seed, meetings=6):
        self.chance, self.meetings = random.Random(seed), meetings
        self.hosts = Hosts(*(self.chance.randint(1, 2) for _ in range(self.chance.randint(2, 3))))
        self.hosts.begin()
        self.workers = [Worker(rank, self.hosts.ranks) for rank in self.hosts.ranks]
        self.deaths, self.worlds, self.dead_hosts = self.chance.randint(0, 2), {}, set()
        self.finished = set()

    def play(self):
        """Play to the end; return the ranks that have finished."""
        for _ in range(5000):
            events = [*self.events()]
            if not events:
                break
            self.chance.choice(events)()
            self.sort_out()
        return self.finished

    def sort_out(self):
        for rank, message in self.hosts.to_workers:
            self.workers[rank].inbox.append(message)
        self.hosts.to_workers.clear()

    def events(self):
        hosts = self.hosts
        if hosts.reasons:
            return
        for line in [line for line, words in hosts.lines.items() if words]:
            yield lambda line=line: hosts.deliver(line)
        if self.deaths:
            for worker in self.workers:
                if worker.is_alive and worker.side.number not in self.finished:
                    yield lambda worker=worker: self.kill(worker)
            for node in range(1, len(hosts.spans)):
                if node not in hosts.cuts:
                    yield lambda node=node: self.cut(node)
        for node in hosts.cuts - self.dead_hosts:
            yield lambda node=node: self.notice(node)
        for worker in self.workers:
            if worker.is_alive and worker.side.number not in self.finished:
                yield from self.acts(worker)

    def kill(self, worker):
        self.deaths -= 1
        worker.is_alive = False
        self.hosts.dies(worker.side.number, place=(-1, -1))

    def cut(self, node):
        self.deaths -= 1
        self.hosts.cuts.add(node)

    def notice(self, node):
        self.dead_hosts.add(node)
        self.hosts.silent(node)

    def acts(self, worker):
        side = worker.side
        if worker.inbox:
            yield lambda: self.hear(worker)
        advice = side.advise(side.passed + 1)
        if side.passed >= self.meetings and advice == "go":
            yield lambda: self.finish(worker)
        elif advice == "go" and worker.begun <= side.passed:
            yield lambda: setattr(worker, "begun", side.passed + 1)
        elif advice == "go" and self.is_full(worker):
            yield lambda: self.past(worker)
        elif advice == "freeze":
            yield lambda: self.freeze(worker)
        elif advice == "complete":
            assert worker.begun > side.passed, "a meeting that others have passed was not begun by all"
            yield lambda: self.past(worker)
        elif advice == "move":
            yield lambda: self.move(worker)

    def is_full(self, worker):
        others = [self.workers[number] for number in worker.members]
        here, passed = worker.side.epoch, worker.side.passed
        return all(passed < (other.begun if other.side.epoch == here else other.left.get(here, -1)) for other in others)

    def hear(self, worker):
        message = worker.inbox.pop(0)
        if "halt" in message:
            worker.side = worker.side.hear(Halt(message["halt"], tuple(message["members"])))
        elif "form" in message:
            form = Form(
                message["form"], tuple(message["members"]), message["passed"], message["offer"], message["door"]
            )
            worker.side = worker.side.hear(form)

    def past(self, worker):
        worker.side = worker.side.has_passed(worker.side.passed + 1)

    def freeze(self, worker):
        worker.side = worker.side.froze()
        said = {"ready": worker.side.called, "passed": worker.side.passed, "refusal": "", "offer": "x"}
        self.hosts.hears(worker.side.number, said)

    def move(self, worker):
        worker.left[worker.side.epoch] = worker.begun
        worker.members, worker.side = worker.side.world.members, worker.side.moved()
        worker.begun = worker.side.passed
        key = worker.side.epoch
        known = self.worlds.setdefault(key, (worker.members, worker.side.passed))
        assert known == (worker.members, worker.side.passed), "two worlds of one epoch"
        self.hosts.hears(worker.side.number, {"up": key})

    def finish(self, worker):
        self.finished.add(worker.side.number)
        self.hosts.hears(worker.side.number, {"finished": worker.side.passed})


def play_all(seeds):
    """Play games; return how many went on without somebody, to the end. Raises where a promise is broken."""
    lived_through = 0
    for seed in seeds:
        game = Game(seed)
        finished, hosts = game.play(), game.hosts
        if hosts.reasons:
            hosts.deliver_all()
            assert {*hosts.reasons} >= {*range(len(hosts.spans))} - hosts.cuts, seed
            continue
        left = {w.side.number for w in game.workers if w.is_alive and hosts.of(w.side.number) not in hosts.cuts}
        assert left <= finished, seed
        assert left & {*hosts.spans[0]}, seed
        assert not any(one.is_waiting for one in hosts.all[1:] if one._relay.node not in hosts.cuts), seed
        lived_through += game.deaths == 0 and bool(game.worlds)
    return lived_through


def test_every_game_ends():
    """Seeded orders of words, deaths and cuts: whoever is left finishes in one world, or all hosts are told why not."""
    assert play_all(range(600)) > 50


def _heeds_the_lost(side, said):
    """Let words of a host count that has been left out."""
    side._far |= {said.message["rank"]} if "rank" in said.message else set()
    return _heard_host(side, said)


def _home_does_not_matter(side, rank, *args, **how):
    return side._shared(LiveRecovery.died(side, rank, *args, **how))


def _only_here(side, rank, message):
    if rank in side._home:
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
    ("name", "broken"),
    [
        pytest.param("_shared", lambda side, reason: reason, id="nobody is told"),
        pytest.param("died", _home_does_not_matter, id="the deciding host may lose all"),
        pytest.param("_pass_on", _only_here, id="other hosts' workers hear nothing"),
    ],
)
def test_a_broken_rule_is_found(monkeypatch, name, broken):
    """Negative control: the games find each rule that is taken away."""
    monkeypatch.setattr(DecidingRecovery, name, broken)
    with pytest.raises(AssertionError):
        play_all(range(600))
