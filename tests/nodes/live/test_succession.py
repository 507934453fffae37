"""Launchers agree who goes on: every order of messages, losses, deaths and partitions, and rules that are broken.

A message that has been said may be heard at any later time, again and again, or never: so losses, deaths, partitions
and late words are all among the orders that are played.
"""

import itertools
import random
from dataclasses import replace

import pytest

from unisono.nodes.live import succession
from unisono.nodes.live.succession import Decree, Launcher, Vote, advise, begin, is_majority


class Play:
    """Launchers of so many hosts, what has been said, and which decrees somebody has acted by."""

    def __init__(self, launchers, said=(), settled=frozenset(), stands=0, restarts=0):
        self.launchers, self.said, self.settled, self.stands = launchers, said, settled, stands
        self.restarts = restarts

    @property
    def key(self):
        return self.launchers, frozenset(self.said), self.settled, self.stands, self.restarts

    def events(self, stands, restarts=0):
        """Yield what can happen next, as functions that return the next play."""
        for node in range(len(self.launchers)):
            if self.stands < stands and node in self.launchers[node].settled.hosts:
                yield lambda node=node: self.now(node, self.launchers[node].stand(), asks=True)
            if self.restarts < restarts:
                yield lambda node=node: self.restart(node)
        for word in self.said:
            for node in range(len(self.launchers)):
                if (heard := self.hear(node, word)) is not None:
                    yield lambda heard=heard: heard
        for node, launcher in enumerate(self.launchers):
            if launcher.proposed is None and launcher.decree() is not None:
                yield lambda node=node, launcher=launcher: self.propose(node, launcher)

    def now(self, node, launcher, said=(), *, asks=False):
        known = tuple(launcher if i == node else one for i, one in enumerate(self.launchers))
        said = [*said, ("ask", launcher.promised, node)] if asks else [*said]
        before = self.launchers[node].settled
        settled = self.settled | {launcher.settled}
        if launcher.settled != before and launcher.settled.decider == node:
            said.append(("settled", launcher.settled))
        said = tuple(word for word in said if word not in self.said)
        return Play(known, self.said + said, settled, self.stands + asks, self.restarts)

    def restart(self, node):
        known = tuple(begin(i, len(self.launchers)) if i == node else one for i, one in enumerate(self.launchers))
        return Play(known, self.said, self.settled, self.stands, self.restarts + 1)

    def propose(self, node, launcher):
        proposed, decree = launcher.propose()
        return self.now(node, proposed, [("decree", decree)])

    def hear(self, node, word):
        """Return what follows when a host hears a word; None where nothing does."""
        kind, *rest = word
        launcher, said = self.launchers[node], []
        if kind == "ask":
            term, candidate = rest
            known, vote = launcher.asked(term, candidate)
            said = [("vote", candidate, node, vote)] if vote is not None and candidate != node else []
        elif kind == "vote" and rest[0] == node:
            known = launcher.heard_vote(*rest[1:])
        elif kind == "decree" and rest[0].decider != node:
            known, has_accepted = launcher.heard_decree(rest[0])
            said = [("accepted", rest[0].decider, node, rest[0].term)] if has_accepted else []
        elif kind == "accepted" and rest[0] == node:
            known = launcher.heard_accepted(*rest[1:])
        elif kind == "settled":
            known = launcher.heard_settled(*rest)
        else:
            return None
        return None if known == launcher and {*self.said} >= {*said} else self.now(node, known, said)

    def check(self):
        """One decree for each term, and each names some of those that the one before names: never two apart."""
        ordered = sorted(self.settled, key=lambda decree: decree.term)
        for one, other in itertools.pairwise(ordered):
            assert one.term < other.term, f"two decrees of one term: {one}, {other}"
            assert {*other.hosts} <= {*one.hosts}, f"hosts apart: {one}, {other}"


def play_all(hosts, stands, restarts=0, idle=()):
    """Play every order; return how many states there are, and all decrees that were settled.

    `idle` has pairs: who knows of which host that it has no workers.
    """
    seen, found = set(), set()
    sides = [begin(node, hosts) for node in range(hosts)]
    for node, other in idle:
        sides[node] = sides[node].heard_idle(other, is_idle=True)
    waiting = [Play(tuple(sides))]
    while waiting:
        play = waiting.pop()
        if play.key in seen:
            continue
        seen.add(play.key)
        play.check()
        found |= play.settled
        waiting += [event() for event in play.events(stands, restarts)]
    return len(seen), found


def play_some(hosts, stands, seeds):
    """Play drawn orders to their ends; return all decrees that were settled."""
    found = set()
    for seed in seeds:
        chance = random.Random(seed)
        play = Play(tuple(begin(node, hosts) for node in range(hosts)))
        while events := [*play.events(stands)]:
            play = chance.choice(events)()
            play.check()
        found |= play.settled
    return found


def test_every_order():
    """Two hosts and three candidacies, three hosts and two: all orders, and one decree follows the other."""
    assert play_all(2, 3)[0] > 1000
    states, found = play_all(3, 2)
    assert states > 4000
    assert Decree(1, 1, (1, 2)) in found  # the first one is lost
    assert Decree(2, 0, (0,)) in found  # and of two hosts the lowest-numbered goes on alone
    assert {decree.term for decree in found if decree.hosts == (1,)} == {2}  # of the two that were left, that is
    assert not any(decree.hosts == (2,) for decree in found)


@pytest.mark.parametrize("knowing", [(0, 1, 2), (1, 2), (2,)])
def test_every_order_with_a_host_without_workers(knowing):
    """The second of three has none: the third decides where it knows so, and of these two it goes on alone."""
    _, found = play_all(3, 2, idle=[(node, 1) for node in knowing])
    assert {Decree(1, 2, (1, 2)), Decree(2, 2, (2,))} <= found
    assert any(decree.decider == 1 for decree in found) == (1 not in knowing)


def test_many_orders():
    """Drawn ones, of up to five hosts and six candidacies."""
    found = set().union(*(play_some(hosts, 6, range(100)) for hosts in (3, 4, 5)))
    assert max(decree.term for decree in found) >= 5
    assert min(len(decree.hosts) for decree in found) <= 2


def _twice(side, term, candidate):
    """Vote for another candidate in the same term."""
    if (term, candidate) <= (side.promised, side.candidate) or side.node not in side.settled.hosts:
        return side, None
    voted = replace(side, promised=term, candidate=candidate, votes=(), proposed=None)
    return voted, Vote(term, side.settled, side.accepted)


def _in_reach(side):
    """Count a majority of those that have answered."""
    hosts = tuple(node for node, _ in side.votes)
    return Decree(side.promised, side.node, hosts) if hosts and hosts[0] == side.node else None


def _says_nothing(side, decree):
    """Accept a decree, and forget to tell of it with the next vote."""
    known, has_accepted = _heard_decree(side, decree)
    return replace(known, accepted=()), has_accepted


def _accepts_all(side, decree):
    """Accept the decree of an earlier term."""
    return _heard_decree(replace(side, promised=decree.term, candidate=decree.decider), decree)


_heard_decree = Launcher.heard_decree


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        pytest.param("decree", _in_reach, id="a majority of those in reach"),
        pytest.param("heard_decree", _says_nothing, id="a world that may have been agreed is forgotten"),
        pytest.param("heard_decree", _accepts_all, id="a promise is not kept"),
    ],
)
def test_a_broken_rule_is_found(monkeypatch, name, broken):
    """Negative control: each rule that is taken away shows in some order."""
    monkeypatch.setattr(Launcher, name, broken)
    with pytest.raises(AssertionError, match=r"two decrees of one term|hosts apart"):
        play_all(3, 2)


def _whoever_proposes(side, decree):
    """Accept what any candidate of a term proposes."""
    return _heard_decree(replace(side, candidate=decree.decider) if decree.term == side.promised else side, decree)


def test_two_votes_in_one_term(monkeypatch):
    """Negative control: who votes for two candidates, and accepts the decrees of both, makes two worlds."""
    monkeypatch.setattr(Launcher, "asked", _twice)
    monkeypatch.setattr(Launcher, "heard_decree", _whoever_proposes)
    with pytest.raises(AssertionError, match=r"two decrees of one term"):
        play_all(3, 2)


def test_half_of_the_hosts_without_the_lowest(monkeypatch):
    """Negative control: if any half counted, two halves would go on apart."""
    monkeypatch.setattr(succession, "is_majority", lambda some, one: 2 * len({*some} & {*one.hosts}) >= len(one.hosts))
    with pytest.raises(AssertionError, match=r"hosts apart"):
        play_all(2, 2)


def test_a_promise_that_a_restart_forgets():
    """Negative control: a launcher that came back with its old vote would let two worlds be; so it has none."""
    with pytest.raises(AssertionError, match=r"two decrees of one term|hosts apart"):
        play_all(2, 2, restarts=1)


@pytest.mark.parametrize(
    ("some", "hosts", "is_one"),
    [
        ((0, 1), (0, 1, 2), True),
        ((2,), (0, 1, 2), False),
        ((0,), (0, 1), True),
        ((1,), (0, 1), False),
        ((1,), (1, 2), True),
        ((0, 3), (0, 1, 2, 3), True),
        ((1, 2), (0, 1, 2, 3), False),
        ((1, 2, 3), (0, 1, 2, 3), True),
        ((3, 4, 5), (0, 1, 2), False),
        ((0,), (0,), True),
    ],
)
def test_majorities(some, hosts, is_one):
    """More than half of the hosts, or half of them with the one that decides; others do not count."""
    assert is_majority(some, Decree(0, hosts[0], hosts)) is is_one


def test_half_of_the_hosts():
    """It is not the lowest-numbered one that counts, but the one that decides."""
    assert [is_majority((node,), Decree(1, 2, (1, 2))) for node in (1, 2)] == [False, True]


@pytest.mark.parametrize(
    ("node", "silent", "advice"),
    [
        (0, {1: 0.2, 2: 0.2}, ("wait", {0, 1, 2})),
        (0, {1: 0.2, 2: 1.2}, ("wait", {0, 1, 2})),  # not in reach, not lost
        (0, {1: 0.2, 2: 1.6}, ("stand", {0, 1})),
        (1, {0: 0.2, 2: 1.6}, ("wait", {0, 1})),  # the deciding host does it
        (1, {0: 1.6, 2: 0.2}, ("stand", {1, 2})),
        (2, {0: 1.6, 1: 0.2}, ("wait", {1, 2})),  # the lowest of those that are left does it
        (0, {1: 1.2, 2: 1.2}, ("stop", {0, 1, 2})),
        (2, {0: 1.6, 1: 1.6}, ("stop", {2})),
    ],
)
def test_silence(node, silent, advice):
    """Who is cut off stops at once; who is lost is left out later, by one of those that are left."""
    assert advise(begin(node, 3), silent, 1.0, 1.5) == advice


def test_silence_where_a_host_has_no_workers():
    """The next one stands; the control: not if it does not know so, and nobody does where all have none."""
    second, third = begin(1, 3), begin(2, 3)
    silent = {0: 1.6, 1: 0.2, 2: 0.2}
    advice = lambda side, *idle: advise(replace(side, idle=frozenset(idle)), silent, 1.0, 1.5)[0]  # noqa: E731
    assert [advice(second), advice(second, 1), advice(third), advice(third, 1)] == ["stand", "wait", "wait", "stand"]
    assert [advice(side, 1, 2) for side in (second, third)] == ["wait", "wait"]


@pytest.mark.parametrize(("node", "advice"), [(0, "stand"), (1, "stop")])
def test_silence_of_two(node, advice):
    """Of two hosts the first one goes on alone, the second one does not."""
    assert advise(begin(node, 2), {1 - node: 1.6}, 1.0, 1.5) == (advice, {node})


def test_words_as_json():
    """Decrees and votes are what they were behind a message."""
    vote = Vote(3, Decree(1, 1, (1, 2)), (Decree(2, 1, (1,)),))
    assert Vote.unpacked(vote.packed()) == vote
