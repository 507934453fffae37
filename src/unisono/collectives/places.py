"""Where code runs: on all ranks or on one, said by the component itself and checked.

A collective must be called by all ranks. Inside `on_rank` only one rank runs, so a collective there would wait for
ever: it is refused at once, whether it goes through this package or straight to torch.distributed. Inside a loss
function, which ranks call as often as they have replicas, the judge in `HERE` decides.
"""

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal, ParamSpec, TypeVar, final

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from unisono.collectives.messages import Messages
from unisono.collectives.shm.board import SharedBoard
from unisono.collectives.transport import Transport
from unisono.determinism.loss_hooks import LossJudge
from unisono.errors import ConfigError, PlaceError
from unisono.world import World

P = ParamSpec("P")
T = TypeVar("T")

Place = Literal["all", "leader", "alone"]


@final
class Here(threading.local):
    """Where a thread is; per thread, because loopback ranks are threads."""

    world: World | None = None  #: Of the run that this thread has made.
    transport: Transport | None = None  #: Of that run.
    only: str | None = None  #: What runs on this rank only, in words.
    loss: LossJudge | None = None  #: Set while a loss function runs.
    is_in_backward: bool = False  #: Set during the backward pass of a step.


HERE = Here()


def enter_world(world: World | None, transport: Transport | None = None) -> None:
    """Make `world` the one this thread is in; None goes back to what the launcher's variables say."""
    HERE.world, HERE.transport = world, transport


def current_world() -> World:
    """Return the world of the run this thread has made, else that of the launcher's variables."""
    return HERE.world or World.current()


def world_of(transport: Transport) -> World:
    """Return the world that a transport joins, all of it on this host."""
    rank, size = transport.rank, transport.world_size
    return World(rank=rank, world_size=size, local_rank=rank, local_world_size=size)


class Distributed:
    """Base of components that know about ranks: metrics and callbacks.

    Attributes:
        runs_on: Where the component's code runs. ``all``: on every rank, in the same order. ``leader``: on rank 0 only,
            and it calls no collective. ``alone``: it cannot work with several ranks and is refused there.
    """

    runs_on: ClassVar[Place] = "all"

    @property
    def is_distributed(self) -> bool:
        """Whether this training has more than one rank."""
        return current_world().world_size > 1


def check_places(components: Mapping[str, Any], world: World, *, everywhere: bool = False) -> None:
    """Refuse components that cannot run in this world; before the first step, alike on all ranks.

    Args:
        components: By the name they are spoken of.
        world: Of the run.
        everywhere: They must run on all ranks, since their results are merged.

    Raises:
        PlaceError: Names the component and the way out.
    """
    for name, component in components.items():
        place = getattr(component, "runs_on", None)
        kind = type(component).__name__
        if place is not None and place not in ("all", "leader", "alone"):
            raise PlaceError(f"{name} ({kind}): expected runs_on 'all', 'leader' or 'alone', got {place!r}.")
        if everywhere and place == "leader":
            raise PlaceError(
                f"{name} ({kind}) says runs_on='leader', but it must see every rank's samples. Hint: runs_on = 'all'."
            )
        if world.world_size == 1:
            continue
        if not isinstance(component, Distributed):
            raise PlaceError(
                f"{name} ({kind}) does not say where it runs, and there are {world.world_size} ranks. "
                "Hint: inherit unisono.Distributed (unisono.Metric and unisono.Callback do) and set runs_on."
            )
        if place == "alone":
            raise PlaceError(
                f"{name} ({kind}) says that it cannot work with several ranks, and there are {world.world_size}. "
                "Hint: leave it out, or train with one worker (-n 1): the result is the same."
            )


@final
class NotHere:
    """What a function of `on_rank` returns on the ranks where it does not run; false in a condition."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "NotHere()"


def on_rank(rank: int | None) -> Callable[[Callable[P, T]], Callable[P, T | NotHere]]:
    """Return a decorator: the function runs on `rank` alone and returns `NotHere` elsewhere, without waiting.

    Args:
        rank: None runs it everywhere, as if it were not decorated.

    Raises:
        ConfigError: A negative rank, or a generator or coroutine function, whose body would run later.
        PlaceError: When called: there is no such rank, or the function called a collective.

    Example:
        >>> @on_rank(0)
        ... def save(path):
        ...     return path
        >>> save("a.png")  # in a world of one
        'a.png'
    """
    if rank is not None and rank < 0:
        raise ConfigError(f"expected a rank >= 0 or None, got {rank}.")

    def decorate(function: Callable[P, T]) -> Callable[P, T | NotHere]:
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise ConfigError(
                f"expected a plain function for on_rank, got {function.__qualname__}, whose body runs later."
            )

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T | NotHere:
            if rank is None:
                return function(*args, **kwargs)
            world = current_world()
            if rank >= world.world_size:
                raise PlaceError(f"{function.__qualname__} is for rank {rank}, expected one of {world.world_size}.")
            if world.rank != rank:
                return NotHere()
            with only_here(function.__qualname__, world):
                return function(*args, **kwargs)

        return call

    return decorate


def leader_only(function: Callable[P, T]) -> Callable[P, T | NotHere]:
    """Run the function on rank 0 alone; see `on_rank`."""
    return on_rank(0)(function)


@contextlib.contextmanager
def only_here(name: str, world: World) -> Iterator[None]:
    """Refuse collectives in this block, which other ranks do not run."""
    if world.world_size == 1:
        yield
        return
    before = HERE.only
    HERE.only = f"{name} runs on rank {world.rank} of {world.world_size} only"
    try:
        with _NoCollectives() if dist.is_initialized() else contextlib.nullcontext():
            yield
    finally:
        HERE.only = before


def refuse_alone(operation: str) -> None:
    """Refuse a collective where only one rank runs, and inside a loss function."""
    if HERE.loss is not None:
        HERE.loss.refuse_collective(operation)
    if HERE.only is not None:
        raise PlaceError(
            f"{operation} was called where {HERE.only}: the other ranks would never answer. "
            "Hint: call it on all ranks first and hand over the result, or run the whole on all ranks."
        )


class _NoCollectives(TorchDispatchMode):
    """Sees torch.distributed's own operations, whoever calls them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            refuse_alone(f"torch.distributed's {func._schema.name.partition('::')[2].rstrip('_')}")
        return func(*args, **(kwargs or {}))


@final
class GuardedTransport(Transport):
    """A transport whose collectives are refused inside `on_rank` and inside a loss function; closes the one `below`,
    which really carries.
    """

    #: Does what `again` is to do; None where ranks do not go on without one that has died.
    repeat: Callable[[Callable[[], Any]], Any] | None = None

    def __init__(self, below: Transport) -> None:
        self._below = self._first = below
        self.rank, self.world_size = below.rank, below.world_size
        self.tree_reducer, self.make_exchange = below.tree_reducer, below.make_exchange
        self.is_one_thread = below.is_one_thread

    @property
    def step(self) -> int | None:
        """As in `Transport`."""
        return self._below.step

    @step.setter
    def step(self, value: int | None) -> None:
        self._below.step = value

    @property
    def bytes_sent(self) -> int:
        """As in `Transport`."""
        return self._below.bytes_sent

    @bytes_sent.setter
    def bytes_sent(self, value: int) -> None:
        self._below.bytes_sent = value

    @property
    def board(self) -> SharedBoard | None:
        """See `Transport`; refused inside `on_rank`, because reductions go through it directly."""
        refuse_alone("a reduction")
        return self._below.board

    @board.setter
    def board(self, value: SharedBoard | None) -> None:
        self._below.board = value

    def all_to_all(self, send: Tensor, send_splits: list[int], recv: Tensor, recv_splits: list[int]) -> None:
        refuse_alone("all_to_all")
        self._below.all_to_all(send, send_splits, recv, recv_splits)

    def all_gather(self, send: Tensor, recv: Tensor) -> None:
        refuse_alone("all_gather")
        self._below.all_gather(send, recv)

    def barrier(self) -> None:
        refuse_alone("barrier")
        self._below.barrier()

    def all_gather_json(self, value: Any, of: str = "") -> list[Any]:
        refuse_alone("all_gather_json")
        return self._below.all_gather_json(value, of)

    def messages(self) -> Messages:
        refuse_alone("a message")
        return self._below.messages()

    def again(self, act: Callable[[], T]) -> T:
        return act() if self.repeat is None else self.repeat(act)

    def replace(self, below: Transport) -> None:
        """Let another transport carry from now on, between fewer ranks; the first one is closed in the end."""
        below.bytes_sent = self._below.bytes_sent
        self._below = below
        self.rank, self.world_size = below.rank, below.world_size
        self.tree_reducer, self.make_exchange = below.tree_reducer, below.make_exchange
        self.is_one_thread = below.is_one_thread

    def close(self) -> None:
        self._first.close()
