"""What launchers agree on that have gone on without the host which keeps the rendezvous, when their workers have ended.

In: how the attempt ended on this host. Out: a verdict, the same on all of them; and, where the workers start again, who
meets where: at a new rendezvous, kept by the launcher that decides. They talk at the store which that launcher has kept
for the others since the attempt began.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import final

from unisono.errors import PeerLost
from unisono.nodes.live.mesh import Places
from unisono.nodes.plan import DEFAULT_PORT, join_endpoint
from unisono.nodes.values import SharedValues
from unisono.nodes.verdicts import NodeEnding, Verdict
from unisono.store.client import Client

_BYE_S = 5.0
_HINT = "Hint: the same commands on all hosts go on from the last checkpoint."


@final
@dataclass(frozen=True, slots=True)
class Survivors:
    """The hosts that are left, as they have agreed, by their node ranks in the attempt."""

    hosts: Sequence[int]
    decider: int
    node: int  #: This host.
    places: Places


@final
@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the workers are started again."""

    port: int  #: On the host that decides; 0 where nobody meets.
    hosts: Sequence[int]  #: Who comes, by their node ranks in the attempt.


def agree(
    left: Survivors, mine: NodeEnding, rule: Callable[[Sequence[NodeEnding]], Verdict], wait_s: float,
    cut_off: Callable[[], str],
) -> tuple[Verdict, Meeting]:  # fmt: skip
    """Return how all that are left go on.

    Args:
        left: Who they are.
        mine: How the attempt ended here.
        rule: Gives the verdict over the endings, in the order of the hosts; asked where it is decided.
        wait_s: How long the others may need to end their workers; who has not by then is taken for lost.
        cut_off: Says why to give up.

    Raises:
        PeerLost: The launcher that decides has not answered in time, or the wait was given up.
    """
    with contextlib.closing(Client(*left.places.stores[left.decider], left.places.key)) as client:
        values = SharedValues(client, "after", cut_off)
        values.put(f"ending/{left.node}", asdict(mine))
        if left.node == left.decider:
            _decide(values, left, rule, wait_s)
        told = values.look("verdict", wait_s + _BYE_S)
        if told is None:
            raise PeerLost(f"host {left.decider}, which decides, has not said how the others go on")
        values.put(f"bye/{left.node}", True)
        if left.node == left.decider:  # this store is closed behind that
            deadline = time.monotonic() + _BYE_S
            for node in told["here"]:
                values.look(f"bye/{node}", max(0.0, deadline - time.monotonic()))
        return Verdict(**told["verdict"]), Meeting(told["port"], told["comes"])


def _decide(
    values: SharedValues, left: Survivors, rule: Callable[[Sequence[NodeEnding]], Verdict], wait_s: float
) -> None:
    endings = _gather(values, left, wait_s)
    verdict = rule(list(endings.values()))
    here = [node for node, ending in endings.items() if ending.kind != "lost"]
    verdict = replace(verdict, leaving=[left.hosts[place] for place in verdict.leaving])
    comes = [node for node in here if node not in verdict.leaving]
    port = _free_port(left) if verdict.what == "again" else 0
    values.put("verdict", {"verdict": asdict(verdict), "port": port, "here": here, "comes": comes})


def _gather(values: SharedValues, left: Survivors, wait_s: float) -> dict[int, NodeEnding]:
    deadline = time.monotonic() + wait_s
    told = {node: values.look(f"ending/{node}", max(0.0, deadline - time.monotonic())) for node in left.hosts}
    return {node: NodeEnding(kind="lost") if one is None else NodeEnding.unpacked(one) for node, one in told.items()}


def _free_port(left: Survivors) -> int:
    """Return a port of this host that nobody listens on now."""
    address = left.places.stores[left.node][0]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def alone(mine: NodeEnding, hint: str, why: str) -> Verdict:
    """Return what follows on this host where the others are not asked: none starts its workers again.

    Args:
        mine: How the attempt ended here.
        hint: How to go on.
        why: Why the rendezvous is of no use.

    Raises:
        PeerLost: The workers have ended for the sake of others.
    """
    if mine.kind == "done":
        return Verdict(what="done")
    if mine.kind == "stopped":
        return Verdict(what="stopped", step=mine.step)
    if mine.kind == "interrupted":
        return Verdict(what="interrupted", text="this host was asked to stop.", exit_code=128 + mine.signum)
    if mine.kind == "failed" and mine.is_root:
        rank = mine.ending.rank if mine.ending is not None else -1
        return Verdict(what="failed", text=f"{mine.message}\n{_HINT}{hint}", exit_code=mine.exit_code, rank=rank)
    raise PeerLost(why)


def without_host(hosts: Sequence[int], decider: int, node: int, address: str, *, is_elastic: bool = False) -> str:
    """Return in words how this host goes on if the one with the rendezvous stays away: with which options.

    Args:
        hosts: The others, by their node ranks.
        decider: The one of them that is to keep the rendezvous.
        node: This host.
        address: Of `decider`.
        is_elastic: Whether hosts come and go, so that their number need not change.
    """
    order = sorted(hosts, key=lambda one: (one != decider, one))
    many = "" if is_elastic else f"--nnodes {len(order)} --node-rank {order.index(node)} "
    how = f"with {many}--rdzv-endpoint {join_endpoint(address, DEFAULT_PORT)}"
    if len(order) == 1:
        how = "without --nnodes, --node-rank and --rdzv-endpoint"
    return f" If the host that keeps the rendezvous does not come back: the same command {how}."
