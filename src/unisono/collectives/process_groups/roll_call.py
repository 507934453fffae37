"""Do the ranks that meet at a store agree about the world? Before any of them waits for the others in a collective.

A rank says who it is under its number; the first to come says how large the world is. Whoever finds a contradiction
tells all, so that nobody waits for the timeout. `nodes/roll.py` asks the same of hosts, before their ranks are started.
"""

import contextlib
from datetime import timedelta

from torch._C._distributed_c10d import Store

from unisono.errors import PeerLost, WorldError
from unisono.world import World

_FINE = "fine"

_FAREWELL = timedelta(seconds=5)
"""How long a rank that has failed waits for the others to learn it."""


def call_roll(store: Store, world: World, name: str, timeout_s: float) -> None:
    """Wait until all ranks are here; collective.

    Raises:
        WorldError: Two ranks have one number, or they do not agree how many they are; raised on all that are here.
        PeerLost: Not all came in time; says which.
        RuntimeError: The store is lost.
    """
    store.add("came", 1)
    try:
        _agree(store, world, f"{name}, {world.launcher!r}", timeout_s)
    except (WorldError, PeerLost):
        # Stay until all that came know: the store may be served by this process, and ends with it.
        if store.add("told", 1) == store.add("came", 0):
            store.set("all told", "")
        with contextlib.suppress(RuntimeError):  # one that died does not tell; what is raised matters more
            store.wait(["all told"], _FAREWELL)
        raise


def _agree(store: Store, world: World, me: str, timeout_s: float) -> None:
    problem = ""
    first_size, first = _claim(store, "first", f"{world.world_size} {me}").split(" ", 1)
    if int(first_size) != world.world_size:
        problem = (
            f"the ranks disagree about their number: {first_size} for one ({first}), {world.world_size} for another "
            f"({me}). Hint: start all with one WORLD_SIZE, and one number of hosts and of workers on each."
        )
    elif (other := _claim(store, f"rank/{world.rank}", me)) != me:
        problem = (
            f"two processes are rank {world.rank} of {world.world_size}: one is {other}, another is {me}. "
            "Hint: give each process a RANK, and each host a --node-rank, of its own."
        )
    if problem:
        store.set("verdict", problem)
    elif store.add("present", 1) == world.world_size:
        store.set("verdict", _FINE)
    try:
        verdict = store.get("verdict").decode()
    except RuntimeError as error:  # a FileStore's is no DistStoreError
        absent = [rank for rank in range(world.world_size) if not store.check([f"rank/{rank}"])]
        raise PeerLost(
            f"[rank {world.rank}/{world.world_size}] the ranks did not meet at {world.rendezvous} "
            f"within {timeout_s:g} s: rank{'s' * (len(absent) > 1)} "
            f"{', '.join(map(str, absent))} did not come."
        ) from error
    if problem or verdict != _FINE:
        raise WorldError(problem or verdict)


def _claim(store: Store, key: str, value: str) -> str:
    """Return what the first to claim `key` has put there."""
    found: bytes = store.compare_set(key, "", value)
    return found.decode()
