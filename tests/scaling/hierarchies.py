"""Schedules of what spans nodes or has servers, as moves for the simulator and for proofs (pure)."""

from unisono.collectives.process_groups.speakers import Hosts, carrier
from unisono.collectives.schedules import Move, Schedule
from unisono.errors import ConfigError


def hierarchical(nodes: int, node_size: int) -> Schedule:
    """Return owner-computes across nodes: the moves of `HostsTransport`, of one partial from each node.

    The ranks of a node bring each slice to its carrier, carriers send their sums to the owner; the result goes back the
    same way.

    Raises:
        ConfigError: No node, or nodes without ranks.
    """
    if nodes < 1 or node_size < 1:
        raise ConfigError(f"expected at least 1 node of 1 rank, got {nodes} nodes of {node_size}.")
    ranks = nodes * node_size
    hosts: Hosts = tuple(range(node * node_size, (node + 1) * node_size) for node in range(nodes))
    inside, between = [], []
    for part in range(ranks):
        for index, host in enumerate(hosts):
            carries = carrier(hosts, index, part)
            inside += [Move(rank, carries, part, "add") for rank in host if rank != carries]
            if carries != part:
                between.append(Move(carries, part, part, "add"))
    rounds = [inside, between, _back(between), _back(inside)]
    return Schedule(
        name="hierarchical", world_size=ranks, num_chunks=ranks, holds=(range(ranks),) * ranks,
        rounds=tuple(tuple(moves) for moves in rounds if moves),
    )  # fmt: skip


def parameter_server(workers: int, servers: int) -> Schedule:
    """Return push and pull: ranks 0 to n-1 are workers, the others servers, each with a part of the buffer.

    A server starts with zeros, to which it adds.

    Raises:
        ConfigError: No worker or no server.
    """
    if workers < 1 or servers < 1:
        raise ConfigError(f"expected at least 1 worker and 1 server, got {workers} and {servers}.")
    push = [Move(rank, workers + part, part, "add") for rank in range(workers) for part in range(servers)]
    own = [range(part, part + 1) for part in range(servers)]
    return Schedule(
        name="parameter-server", world_size=workers + servers, num_chunks=servers,
        holds=(*[range(servers)] * workers, *own), rounds=(tuple(push), tuple(_back(push))),
    )  # fmt: skip


def _back(moves: list[Move]) -> list[Move]:
    return [Move(move.target, move.source, move.chunk, "copy") for move in moves]
