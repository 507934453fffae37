"""The words of DDP, checked: world, rank and local rank on two machines of four GPUs; samplers; a file from one rank.

    python examples/tour/words.py

It starts nothing and loads no model; it takes a second.
"""

import unisono


def places() -> None:
    """Two machines, four processes each, as torchrun's variables describe them."""
    for node in range(2):
        for local in range(4):
            variables = {
                "WORLD_SIZE": "8", "RANK": str(4 * node + local), "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": str(local),
                "GROUP_RANK": str(node), "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400",
            }  # fmt: skip
            world = unisono.World.from_env(variables)
            print(f"machine {world.node_rank}  local_rank {world.local_rank}  rank {world.rank} of {world.world_size}")
            assert world.is_leader == (node == 0 and local == 0)  # local rank 0 is there twice, rank 0 once


def shards() -> None:
    """10 samples on 3 ranks: nothing repeated, nothing lost, and another order every epoch, set_epoch or not."""
    samplers = [unisono.DistributedSampler(range(10), 3, rank, exact_once=True) for rank in range(3)]
    epochs = [[list(sampler) for sampler in samplers] for _ in range(2)]
    for number, parts in enumerate(epochs):
        print(f"epoch {number}: {parts}")
        assert sorted(sample for part in parts for sample in part) == list(range(10))
    assert epochs[0] != epochs[1]
    for sampler in samplers:
        sampler.set_epoch(0)
    assert [list(sampler) for sampler in samplers] == epochs[0]


@unisono.leader_only
def save() -> str:
    """Runs on rank 0 alone; elsewhere the call returns `NotHere`, which is false."""
    return "saved"


def saving() -> None:
    """Every rank that calls it gets an answer, and no barrier is needed."""

    def program(transport: object) -> str:
        run = unisono.Run(transport=transport, replicas=3)
        told = save()
        run.close()
        return repr(told)

    print(unisono.run_ranks(program, 3))


if __name__ == "__main__":
    places()
    shards()
    saving()
