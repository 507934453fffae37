"""Would it pay to compute gradients directly in shared memory? The copy it saves against the cache it loses.

    unisono run -n 2 --output leader benchmarks/shared_gradients.py

`pieces`: what the exact step does, in place: each rank lays its buffer down in slots, piece by piece, which stay in
the cache, and adds. `direct`: the buffer lies in shared memory from the start, whole; each rank adds both buffers into
one of its own. Between two ranks, turn by turn. Prints the fastest and the median.
"""

import statistics
import time
from collections.abc import Callable

import torch

from unisono.collectives.placement import place_evenly
from unisono.collectives.process_groups.transport import connect
from unisono.collectives.reduce import tree_all_reduce
from unisono.collectives.shm.board import SharedBoard
from unisono.collectives.shm.transport import share_board
from unisono.world import World

REPEAT = 25


def main() -> None:
    """Measure on this rank; the leader prints."""
    world = World.current()
    transport = connect(world)
    rank, size = world.rank, world.world_size
    placement = place_evenly(size, size)
    for num_bytes in (64 << 10, 1 << 20, 4 << 20, 32 << 20):
        mine = torch.zeros(num_bytes // 4)
        board = share_board(transport, [range(size)], timeout_s=60, slot_bytes=num_bytes)
        assert isinstance(board, SharedBoard)
        slots = [board.slot(other, 0, torch.float32) for other in range(size)]
        slots[rank].zero_()

        def pieces(mine: torch.Tensor = mine) -> None:
            tree_all_reduce([((rank, rank + 1), mine)], placement, size, mine, transport)

        def direct(mine: torch.Tensor = mine, slots: list[torch.Tensor] = slots) -> None:
            transport.barrier()
            torch.add(slots[0], slots[1], out=mine)
            transport.barrier()  # nobody writes the next gradient before the other has read this one

        times: dict[str, list[float]] = {"pieces": [], "direct": []}
        ways: dict[str, Callable[[], None]] = {"pieces": pieces, "direct": direct}
        for repetition in range(REPEAT):
            for name in sorted(ways, reverse=repetition % 2 == 1):
                transport.barrier()
                began = time.perf_counter()
                ways[name]()
                times[name].append((time.perf_counter() - began) * 1e3)
        if rank == 0:
            cells = (f"{name} {min(found):8.3f} / {statistics.median(found):8.3f} ms" for name, found in times.items())
            print(f"{num_bytes >> 10:>6} KB   {'   '.join(cells)}", flush=True)
        board.close()
    transport.close()


if __name__ == "__main__":
    main()
