"""Would it pay to compute gradients directly in shared memory? The copy it saves against the cache it loses.

    python benchmarks/shared_gradients.py [--rounds 25] [--quick] [--out DIR]

`pieces`: what the exact step does, in place: each rank lays its buffer down in slots, piece by piece, which stay in
the cache, and adds. `direct`: the buffer lies in shared memory from the start, whole; each rank adds both buffers into
one of its own. Between two ranks, turn by turn.
"""

import time

import torch
from harness import in_turn, join_world, parser_of, rounds_of, save
from results import Result

from unisono.collectives.placement import place_evenly
from unisono.collectives.process_groups.transport import connect
from unisono.collectives.reduce import tree_all_reduce
from unisono.collectives.shm.board import SharedBoard
from unisono.collectives.shm.transport import share_board
from unisono.world import World


def main() -> None:
    """Measure on this rank; the leader writes."""
    given = parser_of(__doc__, rounds=25).parse_args()
    join_world(2)
    world = World.current()
    transport = connect(world)
    rank, size = world.rank, world.world_size
    placement = place_evenly(size, size)
    found = []
    for num_bytes in (64 << 10,) if given.quick else (64 << 10, 1 << 20, 4 << 20, 32 << 20):
        mine = torch.zeros(num_bytes // 4)
        board = share_board(transport, [range(size)], timeout_s=60, slot_bytes=num_bytes)
        assert isinstance(board, SharedBoard)
        slots = [board.slot(other, 0, torch.float32) for other in range(size)]
        slots[rank].zero_()

        def pieces(mine: torch.Tensor = mine) -> float:
            transport.barrier()
            began = time.perf_counter()
            tree_all_reduce([((rank, rank + 1), mine)], placement, size, mine, transport)
            return (time.perf_counter() - began) * 1e3

        def direct(mine: torch.Tensor = mine, slots: list[torch.Tensor] = slots) -> float:
            transport.barrier()
            began = time.perf_counter()
            transport.barrier()
            torch.add(slots[0], slots[1], out=mine)
            transport.barrier()  # nobody writes the next gradient before the other has read this one
            return (time.perf_counter() - began) * 1e3

        times = in_turn({"pieces": pieces, "direct": direct}, rounds_of(given))
        found.append(
            Result.of(
                f"gradients-{num_bytes >> 10}-kb",
                times["direct"],
                against=times["pieces"],
                peer="piece by piece",
                unit="ms",
                what="gradients that lie in shared memory",
                topic="Collectives",
                settings={"KB": num_bytes >> 10, "ranks": size},
            )
        )
        board.close()
    if rank == 0:
        save(given, found)
    transport.close()


if __name__ == "__main__":
    main()
