"""Where the ranks of a world meet: the store of torch's kind at the place that the launcher names.

A file in a private directory for the ranks of one launcher, our own store (`own_store`) for all that meet over a
network; both know who may come. torchrun's store believes everybody: where the ranks share a secret it carries no more
than the port of ours.
"""

import contextlib
import errno
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlparse

from torch._C._distributed_c10d import FileStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from unisono.collectives.process_groups.own_store import OwnStore
from unisono.environment import default_cache
from unisono.errors import WorldError
from unisono.store.client import Client, NotOurStore, StoreLost
from unisono.store.secret import derive, key_of, user_secret
from unisono.store.server import Server, listen
from unisono.system.messages import tell
from unisono.world import World

_LOOK = timedelta(seconds=5)  # at what another one has opened
_LIVE = timedelta(seconds=60)
_POLL_S = 0.05
_LOOPBACK = "127.0.0.1"

_stores: dict[tuple[str, int, int], Store] = {}  # by rendezvous; see `store_of`
_servers: list[Server] = []  # as long as this process lives
_clients: dict[str, Client] = {}  # by place
_of_epochs: list[Store] = []  # torch keeps none


def meet(world: World, name: str, timeout: timedelta) -> Store:
    """Return the store at which the ranks of a world meet, with keys of their own.

    Raises:
        WorldError: The rendezvous is none that is known; or something else, or another run's store, is there.
        RuntimeError: The store cannot be reached.
    """
    try:
        return PrefixStore(name, store_of(world, timeout))
    except OSError as error:
        if not world.is_leader or error.errno != errno.EADDRINUSE:
            raise RuntimeError(str(error)) from error
        store = _store_of_another(world, name, error)
        store.set_timeout(timeout)
        return store


def store_of(world: World, timeout: timedelta) -> Store:
    """Return the store of a world: one for each rendezvous in this process.

    The last process to drop a FileStore removes its file, and the server of a store ends with rank 0's: a process
    that closed and came back at once would meet at what another one, still closing, is about to take away.

    Raises:
        WorldError: See `meet`.
        OSError: Rank 0 cannot open it.
        RuntimeError: The store cannot be reached.
    """
    if world.rendezvous == "env://" and not world.secret:
        return _torchs(world, timeout)
    key = (world.rendezvous, world.rank, world.world_size)
    if key not in _stores:
        where = urlparse(world.rendezvous)
        if where.scheme == "file":
            _stores[key] = FileStore(where.path, world.world_size)
        elif world.rendezvous == "env://":
            _stores[key] = _behind(_torchs(world, timeout), world, timeout)
        elif where.scheme == "unisono" and where.hostname and where.port:
            _stores[key] = _reach(where.hostname, where.port, world, timeout)
        elif where.scheme == "tcp" and where.hostname and where.port:
            if world.is_leader:
                _serve(_listen(where.hostname, where.port, world), world)
            _stores[key] = _reach(where.hostname, where.port, world, timeout)
        else:
            raise WorldError(f"expected a rendezvous file://PATH or tcp://HOST:PORT, got {world.rendezvous!r}.")
    _stores[key].set_timeout(timeout)
    return _stores[key]


def store_of_epoch(world: World, epoch: str, size: int, cut_off: Callable[[], str] | None = None) -> Store:
    """Return a store for so many ranks of one epoch, see `LiveGroups`; it is a launcher's, as the first one is.

    Args:
        world: Of the start.
        epoch: Its name; behind ``HOST:PORT/`` where the store is not the first one.
        size: Number of ranks.
        cut_off: Says, while a call waits for a store at ``HOST:PORT``, why to give up.

    Raises:
        RuntimeError: The store cannot be reached, or the wait was given up.
    """
    where = urlparse(world.rendezvous)
    if where.scheme == "file":
        return FileStore(f"{where.path}-{epoch}", size)
    place, _, name = epoch.rpartition("/")
    if not place:
        return meet(world, f"live-{name}", _LIVE)
    if place not in _clients:
        where = urlparse(f"unisono://{place}")
        _clients[place] = _reach(where.hostname or "", where.port or 0, world, _LIVE, cut_off=cut_off).client
    _of_epochs.append(OwnStore(_clients[place], _LIVE, cut_off))
    return PrefixStore(f"live-{name}", _of_epochs[-1])


def name_of_epoch(world: World, epoch: int) -> str:
    """Return the name of an epoch whose first rank this is: on several hosts with its own launcher's store before it,
    which no other host's loss ends.
    """
    return f"{world.live_store}/e{epoch}" if world.live_store else f"e{epoch}"


def _torchs(world: World, timeout: timedelta) -> Store:
    store: Store = next(rendezvous("env://", world.rank, world.world_size, timeout=timeout))[0]
    return store


def _behind(theirs: Store, world: World, timeout: timedelta) -> Store:
    """Return a store of ours, whose port torchrun's store tells: whoever changes that meets ranks without our key."""
    below: Any = theirs
    while isinstance(below, PrefixStore):
        below = below.underlying_store
    host = _LOOPBACK if world.is_single_host else str(below.host)  # rank 0 is where that store is
    if world.is_leader:
        theirs.set("unisono/port", str(_serve(_listen(host, 0, world), world)))
    told = bytes(theirs.get("unisono/port"))
    if not told.isdigit() or not 0 < int(told[:6]) < 1 << 16:
        raise WorldError(f"expected a port at torchrun's store, got {told[:40]!r}: somebody else has written there.")
    return _reach(host, int(told), world, timeout)


def _key(world: World) -> bytes:
    return key_of(world.secret or derive(user_secret(default_cache()), "ranks"))


def _serve(listener: socket.socket, world: World) -> int:
    server = Server(listener, _key(world), tell)
    _servers.append(server)
    return server.port


def _listen(host: str, port: int, world: World) -> socket.socket:
    """Return a socket that listens where the others look for rank 0: at one address, where that is known for sure."""
    address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    # A host's own name often means loopback on that host, and may be another machine's that forwards.
    if world.is_single_host or not (str(address).startswith("127.") or address == "::1"):
        try:
            return listen(host, port)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    both = socket.has_dualstack_ipv6()
    return socket.create_server(
        ("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both, backlog=1024
    )


def _reach(
    host: str, port: int, world: World, timeout: timedelta, answer_s: float = 60.0,
    cut_off: Callable[[], str] | None = None,
) -> OwnStore:  # fmt: skip
    """Return the store once it answers: rank 0 may come later."""
    client = Client(host, port, _key(world), answer_s=answer_s)
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        try:
            client.ask(b"count", cut_off=cut_off)
            return OwnStore(client, timeout)
        except NotOurStore as error:
            raise WorldError(
                f"[rank {world.rank}/{world.world_size}] {error} ({world.rendezvous}). Hint: give all ranks one "
                "UNISONO_SECRET (or UNISONO_SECRET_FILE), and this run a MASTER_PORT of its own."
            ) from error
        except StoreLost as error:
            if time.monotonic() > deadline or (cut_off is not None and cut_off()):
                raise RuntimeError(str(error)) from error
        time.sleep(_POLL_S)


def _store_of_another(world: World, name: str, error: OSError) -> Store:
    """Return the store at which ranks of ours meet already where rank 0 was to open it: the roll tells all of them."""
    where = urlparse(world.rendezvous)
    with contextlib.suppress(RuntimeError):
        own = _reach(where.hostname or "", where.port or 0, world, _LOOK, _LOOK.total_seconds())
        _stores[(world.rendezvous, world.rank, world.world_size)] = own
        store = PrefixStore(name, own)
        store.wait(["first"], _LOOK)
        return store
    raise WorldError(
        f"[rank 0/{world.world_size}] something else listens already where the ranks are to meet "
        f"({world.rendezvous}): {error}. Hint: give this run a MASTER_PORT of its own, and end what is left of "
        "others."
    ) from error
