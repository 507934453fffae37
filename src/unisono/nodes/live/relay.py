"""What launchers of several hosts say to each other while workers may go on without one that has died.

In: messages as plain values. Out: what others have said, as `HostSaid` in the supervisor's queue; that a host is
silent, the same way; and to be cut off, where this host has not heard the deciding one for too long. The words lie in
the launchers' store, numbered, each under a key of its own that its reader waits for: so they come in order, once.

A host shows beats, and each beat is a question: has it been left out? Its workers may run for `silence_s` from the
moment in which it has asked the last question that was answered. The deciding host counts from when it sees a beat,
which is later, and half as long again: when it leaves a host out, that host has ended its workers, unless its launcher
stands still. What such workers write is written by no leader (`live_hosts`).
"""

import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, final

from unisono.errors import ConfigError, PeerLost
from unisono.launchers.local import Signals
from unisono.launchers.spec import LaunchSpec
from unisono.launchers.supervision.channels import HostSaid
from unisono.launchers.supervision.live_hosts import DECIDING
from unisono.launchers.supervision.live_recovery import off
from unisono.nodes.peer_monitor import PeerMonitor, left_out_key
from unisono.nodes.plan import NodesPlan
from unisono.nodes.roll import NodeInfo, first_ranks
from unisono.nodes.rounds import RecentBeats
from unisono.nodes.values import SharedValues
from unisono.system.messages import tell

_BEAT_S = 0.1
_WAIT_S = 0.2
_JOIN_S = 1.0
_LONGER = 1.5


@final
class LiveRelay:
    """One launcher's connection to the others, in one attempt.

    Args:
        values: Of this attempt alone; calls give up when this host is cut off.
        spans: The ranks of each host, by node rank.
        node: Node rank of this host.
        silence_s: Silence after which a host is left out.
        put: Takes what is heard; called in threads.
        cut: Takes why this host has to end its workers.
    """

    def __init__(
        self, values: SharedValues, spans: Sequence[range], node: int, silence_s: float,
        put: Callable[[HostSaid], None], cut: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.spans, self.node = spans, node
        self._values, self._silence_s, self._put, self._cut = values, silence_s, put, cut
        self._others = [other for other in range(len(spans)) if other != node] if node == DECIDING else [DECIDING]
        self._sent = dict.fromkeys(self._others, 0)
        self._is_armed = threading.Event()
        self._stopped = threading.Event()
        self._answered_s = time.monotonic()
        acts: list[Callable[[], None]] = [functools.partial(self._hear, other) for other in self._others]
        acts += [self._judge] if node == DECIDING else [self._beat, self._watch]
        self._threads = [threading.Thread(target=act, name="unisono-live-relay", daemon=True) for act in acts]
        for thread in self._threads:
            thread.start()

    def send(self, node: int, message: dict[str, Any]) -> None:
        """Say something to another launcher.

        Raises:
            PeerLost: The store is out of reach.
        """
        number, self._sent[node] = self._sent[node], self._sent[node] + 1
        self._values.put(f"said/{self.node}-{node}/{number}", message)

    def arm(self, *, is_on: bool) -> None:
        """Let silence count, from now on or no more."""
        if is_on and not self._is_armed.is_set():
            self._answered_s = time.monotonic()
        (self._is_armed.set if is_on else self._is_armed.clear)()

    def leave_out(self, node: int) -> None:
        """Let a host be told, whenever it is heard again, that the others go on without it."""
        self._values.put(left_out_key(node), True)

    def close(self) -> None:
        """Fall silent; who decides says so before. Safe to call twice."""
        if self.node == DECIDING and not self._stopped.is_set():
            for other in self._others:
                self.send(other, {"over": True})
        self._stopped.set()
        for thread in self._threads:  # one that waits for a store out of reach ends with the process
            thread.join(_JOIN_S)

    def _hear(self, other: int) -> None:
        number = 0
        try:
            while not self._stopped.is_set():
                message = self._values.take(f"said/{other}-{self.node}/{number}", _WAIT_S)
                if message is not None:
                    number += 1
                    self._put(HostSaid(other, message))
        except PeerLost as error:
            self._lose(f"the connection to the store broke: {error}")

    def _beat(self) -> None:
        count = 0
        try:
            while not self._stopped.wait(_BEAT_S):
                count, asked_s = count + 1, time.monotonic()
                self._values.put(f"beat/{self.node}", count)
                if self._values.look(left_out_key(self.node)) is not None:
                    self._lose("it was silent for too long, and the others go on without it (--silence)")
                    return
                self._answered_s = asked_s
        except PeerLost as error:
            self._lose(f"the connection to the store broke: {error}")

    def _watch(self) -> None:
        """Notice that the deciding host does not answer."""
        while not self._stopped.wait(_BEAT_S / 2):
            silent_s = time.monotonic() - self._answered_s
            if self._is_armed.is_set() and silent_s > self._silence_s:
                self._lose(f"the host that decides has not answered for {silent_s:.1f} s (--silence)")
                return

    def _judge(self) -> None:
        """Notice that another host is silent."""
        beats, looked_s = RecentBeats(self._silence_s * _LONGER), time.monotonic()
        waited = {*self._others}
        try:
            while not self._stopped.wait(_BEAT_S):
                now = time.monotonic()
                if now - looked_s > self._silence_s / 2 or not self._is_armed.is_set():
                    beats.forget()  # we have stood still ourselves: their silence means nothing
                looked_s = now
                for node in sorted(waited):
                    if (beat := self._values.look(f"beat/{node}")) is not None:
                        beats.hear(node, beat, time.monotonic())
                    if beats.is_silent(node, now):
                        waited.discard(node)
                        self._put(HostSaid(node, {"silent": self._silence_s * _LONGER}))
        except PeerLost as error:
            self._lose(f"the connection to the store broke: {error}")

    def _lose(self, why: str) -> None:
        if not self._stopped.is_set():
            self._cut(why)


def check_live(spec: LaunchSpec, plan: NodesPlan) -> LaunchSpec:
    """Return a launch whose workers go on without one that has died only where that is possible on several hosts.

    Raises:
        ConfigError: Workers are to come and go.
    """
    if spec.live != "auto":
        return spec
    if spec.spares or spec.elastic is not None:
        given = f"--spares {spec.spares}" if spec.spares else f"--elastic {spec.elastic}"
        raise ConfigError(
            f"{given} lets workers join those of one host, and there are several (--nnodes). Hint: leave it out; with "
            "--live auto the others go on without a worker that dies."
        )
    if not plan.is_elastic:
        return spec
    if spec.output != "quiet":
        tell(off(f"hosts come and go (--nnodes {plan.min_nodes}:{plan.max_nodes})"))
    return replace(spec, live="off")


@contextlib.contextmanager
def relay_of(
    spec: LaunchSpec, plan: NodesPlan, values: SharedValues, infos: Sequence[NodeInfo], signals: Signals,
    monitor: PeerMonitor,
) -> Iterator[LiveRelay | None]:  # fmt: skip
    """Give what connects the launchers during an attempt, None where workers do not go on without one that dies.

    Args:
        spec: The launch on this host, with its place among the others.
        plan: How the hosts meet.
        values: Of this attempt.
        infos: Of the hosts, by node rank.
        signals: Has the supervisor's queue.
        monitor: Ends the workers of a host that is cut off.
    """
    if not spec.may_be_live or spec.placement is None:
        yield None
        return
    spans = [range(start, stop) for start, stop in itertools.pairwise(first_ranks(infos))]
    own = values.below("live").guarded(lambda: monitor.cut_off)
    relay = LiveRelay(own, spans, spec.placement.node_rank, plan.silence_s, signals.events.put, monitor.cut)
    with contextlib.closing(relay):
        yield relay
