"""What connects the launchers of several hosts while workers may go on without one that has died, or without a host.

In: words for other launchers. Out: what they have said, as `HostSaid` in the supervisor's queue; which hosts go on and
which launcher decides, the same way, as `succession` has it; and to be cut off, where the hosts in reach are no
majority.

A launcher asks every other one, again and again, over `mesh`. Its workers may run for `silence_s` from the moment in
which it asked the last questions that a majority has answered. A host counts as lost half as long again after it has
answered, and only then a decree without it is proposed: so what is lost has ended its workers, unless its launcher
stands still. What such workers could write is held back by the lock of the run directory.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, final

from unisono.errors import ConfigError
from unisono.launchers.local import Signals
from unisono.launchers.spec import LaunchSpec
from unisono.launchers.supervision.channels import HostSaid
from unisono.launchers.supervision.live_recovery import off
from unisono.nodes.live.mesh import Mesh, Places
from unisono.nodes.live.succession import Decree, Launcher, Vote, advise, begin
from unisono.nodes.peer_monitor import KEEPER, PeerMonitor
from unisono.nodes.plan import NodesPlan
from unisono.nodes.roll import NodeInfo, first_ranks
from unisono.system.messages import tell

_LOOK_S = 0.05
_JOIN_S = 1.0
_LONGER = 1.5
# Times the silence:
_AGREE = 1.1  # so long a candidate waits for hosts that have been in reach
_GIVE_UP, _GIVE_UP_LAST = 4.0, 10.0  # so long hosts are lost before somebody must have agreed on it


@final
class LiveRelay:
    """One launcher's connection to the others, in one attempt.

    Args:
        places: Of the launchers' stores, by node rank.
        spans: The ranks of each host, by node rank.
        node: Node rank of this host.
        silence_s: Silence after which a host is not counted any more; and where workers cannot go on without it, after
            which they are ended when nobody keeps the launchers' store: 0 allows any.
        put: Takes what is heard; called in threads.
        cut: Takes why this host has to end its workers.

    Attributes:
        gone: Hosts that have been left out, and for how many seconds each had not been heard then.
    """

    def __init__(
        self, places: Places, spans: Sequence[range], node: int, silence_s: tuple[float, float],
        put: Callable[[HostSaid], None], cut: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.spans, self.node = spans, node
        (self._silence_s, self._heartbeat_s), self._put, self._cut = silence_s, put, cut
        self._lock = threading.RLock()
        self._side = begin(node, len(spans))
        self._settled = self._side.settled  # acted by
        self._asked: frozenset[int] = frozenset()
        self._stood_s = self._lost_s = 0.0  # 0: it has not
        self._is_armed, self._stopped = threading.Event(), threading.Event()
        self._is_cut = self._is_over = False
        self.gone: dict[int, float] = {}
        self._mesh = Mesh(node, places, self._hear, self._is_left_out, self._silence_s)
        self._judge = threading.Thread(target=self._judge_on, name="unisono-live-relay", daemon=True)
        self._mesh.start()
        self._judge.start()

    @property
    def hosts(self) -> tuple[int, ...]:
        """The hosts that go on, by node rank."""
        return self._side.settled.hosts

    @property
    def decider(self) -> int:
        """The host whose launcher decides."""
        return self._side.settled.decider

    @property
    def is_armed(self) -> bool:
        """Whether workers can go on without a host that is silent."""
        return self._is_armed.is_set() and not self._is_over

    def send(self, node: int, message: dict[str, Any]) -> None:
        """Say something to another launcher; nothing to one of a host that is left out."""
        if node in self.hosts:
            self._mesh.send(node, {"word": message})

    def rest(self, *, is_idle: bool) -> None:
        """Say whether no worker of this host is left: then another one is to decide if the deciding one is lost."""
        with self._lock:
            self._side = self._side.heard_idle(self.node, is_idle=is_idle)
        for other in self._others():
            self._mesh.send(other, {"idle": is_idle})

    def arm(self, *, is_on: bool) -> None:
        """Let silence count, from now on or no more."""
        if is_on and not self._is_armed.is_set():
            self._mesh.forget()
        (self._is_armed.set if is_on else self._is_armed.clear)()

    def close(self) -> None:
        """Fall silent; who decides says so before, unless the others may go on without it. Safe to call twice."""
        self._is_armed.clear()
        if self.decider == self.node and not self._is_cut and not self._stopped.is_set():
            for other in self._others():
                self.send(other, {"over": True})
        self._stopped.set()
        self._judge.join(_JOIN_S)
        self._mesh.close(self.hosts)

    def _others(self) -> list[int]:
        return [node for node in self.hosts if node != self.node]

    def _hear(self, node: int, said: dict[str, Any]) -> None:
        with self._lock:
            side = self._side
            if "word" in said:
                if node in side.settled.hosts:
                    self._is_over |= node == side.settled.decider and "over" in said["word"]
                    self._put(HostSaid(node, said["word"]))
            elif "idle" in said:
                self._side = side.heard_idle(node, is_idle=said["idle"])
            elif "ask" in said:
                self._vote(node, said["ask"])
            elif "vote" in said:
                self._side = side.heard_vote(node, Vote.unpacked(said["vote"]))
                if self._asked <= {voter for voter, _ in self._side.votes}:
                    self._propose()
            elif "decree" in said:
                decree = Decree.unpacked(said["decree"])
                self._side, has_accepted = side.heard_decree(decree)
                if has_accepted:
                    self._mesh.send(node, {"accepted": decree.term})
            elif "accepted" in said:
                self._settle(side.heard_accepted(node, said["accepted"]))
            else:
                self._settle(side.heard_settled(Decree.unpacked(said["settled"])))

    def _vote(self, candidate: int, term: int) -> None:
        decider = self.decider
        # One that hears the deciding launcher helps nobody against it.
        if candidate != decider and (self.node == decider or self._mesh.silent_s()[decider] <= self._silence_s):
            return
        self._side, vote = self._side.asked(term, candidate)
        if vote is not None:
            self._mesh.send(candidate, {"vote": vote.packed()})

    def _propose(self) -> bool:
        """Propose a decree, if the votes allow one; whether they do."""
        self._side, decree = self._side.propose()
        if decree is None:
            return False
        for node in decree.hosts:
            if node != self.node:
                self._mesh.send(node, {"decree": decree.packed()})
        self._settle(self._side)  # where it is for this host alone
        return True

    def _settle(self, side: Launcher) -> None:
        """Act by a decree that all its hosts have accepted."""
        before, now = self._settled, side.settled
        lost, silent_s = {*before.hosts} - {*now.hosts}, self._mesh.silent_s()
        self.gone |= {node: silent_s[node] for node in lost - {self.node}}  # before anybody can know of them
        self._side = side
        if now == before:
            return
        self._settled, self._stood_s, self._lost_s = now, 0.0, 0.0
        if self.node not in now.hosts:
            self._is_left_out()
            return
        for node in lost:
            self._mesh.leave_out(node)
            if now.decider == before.decider == self.node:
                self._put(HostSaid(node, {"silent": True}))
        if now.decider != before.decider:
            self._put(HostSaid(now.decider, {"succeeds": now.hosts}))
        if now.decider == self.node:
            for node in self._others():
                self._mesh.send(node, {"settled": now.packed()})

    def _judge_on(self) -> None:
        looked_s = time.monotonic()
        while not self._stopped.wait(_LOOK_S):
            now = time.monotonic()
            if now - looked_s > self._silence_s / 2:
                self._mesh.forget()  # we have stood still ourselves: their silence means nothing
            looked_s = now
            with self._lock:
                if self.is_armed:
                    self._look(now)
                else:
                    self._stood_s = self._lost_s = 0.0
                    self._look_without_keeper()

    def _look(self, now: float) -> None:
        silent_s = self._mesh.silent_s()
        advice, left = advise(self._side, silent_s, self._silence_s, _LONGER)
        if len(left) < len(self.hosts):
            self._lost_s = self._lost_s or now
        else:
            self._lost_s = 0.0
        # Of two that do not hear each other the higher-numbered one ends first; the other goes on with the rest.
        is_last = min({*self.hosts} - left, default=self.node) > self.node
        patience_s = (_GIVE_UP_LAST if is_last else _GIVE_UP) * self._silence_s
        if advice == "stop" or (self._lost_s and now - self._lost_s > patience_s):
            self._stop_alone(silent_s)
        elif advice == "stand" and now - self._stood_s > _AGREE * self._silence_s:
            self._stand(now, left)

    def _look_without_keeper(self) -> None:
        """Notice a lost host where workers cannot go on without it: the peer monitor has no store any more."""
        if self._is_over or KEEPER in self.hosts or not self._heartbeat_s:
            return
        silent_s = self._mesh.silent_s()
        for node in self._others():
            if silent_s[node] > self._heartbeat_s:
                why = f"host {node} has not answered for {silent_s[node]:.1f} s (--heartbeat)"
                self._lose(f"{why}, and the workers cannot go on without it")

    def _stand(self, now: float, left: frozenset[int]) -> None:
        """Ask for votes; or, where some have not answered in time, go on with those that have."""
        if self._stood_s and self._side.proposed is None and self._side.candidate == self.node:
            self._stood_s = now
            if self._propose():
                return
        self._stood_s, self._asked = now, left
        self._side = self._side.stand()
        for node in left - {self.node}:
            self._mesh.send(node, {"ask": self._side.promised})
        if self._asked == {self.node}:
            self._propose()

    def _stop_alone(self, silent_s: dict[int, float]) -> None:
        far = [f"host {node} has not answered for {silent_s[node]:.1f} s" for node in self._others()
               if silent_s[node] > self._silence_s]  # fmt: skip
        self._lose(
            f"{', '.join(far)} (--silence), and the hosts that answer are no majority of the {len(self.hosts)}, or "
            "cannot agree"
        )

    def _is_left_out(self) -> None:
        self._lose("it was silent for too long, and the others go on without it (--silence)")

    def _lose(self, why: str) -> None:
        if not self._stopped.is_set():
            self._is_cut = True
            self._cut(why)


def check_live(spec: LaunchSpec, plan: NodesPlan) -> LaunchSpec:
    """Return a launch whose workers go on without one that has died only where that is possible on several hosts.

    Raises:
        ConfigError: Spares could not join, and bounds could not be held.
    """
    if spec.live != "auto":
        return spec
    if not plan.is_elastic:
        return spec
    for name, value in ("spares", spec.spares), ("elastic", spec.elastic):
        if value:
            raise ConfigError(
                f"--{name} {value} is for workers that go on when one dies, and where hosts come and go (--nnodes "
                f"{plan.min_nodes}:{plan.max_nodes}) none does. Hint: leave it out, or --nnodes {plan.max_nodes}."
            )
    if spec.output != "quiet":
        tell(off(f"hosts come and go (--nnodes {plan.min_nodes}:{plan.max_nodes})"))
    return replace(spec, live="off")


@contextlib.contextmanager
def relay_of(
    spec: LaunchSpec, plan: NodesPlan, places: Places | None, infos: Sequence[NodeInfo], signals: Signals,
    monitor: PeerMonitor,
) -> Iterator[LiveRelay | None]:  # fmt: skip
    """Give what connects the launchers during an attempt, None where workers do not go on without one that dies.

    Args:
        spec: The launch on this host, with its place among the others.
        plan: How the hosts meet.
        places: Of the launchers' stores; None where there are none.
        infos: Of the hosts, by node rank.
        signals: Has the supervisor's queue.
        monitor: Ends the workers of a host that is cut off.
    """
    if places is None or spec.placement is None:
        yield None
        return
    spans = [range(start, stop) for start, stop in itertools.pairwise(first_ranks(infos))]
    silence_s = plan.silence_s, spec.heartbeat_s
    relay = LiveRelay(places, spans, spec.placement.node_rank, silence_s, signals.events.put, monitor.cut)
    with contextlib.closing(relay):
        yield relay
