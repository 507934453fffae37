"""Collectives as plain lists of moves, to be proved, counted and drawn (pure).

A schedule cuts the buffer into chunks and says, round by round, which rank sends which chunk to which rank. In: a
number of ranks. Out: a `Schedule`, which `simulate` runs in one process on any values, and which `bytes_sent`
prices. Three rules fix every bit:

- all moves of a round read what the ranks held before the round;
- the values that meet in one chunk of one rank in one round, its own and those that arrive, are added in rank order
  along the canonical tree of `tree`;
- floating-point addition commutes: of two values the order does not matter; of three it does.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, final

from unisono.collectives.placement import cut
from unisono.collectives.tree import add_up
from unisono.errors import ConfigError
from unisono.system.hints import nearest

T = TypeVar("T")

Action = Literal["copy", "add", "forward"]
"""What becomes of a chunk that arrives.

``copy``: it replaces the target's. ``add``: it is added to the target's. ``forward``: added too, but what travels is
not the source's sum: it is what came to the source in the round before (in the first round the source's own value).
"""


@final
@dataclass(frozen=True, slots=True, order=True)
class Move:
    """One chunk on its way."""

    source: int  #: Rank that sends.
    target: int  #: Rank that receives.
    chunk: int  #: Index of the chunk, on both ranks.
    action: Action  #: What the target does with it.


Round = tuple[Move, ...]


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """The moves of one collective."""

    name: str  #: As in `SCHEDULES`.
    world_size: int  #: Number of ranks.
    num_chunks: int  #: Into how many chunks the buffer is cut.
    holds: tuple[range, ...]  #: For each rank, the chunks that it holds before the first round.
    rounds: tuple[Round, ...]  #: The moves; those of one round happen at the same time.


def naive_ring(world_size: int) -> Schedule:
    """Return the ring of the tutorials, kept to show what is wrong with it.

    Every rank sends a whole tensor to its right neighbour ``n - 1`` times, first its own, then what came last, and
    adds whatever arrives. Each rank so adds in another order: **from 3 ranks on the ranks end with different bits**,
    and every rank sends ``(n - 1) * S`` bytes.
    """
    moves = tuple(Move(rank, (rank + 1) % world_size, 0, "forward") for rank in range(world_size))
    return _build("naive-ring", world_size, 1, [moves] * (world_size - 1))


def ring(world_size: int) -> Schedule:
    """Return the chunked ring: reduce-scatter, then all-gather.

    Chunk c starts at rank c + 1, goes once round and is complete at rank c; the complete chunks go round once more.
    ``2(n - 1)/n * S`` bytes per rank, the least possible, in ``2(n - 1)`` rounds. Each chunk is added up once and then
    copied: the same bits on all ranks, but another order of addition for each chunk and number of ranks.
    """
    n = world_size
    reduce = [[Move(rank, (rank + 1) % n, (rank - 1 - k) % n, "add") for rank in range(n)] for k in range(n - 1)]
    gather = [[Move(rank, (rank + 1) % n, (rank - k) % n, "copy") for rank in range(n)] for k in range(n - 1)]
    return _build("ring", n, n, [*reduce, *gather])


def tree(world_size: int) -> Schedule:
    """Return the canonical tree: the sum goes up to rank 0, the result comes down the same way.

    ``2 * ceil(log2(n))`` rounds of whole buffers; rank 0 sends ``ceil(log2(n)) * S`` bytes. The bits are those of
    `tree.combine` with one leaf per rank.
    """
    up: list[list[Move]] = []
    distance = 1
    while distance < world_size:
        lefts = range(0, world_size - distance, 2 * distance)
        up.append([Move(left + distance, left, 0, "add") for left in lefts])
        distance *= 2
    return _build("tree", world_size, 1, [*up, *_mirrored(up)])


def owner_computes(world_size: int) -> Schedule:
    """Return the exchange that the exact step uses: every rank adds up one chunk for all.

    All-to-all, then all-gather: ``2(n - 1)/n * S`` bytes per rank as in a ring, in 2 rounds. The bits are those of
    `tree.combine`.
    """
    ranks = range(world_size)
    to_owners = [Move(source, owner, owner, "add") for owner in ranks for source in ranks if source != owner]
    return _build("owner-computes", world_size, world_size, [to_owners, *_mirrored([to_owners])])


def halving_doubling(world_size: int) -> Schedule:
    """Return recursive halving, then recursive doubling (Rabenseifner's algorithm).

    Partners at distance 1, 2, 4 ... swap halves, quarters, eighths and add; then the way back. For a power of two:
    ``2(n - 1)/n * S`` bytes in ``2 * log2(n)`` rounds, and, since near partners come first, the bits of `tree.combine`.

    For other n, let p be the largest power of two below n: of the first ``2(n - p)`` ranks the odd ones give their
    whole buffer to their left neighbour, wait, and get the result back: two more rounds of S bytes, and the tree's
    order only for some n (up to 16: 3, 6, 7, 12, 14, 15). All ranks end with the same bits for every n.
    """
    steps = max(1, world_size).bit_length() - 1
    power = 1 << steps
    num_idle = world_size - power
    active = [2 * index for index in range(num_idle)] + list(range(2 * num_idle, world_size))
    down = [[Move(2 * i + 1, 2 * i, chunk, "add") for i in range(num_idle) for chunk in range(power)]]
    spans = [range(power)] * power  # chunks that each active rank still answers for
    for step in range(steps):
        halves = [(span[: len(span) // 2], span[len(span) // 2 :]) for span in spans]
        down.append(
            [
                Move(active[index], active[index ^ 1 << step], chunk, "add")
                for index, half in enumerate(halves)
                for chunk in half[1 - (index >> step & 1)]
            ]
        )
        spans = [half[index >> step & 1] for index, half in enumerate(halves)]
    return _build("halving-doubling", world_size, power, [*down, *_mirrored(down)])


def scatter(world_size: int) -> Schedule:
    """Return the pattern: rank 0 gives each rank its own chunk."""
    moves = [Move(0, rank, rank, "copy") for rank in range(1, world_size)]
    holds = [range(world_size), *[range(0)] * (world_size - 1)]
    return _build("scatter", world_size, world_size, [moves], holds)


def gather(world_size: int) -> Schedule:
    """Return the pattern: each rank gives its chunk to rank 0."""
    moves = [Move(rank, 0, rank, "copy") for rank in range(1, world_size)]
    return _build("gather", world_size, world_size, [moves], [range(rank, rank + 1) for rank in range(world_size)])


def reduce(world_size: int) -> Schedule:
    """Return the pattern: rank 0 gets the sum of all buffers."""
    return _build("reduce", world_size, 1, [[Move(rank, 0, 0, "add") for rank in range(1, world_size)]])


def all_reduce(world_size: int) -> Schedule:
    """Return the pattern: every rank gets the sum of all buffers, here by sending everything to everyone.

    One round and ``(n - 1) * S`` bytes. The bits are those of `tree.combine`.
    """
    ranks = range(world_size)
    moves = [Move(source, target, 0, "add") for source in ranks for target in ranks if source != target]
    return _build("all-reduce", world_size, 1, [moves])


def broadcast(world_size: int) -> Schedule:
    """Return the pattern: rank 0 gives its buffer to every rank."""
    holds = [range(1), *[range(0)] * (world_size - 1)]
    return _build("broadcast", world_size, 1, [[Move(0, rank, 0, "copy") for rank in range(1, world_size)]], holds)


def all_gather(world_size: int) -> Schedule:
    """Return the pattern: each rank gives its chunk to every rank."""
    ranks = range(world_size)
    moves = [Move(source, target, source, "copy") for source in ranks for target in ranks if source != target]
    return _build("all-gather", world_size, world_size, [moves], [range(rank, rank + 1) for rank in ranks])


SCHEDULES: Mapping[str, Callable[[int], Schedule]] = {
    "ring": ring,
    "naive-ring": naive_ring,
    "tree": tree,
    "owner-computes": owner_computes,
    "halving-doubling": halving_doubling,
    "scatter": scatter,
    "gather": gather,
    "reduce": reduce,
    "all-reduce": all_reduce,
    "broadcast": broadcast,
    "all-gather": all_gather,
}
"""Every schedule by its name on the command line: those that compute a sum, then the patterns."""


def plan(name: str, world_size: int) -> Schedule:
    """Return the schedule of a name in `SCHEDULES` for some ranks."""
    if name not in SCHEDULES:
        raise ConfigError(f"expected a schedule: {', '.join(SCHEDULES)}; got {name!r}.{nearest(name, SCHEDULES)}")
    return SCHEDULES[name](world_size)


def start(schedule: Schedule, value: Callable[[int, int], T]) -> list[dict[int, T]]:
    """Return the buffers before the first round: for each rank, ``value(rank, chunk)`` for each chunk that it holds."""
    return [{chunk: value(rank, chunk) for chunk in held} for rank, held in enumerate(schedule.holds)]


def simulate(schedule: Schedule, buffers: Sequence[Mapping[int, T]], add: Callable[[T, T], T]) -> list[dict[int, T]]:
    """Run a schedule in this process and return what each rank holds at the end, by chunk.

    Args:
        schedule: What to run.
        buffers: For each rank, the chunks it holds at the start, as `start` gives them; left as they are.
        add: Returns left + right, as new memory.

    Raises:
        ConfigError: A move sends what its source does not hold before the round, adds to what its target does not
            hold, or two moves of a round replace the same chunk.

    Example:
        >>> simulate(ring(2), start(ring(2), lambda rank, chunk: rank + 1), lambda a, b: a + b)
        [{0: 3, 1: 3}, {0: 3, 1: 3}]
    """
    *_, last = states(schedule, buffers, add)
    return last


def states(
    schedule: Schedule, buffers: Sequence[Mapping[int, T]], add: Callable[[T, T], T]
) -> Iterator[list[dict[int, T]]]:
    """Yield what each rank holds at the start and after each round; see `simulate`."""
    if len(buffers) != schedule.world_size:
        raise ConfigError(f"expected buffers of {schedule.world_size} ranks, got {len(buffers)}.")
    held = [dict(buffer) for buffer in buffers]
    came = [dict(buffer) for buffer in buffers]  # what `forward` sends
    yield [dict(buffer) for buffer in held]
    for number, moves in enumerate(schedule.rounds, start=1):
        before, came_before = [dict(buffer) for buffer in held], [dict(buffer) for buffer in came]
        by_target: dict[tuple[int, int], list[Move]] = {}
        for move in moves:
            by_target.setdefault((move.target, move.chunk), []).append(move)
        for (target, chunk), arriving in by_target.items():
            actions = {move.action for move in arriving}
            _check(schedule, number, arriving, before)
            if actions == {"add"}:
                meeting = {target: before[target][chunk], **{m.source: before[m.source][chunk] for m in arriving}}
                held[target][chunk] = add_up([meeting[rank] for rank in sorted(meeting)], add)
            elif actions == {"copy"}:
                held[target][chunk] = before[arriving[0].source][chunk]
            else:
                came[target][chunk] = came_before[arriving[0].source][chunk]
                held[target][chunk] = add(before[target][chunk], came[target][chunk])
        yield [dict(buffer) for buffer in held]


def bytes_sent(schedule: Schedule, buffer_bytes: int) -> list[int]:
    """Return how many bytes each rank sends for a buffer of `buffer_bytes` (all chunks together).

    Where the chunks do not divide the buffer, the first ones are a byte longer.
    """
    lengths = [len(part) for part in cut(buffer_bytes, schedule.num_chunks)]
    sent = [0] * schedule.world_size
    for moves in schedule.rounds:
        for move in moves:
            sent[move.source] += lengths[move.chunk]
    return sent


def _check(schedule: Schedule, number: int, arriving: Sequence[Move], held: Sequence[Mapping[int, object]]) -> None:
    where = f"{schedule.name}, round {number} of {len(schedule.rounds)}"
    for move in arriving:
        if not all(0 <= rank < schedule.world_size for rank in (move.source, move.target)):
            raise ConfigError(f"{where}: expected ranks 0 to {schedule.world_size - 1}, got {move}.")
        if move.source == move.target:
            raise ConfigError(f"{where}: expected a move between two ranks, got {move}.")
        if move.chunk not in held[move.source]:
            raise ConfigError(
                f"{where}: rank {move.source} sends chunk {move.chunk}, but holds only {sorted(held[move.source])} "
                "before this round. Hint: what a round delivers can be sent in the next one."
            )
        if move.action != "copy" and move.chunk not in held[move.target]:
            raise ConfigError(f"{where}: rank {move.target} has no chunk {move.chunk} to add to, got {move}.")
    sources = [move.source for move in arriving]
    if len(arriving) > 1 and ({move.action for move in arriving} != {"add"} or len(set(sources)) < len(sources)):
        raise ConfigError(
            f"{where}: expected one move, or additions from different ranks, into chunk {arriving[0].chunk} of rank "
            f"{arriving[0].target}, got {list(arriving)}."
        )


def _build(
    name: str, world_size: int, num_chunks: int, rounds: Iterable[Iterable[Move]], holds: Sequence[range] | None = None
) -> Schedule:
    if world_size < 1:
        raise ConfigError(f"expected at least 1 rank for {name}, got {world_size}.")
    return Schedule(
        name=name,
        world_size=world_size,
        num_chunks=num_chunks,
        holds=tuple(holds or [range(num_chunks)] * world_size),
        rounds=tuple(moves for moves in map(tuple, rounds) if moves),
    )


def _mirrored(rounds: Sequence[Sequence[Move]]) -> list[list[Move]]:
    """Return the way back: complete sums are copied along the moves that have brought them together."""
    return [[Move(move.target, move.source, move.chunk, "copy") for move in moves] for moves in reversed(rounds)]
