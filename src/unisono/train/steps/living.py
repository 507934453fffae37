"""Whether a run can go on when a rank dies: what its launcher says, and what its options are against it."""

import functools

from unisono.collectives.places import GuardedTransport
from unisono.collectives.shm.live_boards import LiveBoards, Worlds
from unisono.collectives.transport import TIMEOUT_S, Transport
from unisono.errors import WorldError
from unisono.launchers.worker.live_member import LiveMember, join
from unisono.strategies.options import ExactOptions, StrategyOptions
from unisono.train.steps.membership import Live
from unisono.world import World


def live_of(
    world: World, transport: GuardedTransport, below: Transport, options: StrategyOptions, *, has_group: bool,
    is_gloo: bool = False, shares_memory: bool = False,
) -> Live | None:  # fmt: skip
    """Return what lets a run go on without a rank; None where its launcher does not ask for it.

    Args:
        world: Of the start.
        transport: Of the run.
        below: What carries at the start.
        options: Of the strategy.
        has_group: Whether the program has made a process group.
        is_gloo: Whether processes on the CPU are joined by gloo, though they could share memory.
        shares_memory: Whether those of one host among them share it all the same.

    Raises:
        WorldError: This process has been started to join others, and they have begun this run without it.
    """
    try:
        found = None if world.live is None else join(world.live, world.rank if world.joins is None else world.joins)
    except OSError:  # a program that a worker has started inherits the variable, not the socket
        found = None
    if world.joins is not None and not (found and found[1]):
        raise WorldError(
            "a worker that has joined a training comes to a run which the others have begun without it. "
            "Hint: one unisono.Run in a program, or no --live."
        )
    if found is None:
        return None
    member, is_first = found
    member.word_s = member.word_s if world.is_single_host else TIMEOUT_S  # a silent host is noticed late
    if not is_first:
        why_not = "this process has had another run before"
    elif has_group:
        why_not = "the program has made a process group of its own"
    else:
        why_not = _why_not(options)
        if not why_not and world.joins is None and below.board is None and not is_gloo:
            why_not = "the ranks do not share memory"
    worlds: Worlds | None = None
    if not why_not and is_gloo:
        worlds = _over_gloo(world, transport, member, shares_memory=shares_memory)
    elif not why_not:
        worlds = LiveBoards(below.board, member)
    return Live(member, world, transport, worlds, options, why_not)


def meets_by_gloo(world: World, options: StrategyOptions) -> bool:
    """Whether ranks that may go on without one are on several hosts, and so share no memory."""
    return world.live is not None and not world.is_single_host and not _why_not(options)


def _over_gloo(world: World, transport: GuardedTransport, member: LiveMember, *, shares_memory: bool) -> Worlds:
    # What a board's ranks do not load.
    from unisono.collectives.process_groups.live_groups import LiveGroups
    from unisono.collectives.process_groups.stores import name_of_epoch, store_of_epoch

    store, name = functools.partial(store_of_epoch, world), functools.partial(name_of_epoch, world)
    ranks = (world.rank, world.world_size) if world.joins is None else None
    groups = LiveGroups(store, ranks, member, name, str(world.node_rank) if shares_memory else None)
    if groups.first is not None:
        transport.replace(groups.first)
    return groups


def _why_not(options: StrategyOptions) -> str:
    if not isinstance(options, ExactOptions):
        return f"the strategy is {options.name}, and only exact has what a lost rank had"
    if options.island_steps is not None:
        return "islands have weights and optimizers of their own, and a lost rank's are lost"
    if options.overlap == "on":
        return "overlap='on' sends gradients from other threads"
    return ""
