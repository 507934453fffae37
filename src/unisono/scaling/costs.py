"""What an all-reduce costs, in closed formulas (pure).

In: a number of ranks n, S bytes, a `Machine`. Out: a `Cost`. Per round, alpha is the latency, o the overhead of a
message, beta the time of a byte on its way, gamma of a byte added. Where ranks span nodes a round lasts as long as its
slowest message: an upper bound, since ranks need not wait for each other after every round.

Sources: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", Int. J. High
Performance Computing Applications 19 (2005), for the ring, the tree and halving-doubling; Patarasu, Yuan, "Bandwidth
optimal all-reduce algorithms for clusters of workstations", J. Parallel and Distributed Computing 69 (2009), for the
least possible bytes; Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014;
Alexandrov et al. (LogGP), as in `machine`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import final

from unisono.errors import ConfigError
from unisono.scaling.machine import Link, Machine


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Seconds of one collective on the slowest rank."""

    latency_s: float = 0.0  #: Waiting for messages that are on their way, and overheads of messages.
    transfer_s: float = 0.0  #: Bytes leaving.
    add_s: float = 0.0  #: Bytes being added.
    sent_bytes: float = 0.0  #: Bytes that the busiest rank sends.

    @property
    def seconds(self) -> float:
        """All together."""
        return self.latency_s + self.transfer_s + self.add_s

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(**{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(Cost)})

    def times(self, count: float) -> "Cost":
        """Return the cost of `count` such rounds."""
        return Cost(**{field.name: count * getattr(self, field.name) for field in fields(Cost)})


Formula = Callable[[int, float, Machine], Cost]


def ring(ranks: int, num_bytes: float, machine: Machine) -> Cost:
    """Return 2(n-1) rounds of S/n: ``2(n-1)(alpha + o + beta S/n) + gamma (n-1)/n S``."""
    if ranks == 1:
        return Cost()
    chunk = num_bytes / ranks
    return _round(machine, chunk, _spans(ranks, machine), 1).times(2 * (ranks - 1)) + _added(
        machine, (ranks - 1) * chunk
    )


def naive_ring(ranks: int, num_bytes: float, machine: Machine) -> Cost:
    """Return the tutorials' ring, n-1 rounds of S: ``(n-1)(alpha + o + beta S + gamma S)``."""
    if ranks == 1:
        return Cost()
    once = _round(machine, num_bytes, _spans(ranks, machine), 1) + _added(machine, num_bytes)
    return once.times(ranks - 1)


def tree(ranks: int, num_bytes: float, machine: Machine) -> Cost:
    """Return up and down a binomial tree: ``ceil(log2 n)(2 alpha + 2 o + 2 beta S + gamma S)``."""
    total = Cost()
    for level in range(math.ceil(math.log2(ranks))):
        crosses = _spans(ranks, machine) and machine.node_size % (2 << level) != 0
        total += _round(machine, num_bytes, crosses, 1).times(2) + _added(machine, num_bytes)
    return total


def owner_computes(ranks: int, num_bytes: float, machine: Machine, sums: int = 1) -> Cost:
    """Return all-to-all and all-gather: ``2 alpha + (n-1)(2 o + (k + 1) beta S/n) + gamma k (n-1)/n S``.

    A rank posts its n-1 messages at once, so latency counts once a round; messages inside a node and between nodes
    leave through different ports at the same time. `sums` is k: where a rank's replicas are no whole subtree of the
    canonical tree, it sends several sums instead of one (3 of 8 replicas: 2).
    """
    if ranks == 1:
        return Cost()
    chunk = num_bytes / ranks
    return (
        _all_to_all(ranks, sums * chunk, machine)
        + _all_to_all(ranks, chunk, machine)
        + _added(machine, sums * (ranks - 1) * chunk)
    )


def halving_doubling(ranks: int, num_bytes: float, machine: Machine) -> Cost:
    """Return Rabenseifner's: ``2 log2(n)(alpha + o) + 2(n-1)/n beta S + (n-1)/n gamma S`` for powers of two.

    For other n the ranks beyond the power of two hand over whole buffers first, and get the result at the end.
    """
    levels = ranks.bit_length() - 1
    spans, total, part = _spans(ranks, machine), Cost(), num_bytes
    if ranks != 1 << levels:
        total += _round(machine, num_bytes, spans, 1).times(2) + _added(machine, num_bytes)
    for level in range(levels):
        part /= 2
        crosses = spans and machine.node_size % (2 << level) != 0
        total += _round(machine, part, crosses, min(ranks, machine.node_size)).times(2) + _added(machine, part)
    return total


def hierarchical(ranks: int, num_bytes: float, machine: Machine) -> Cost:
    """Return owner-computes inside nodes of L ranks, and only sums of whole nodes between H of them.

    Inside: ``2(alpha + (L-1) o + (L-1)/L beta S)``; between: ``2(alpha + (H-1)(o + beta S/n))``, the cards shared;
    ``gamma ((L-1)/L + (H-1)/n) S``. `unisono.collectives.process_groups.speakers` says who carries what.
    """
    local = min(ranks, machine.node_size)
    nodes = machine.num_nodes(ranks)
    inside = _burst(machine.inside, local - 1, num_bytes / local, 1.0).times(2)
    chunk = num_bytes / (nodes * local)
    between = _burst(machine.between, nodes - 1, chunk, machine.share(local)).times(2)
    return inside + between + _added(machine, (local - 1) / local * num_bytes + (nodes - 1) * chunk)


def hierarchical_ring(ranks: int, num_bytes: float, machine: Machine) -> Cost:
    """Return a ring inside each node, and L rings between the nodes, each of S/L.

    Source: Jia et al., "Highly scalable deep learning training system with mixed-precision", arXiv 1807.11205 (2018).
    """
    local, nodes = min(ranks, machine.node_size), machine.num_nodes(ranks)
    total = Cost()
    if local > 1:
        part = num_bytes / local
        total += _round(machine, part, False, 1).times(2 * (local - 1)) + _added(machine, (local - 1) * part)
    if nodes > 1:
        part = num_bytes / (local * nodes)
        total += _round(machine, part, True, local).times(2 * (nodes - 1)) + _added(machine, (nodes - 1) * part)
    return total


ALGORITHMS: Mapping[str, Formula] = {
    "ring": ring, "tree": tree, "owner-computes": owner_computes, "halving-doubling": halving_doubling,
    "hierarchical": hierarchical, "hierarchical-ring": hierarchical_ring, "naive-ring": naive_ring,
}  # fmt: skip
"""All-reduces by name."""


def parameter_server(workers: int, num_bytes: float, machine: Machine, servers: int = 1) -> Cost:
    """Return push and pull of all workers at once, k servers each holding S/k.

    A server's port takes n messages one after the other, which is the longer way where n > k:
    ``2(alpha + max(k (o + beta S/k), n (o + beta S/k))) + gamma n S/k``.
    """
    link, part, own = _to_servers(workers, num_bytes, machine, servers)
    theirs = _burst(link, workers, part, 1.0)
    slowest = max(own, theirs, key=lambda cost: cost.seconds)
    once = Cost(latency_s=slowest.latency_s, transfer_s=slowest.transfer_s)
    sent = max(num_bytes, workers * part)
    return once.times(2) + _added(machine, workers * part) + Cost(sent_bytes=sent)


def asynchronous_cycle_s(workers: int, compute_s: float, num_bytes: float, machine: Machine, servers: int = 1) -> float:
    """Return how long a worker takes from one push to its next where nobody waits for others.

    Alone it computes, pushes and pulls; where the servers' ports or additions are the limit, n workers take turns:
    ``max(compute + 2(alpha + k o + beta S) + gamma S/k, n (o + max(beta, gamma) S/k))``.
    """
    link, part, own = _to_servers(workers, num_bytes, machine, servers)
    alone_s = compute_s + 2 * own.seconds + part * machine.add_s_per_byte
    return max(alone_s, workers * (link.overhead_s + part * max(link.s_per_byte, machine.add_s_per_byte)))


def _to_servers(workers: int, num_bytes: float, machine: Machine, servers: int) -> tuple[Link, float, Cost]:
    """Return the links to the servers, the bytes that each of them holds, and a worker's cost of one way."""
    if servers < 1:
        raise ConfigError(f"expected at least 1 parameter server, got {servers}.")
    part, spans = num_bytes / servers, _spans(workers, machine)
    link = machine.between if spans else machine.inside
    share = machine.share(min(workers, machine.node_size)) if spans else 1.0
    return link, part, _burst(link, servers, part, share)


def _spans(ranks: int, machine: Machine) -> bool:
    return ranks > machine.node_size


def _round(machine: Machine, num_bytes: float, crosses: bool, senders: int) -> Cost:
    """Return one message of each of `senders` ranks of a node at once; `crosses`: some go to other nodes."""
    ways = [(machine.inside, 1.0)]
    if crosses:
        ways.append((machine.between, machine.share(senders)))
    costs = [_burst(link, 1, num_bytes, share) for link, share in ways]
    return max(costs, key=lambda cost: cost.seconds)


def _burst(link: Link, messages: int, num_bytes: float, share: float) -> Cost:
    """Return messages of `num_bytes` posted at once through one port."""
    if not messages:
        return Cost()
    return Cost(
        latency_s=link.latency_s + messages * link.overhead_s,
        transfer_s=messages * num_bytes * link.s_per_byte * share, sent_bytes=messages * num_bytes,
    )  # fmt: skip


def _all_to_all(ranks: int, chunk: float, machine: Machine) -> Cost:
    local = min(ranks, machine.node_size)
    ways = [_burst(machine.inside, local - 1, chunk, 1.0)]
    if ranks > local:
        ways.append(_burst(machine.between, ranks - local, chunk, machine.share(local)))
    slowest = max(ways, key=lambda cost: cost.seconds)
    return replace(slowest, sent_bytes=(ranks - 1) * chunk)


def _added(machine: Machine, num_bytes: float) -> Cost:
    return Cost(add_s=num_bytes * machine.add_s_per_byte)
