"""Which rank each of Ray's actors becomes."""

from hypothesis import given
from hypothesis import strategies as st

from unisono.launchers.engines.ray_places import ActorPlacement, assign


def seats_on(nodes, gpus=0):
    return [
        ActorPlacement(
            node=node, address=f"10.0.0.{ord(node) % 200}", port=4000 + i, gpus=tuple(f"{i}.{g}" for g in range(gpus))
        )
        for i, node in enumerate(nodes)
    ]


@given(st.text("abcde", min_size=1, max_size=12))
def test_ranks_of_a_node_are_consecutive(nodes):
    """Every actor becomes one rank; a node's ranks follow each other and count their own; all meet at rank 0's node."""
    places = assign(seats_on(nodes))
    worlds = [place.world for place in places]
    hosts = [nodes[place.actor] for place in places]
    assert sorted(place.actor for place in places) == list(range(len(nodes)))
    assert [world.rank for world in worlds] == list(range(len(nodes)))
    for host in set(nodes):
        ranks = [rank for rank, name in enumerate(hosts) if name == host]
        assert ranks == list(range(ranks[0], ranks[0] + nodes.count(host)))
        assert [worlds[rank].local_rank for rank in ranks] == list(range(len(ranks)))
        assert {worlds[rank].local_world_size for rank in ranks} == {len(ranks)}
        assert len({worlds[rank].node_rank for rank in ranks}) == 1
    assert places[0].actor == 0
    assert len({world.rendezvous for world in worlds}) == 1


def test_a_nodes_ranks_see_all_its_gpus_in_their_order():
    """So ``cuda:LOCAL_RANK`` is the GPU that Ray gave to that rank; without GPUs nothing is said of them."""
    places = assign(seats_on("aba", gpus=1))
    assert [(place.actor, place.devices) for place in places] == [(0, "0.0,2.0"), (2, "0.0,2.0"), (1, "1.0")]
    assert [place.world.local_rank for place in places] == [0, 1, 0]
    assert {place.devices for place in assign(seats_on("ab"))} == {None}


def test_one_rank_meets_nobody():
    """A world of one has no rendezvous."""
    assert assign(seats_on("a"))[0].world.rendezvous == ""
    assert assign(seats_on("aa"))[0].world.rendezvous == "tcp://10.0.0.97:4000"


def test_all_ranks_share_the_secret():
    """It does not show where a place is printed."""
    places = assign(seats_on("ab"), "a-word-that-nobody-guesses")
    assert {place.world.secret for place in places} == {"a-word-that-nobody-guesses"}
    assert "guesses" not in repr(places)
