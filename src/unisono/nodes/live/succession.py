"""Which launchers go on together, and which of them decides, when hosts are lost (pure): one decree after the other.

In: what a launcher has heard from the others. Out: what it says to them. Knows no clock and no socket, so that every
order of messages, losses and deaths can be tried.

A *decree* names the hosts that go on and the one of them that decides; the first one, of term 0, names all hosts of the
attempt. Who wants another one stands as a candidate in a new term. In each term a launcher votes once, and by that it
has promised to accept no decree of an earlier term. With its vote it tells what it has accepted and what it knows to be
settled. The candidate may propose a decree for those that have voted for it, if they are a majority of the hosts of the
newest settled decree, and of every decree behind it that one of them has accepted: that one may have been settled, too.
A decree is settled when all hosts that it names have accepted it; only then does anybody act by it.

So the majority counts among the hosts of the last agreed world, not among those of the start: of three hosts one may be
lost, and of the two that are left another one. That is safe because a world counts only when all of it have accepted
it, and because a candidate that cannot know whether it does needs a majority of it and of the one before. What is never
counted is a majority of those that happen to be in reach. A half that has the host which decides counts as a majority:
of two hosts, that one. A launcher that is started again is another one: it has no vote in this attempt. One whose
workers are all dead votes, but does not decide as long as another one has workers: the leader is where it is decided.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, final


@final
@dataclass(frozen=True, slots=True)
class Decree:
    """These hosts go on, and one of them decides."""

    term: int
    decider: int
    hosts: tuple[int, ...]  #: Ascending.

    @classmethod
    def unpacked(cls, value: list[Any]) -> "Decree":
        """Return what `packed` has made JSON's types of."""
        return cls(int(value[0]), int(value[1]), tuple(value[2]))

    def packed(self) -> list[Any]:
        """Return it in JSON's types."""
        return [self.term, self.decider, list(self.hosts)]


@final
@dataclass(frozen=True, slots=True)
class Vote:
    """A launcher's vote, and what it knows."""

    term: int
    settled: Decree
    accepted: tuple[Decree, ...]  #: Of later terms, not known to be settled.

    @classmethod
    def unpacked(cls, value: list[Any]) -> "Vote":
        """Return what `packed` has made JSON's types of."""
        return cls(int(value[0]), Decree.unpacked(value[1]), tuple(map(Decree.unpacked, value[2])))

    def packed(self) -> list[Any]:
        """Return it in JSON's types."""
        return [self.term, self.settled.packed(), [decree.packed() for decree in self.accepted]]


def is_majority(some: Collection[int], decree: Decree) -> bool:
    """Whether these are more than half of the hosts of a decree, or half of them with the one that decides."""
    there = {*some} & {*decree.hosts}
    return 2 * len(there) > len(decree.hosts) or (2 * len(there) == len(decree.hosts) and decree.decider in there)


@final
@dataclass(frozen=True, slots=True)
class Launcher:
    """One launcher's side; every event returns the next state, and what is to be said.

    Attributes:
        node: Node rank of its host.
        settled: The newest decree that it knows to be settled.
        accepted: Decrees of later terms that it has accepted.
        promised: The last term in which it has voted.
        candidate: For whom.
        votes: As a candidate: those of its term, by node rank.
        proposed: As a candidate: its decree.
        agreed: As a candidate: who has accepted it.
        idle: Hosts that are known to have no workers any more: they do not decide.
    """

    node: int
    settled: Decree
    accepted: tuple[Decree, ...] = ()
    promised: int = 0
    candidate: int = -1
    votes: tuple[tuple[int, Vote], ...] = ()
    proposed: Decree | None = None
    agreed: frozenset[int] = frozenset()
    idle: frozenset[int] = frozenset()

    def stand(self) -> "Launcher":
        """Become a candidate in a new term, and vote for itself."""
        stands, vote = self.asked(self.promised + 1, self.node)
        assert vote is not None
        return replace(stands, votes=((self.node, vote),), proposed=None, agreed=frozenset())

    def asked(self, term: int, candidate: int) -> tuple["Launcher", Vote | None]:
        """Vote for a candidate, once in a term; None where it gets no vote."""
        if term <= self.promised or self.node not in self.settled.hosts:
            return self, None
        voted = replace(self, promised=term, candidate=candidate, votes=(), proposed=None)
        return voted, Vote(term, self.settled, self.accepted)

    def heard_vote(self, voter: int, vote: Vote) -> "Launcher":
        """Take a vote into account."""
        if vote.term != self.promised or self.candidate != self.node or self.proposed is not None:
            return self
        return replace(self, votes=tuple(sorted({**dict(self.votes), voter: vote}.items(), key=lambda one: one[0])))

    def decree(self) -> Decree | None:
        """Return what a candidate with these votes may propose; None where they are not enough."""
        if not self.votes:
            return None
        settled = max((vote.settled for _, vote in self.votes), key=lambda decree: decree.term)
        open_ones = {one for _, vote in self.votes for one in vote.accepted if one.term > settled.term}
        needed = (settled, *open_ones)
        hosts = tuple(node for node, _ in self.votes if all(node in one.hosts for one in needed))
        if not all(is_majority(hosts, one) for one in needed) or self.first_of(hosts) != self.node:
            return None
        return Decree(self.promised, self.node, hosts)

    def propose(self) -> tuple["Launcher", Decree | None]:
        """Propose what the votes allow, and accept it; None where they are not enough."""
        decree = self.decree()
        if decree is None or self.proposed is not None:
            return self, None
        accepted, _ = replace(self, proposed=decree).heard_decree(decree)
        return accepted.heard_accepted(self.node, decree.term), decree

    def heard_decree(self, decree: Decree) -> tuple["Launcher", bool]:
        """Accept a decree of the candidate that it has voted for, and no other; whether it has."""
        if (decree.term, decree.decider) != (self.promised, self.candidate) or self.node not in decree.hosts:
            return self, False
        if decree in self.accepted or decree.term <= self.settled.term:
            return self, True
        return replace(self, accepted=(*self.accepted, decree)), True

    def heard_accepted(self, node: int, term: int) -> "Launcher":
        """Take into account that a host has accepted the decree of this candidate."""
        if self.proposed is None or term != self.proposed.term:
            return self
        agreed = self.agreed | {node}
        known = replace(self, agreed=agreed)
        return known.heard_settled(self.proposed) if agreed >= {*self.proposed.hosts} else known

    def heard_idle(self, node: int, *, is_idle: bool) -> "Launcher":
        """Take into account that no worker of a host is left; or that there is one again."""
        return replace(self, idle=self.idle | {node} if is_idle else self.idle - {node})

    def first_of(self, hosts: Collection[int]) -> int:
        """Return the one of these hosts that is to decide: the lowest-numbered that has workers; -1: none has."""
        return min({*hosts} - self.idle, default=-1)

    def heard_settled(self, decree: Decree) -> "Launcher":
        """Take into account that all hosts of a decree have accepted it."""
        if decree.term <= self.settled.term:
            return self
        return replace(
            self, settled=decree, accepted=tuple(one for one in self.accepted if one.term > decree.term),
        )  # fmt: skip


def begin(node: int, hosts: int) -> Launcher:
    """Return the side of a launcher at the start of an attempt: the first host decides for all."""
    return Launcher(node, Decree(0, 0, tuple(range(hosts))))


def advise(
    launcher: Launcher, silent_s: Mapping[int, float], silence_s: float, longer: float
) -> tuple[str, frozenset[int]]:
    """Say what silence means.

    Args:
        launcher: Whose side.
        silent_s: For how long each other host has not been heard, in seconds.
        silence_s: For how long a host may be silent and still counts as in reach.
        longer: How many times as long until it is lost.

    Returns:
        ``stop``: those in reach are no majority, end the workers. ``stand``: hosts are lost, and it is for this one to
        stand as a candidate. ``wait`` otherwise. And the hosts that are not lost.
    """
    hosts = launcher.settled.hosts
    in_reach = {node for node in hosts if node == launcher.node or silent_s[node] <= silence_s}
    left = frozenset(node for node in hosts if node == launcher.node or silent_s[node] <= longer * silence_s)
    if not is_majority(in_reach, launcher.settled):
        return "stop", left
    decider = launcher.settled.decider
    stands = launcher.node == (decider if decider in left else launcher.first_of(left))
    return "stand" if len(left) < len(hosts) and stands else "wait", left
