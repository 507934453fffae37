"""Which rank each of Ray's actors becomes, from where Ray has put them (pure).

Ray places bundles as it likes; the ranks of a node must be consecutive (their replicas are then one range of the sum's
tree), and all of a node must see the same GPUs in the order of their local ranks, as torchrun's scripts expect.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from unisono.world import World


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorPlacement:
    """Where an actor has been placed."""

    node: str  #: Ray's name of the node.
    address: str  #: The node's address.
    port: int  #: A port that was free there.
    gpus: tuple[str, ...] = ()  #: The GPUs that Ray has given to this actor.


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    """What an actor becomes."""

    actor: int  #: Its index among the placements.
    world: World  #: Who it is.
    devices: str | None  #: Value for ``CUDA_VISIBLE_DEVICES``; None where Ray has given no GPU to the node.


def assign(placements: Sequence[ActorPlacement], secret: str = "") -> list[RankPlace]:
    """Return the places in rank order; nodes in the order of their first actors.

    Example:
        >>> placed = [ActorPlacement(node=node, address="10.0.0.1", port=1) for node in "abab"]
        >>> [(place.actor, place.world.local_rank) for place in assign(placed)]
        [(0, 0), (2, 1), (1, 0), (3, 1)]
    """
    nodes: dict[str, list[int]] = {}
    for actor, placement in enumerate(placements):
        nodes.setdefault(placement.node, []).append(actor)
    first = placements[0]
    places: list[RankPlace] = []
    for node_rank, actors in enumerate(nodes.values()):
        gpus = [gpu for actor in actors for gpu in placements[actor].gpus]
        for local_rank, actor in enumerate(actors):
            world = World(
                rank=len(places),
                world_size=len(placements),
                local_rank=local_rank,
                local_world_size=len(actors),
                node_rank=node_rank,
                launcher="ray",
                rendezvous=f"tcp://{first.address}:{first.port}" if len(placements) > 1 else "",
                secret=secret,
            )
            places.append(RankPlace(actor=actor, world=world, devices=",".join(gpus) if gpus else None))
    return places
