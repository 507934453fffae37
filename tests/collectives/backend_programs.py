"""What every rank does in the tests of the `shm` backend: torch.distributed's own functions, beside gloo."""

import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import unisono.collectives.shm.backend  # noqa: F401 - makes "shm" known
from reference import bits
from unisono.world import World

Group = dist.ProcessGroup
BIG = 200_003  # elements: several pieces of a mailbox and of a slot


def execute(transport: None) -> dict[str, Any]:
    """Everything that a launch of one world size is used for."""
    world = World.current()
    dist.init_process_group("shm", timeout=timedelta(seconds=60))
    seen: dict[str, Any] = {"name": dist.get_backend(), "place": (dist.get_rank(), dist.get_world_size())}
    gloo = dist.new_group(backend="gloo")
    shm = dist.group.WORLD
    seen["differs"] = [name for name, use in FUNCTIONS.items() if not agree(use(shm), use(gloo))]
    seen["objects"] = exchange_objects()
    seen["handles"] = use_handles()
    seen["subgroups"] = use_subgroups()
    seen["messages"] = send_messages()
    seen["names"] = ask_for_names()
    seen["destroyed"] = destroy_subgroup()
    seen["refused"] = {name: error_of(call) for name, call in REFUSED.items()}
    seen["mismatch"] = error_of(lambda: dist.all_reduce(torch.ones(3 + (world.rank == 0))))
    three, is_first = torch.ones(3), world.rank == 0
    seen["other_call"] = error_of(lambda: dist.broadcast(three, 0) if is_first else dist.all_reduce(three))
    seen["other_list"] = error_of(lambda: dist.all_gather(blank(shm, 3) if is_first else blank(shm, 2), three[:2]))
    later = [dist.all_reduce(three, async_op=True) if is_first else dist.barrier(async_op=True)]
    seen["other_later"] = error_of(later[0].wait)
    seen["ddp"] = {name: train(shm, **options) for name, options in VARIANTS.items()}
    seen["ddp_gloo"] = (
        {name: train(gloo, **options) for name, options in VARIANTS.items()} if world.world_size == 2 else {}
    )
    seen["other_model"] = [error_of(lambda: DistributedDataParallel(nn.Linear(3, 3 + (world.rank == 0))))]
    # DDP compares with rank 0, which itself sees nothing and goes on.
    seen["other_model"] += [error_of(dist.barrier)] if world.rank else []
    seen["join"] = join_unevenly()
    dist.destroy_process_group()
    # One object until the end: the last to leave a FileStore removes its file, though another may have come back.
    store = dist.FileStore(world.rendezvous.removeprefix("file://"), world.world_size)
    seen["again"] = init_again(world, store)
    seen["gone"] = lose_the_last(world, store)
    return seen


def agree(one: list[Tensor], other: list[Tensor]) -> bool:
    """Whether two lists of tensors are equal bit for bit."""
    return len(one) == len(other) and all(
        a.dtype == b.dtype and bits(a) == bits(b) for a, b in zip(one, other, strict=True)
    )


def error_of(call: Callable[[], object]) -> str:
    """Return class and message of the error that a call raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is
        return f"{type(error).__name__}: {error}"
    return "no error"


def numbers(rank: int, *shape: int) -> Tensor:
    """Return small whole numbers: every order of addition gives the same sum, also gloo's."""
    return torch.arange(float(torch.Size(shape).numel())).view(shape) % 7 + 10 * rank


def mine(group: Group, *shape: int) -> Tensor:
    """Return this rank's numbers."""
    return numbers(group.rank(), *shape)


def changed(tensor: Tensor, function: Callable[..., object], *args: Any, **options: Any) -> list[Tensor]:
    """Call a function that works in place; return the tensor."""
    function(tensor, *args, **options)
    return [tensor]


def parts_of(group: Group, *shape: int) -> list[Tensor]:
    """Return one tensor for each rank."""
    return [numbers(group.rank() + 5 * j, *shape) for j in range(group.size())]


def blank(group: Group, *shape: int) -> list[Tensor]:
    """Return room for one tensor of each rank."""
    return [torch.full(shape, -1.0) for _ in range(group.size())]


def gathered(group: Group, root: int) -> list[Tensor]:
    """Gather on one rank."""
    outs = blank(group, 5) if group.rank() == root else []
    dist.gather(mine(group, 5), outs or None, dst=root, group=group)
    return outs


def filled(outs: Any, function: Callable[..., object], *args: Any, **options: Any) -> list[Tensor]:
    """Call a function that fills what it gets first; return that."""
    function(outs, *args, **options)
    return [outs] if isinstance(outs, Tensor) else list(outs)


def swapped(group: Group) -> list[Tensor]:
    """Exchange parts in lists; in one tensor with gloo, which knew no lists before torch 2.13."""
    if dist.get_backend(group) != "gloo":
        return filled(blank(group, 5), dist.all_to_all, parts_of(group, 5), group=group)
    out = torch.empty(group.size(), 5)
    dist.all_to_all_single(out, torch.stack(parts_of(group, 5)), group=group)
    return list(out)


def swapped_unevenly(group: Group) -> list[Tensor]:
    """Exchange parts of different lengths in one tensor."""
    rank, ranks = group.rank(), range(group.size())
    sent, received = [(rank + j) % 3 for j in ranks], [(rank + i) % 3 for i in ranks]
    out = torch.empty(sum(received), 2)
    dist.all_to_all_single(out, mine(group, sum(sent), 2), received, sent, group=group)
    return [out]


def average_integers(group: Group) -> list[Tensor]:
    """Average whole numbers, of which some are negative: gloo cannot, so libraries divide its sum as here."""
    value = mine(group, 9).long() - 17
    if dist.get_backend(group) == "gloo":
        dist.all_reduce(value, group=group)
        return [value.copy_(value / group.size())]
    return changed(value, dist.all_reduce, op=Op.AVG, group=group)


gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
Op = dist.ReduceOp

FUNCTIONS: dict[str, Callable[[Group], list[Tensor]]] = {
    "all_reduce": lambda g: changed(mine(g, 3, 4), dist.all_reduce, group=g),
    "all_reduce big": lambda g: changed(mine(g, BIG), dist.all_reduce, group=g),
    "all_reduce empty": lambda g: changed(mine(g, 0), dist.all_reduce, group=g),
    "all_reduce max": lambda g: changed(mine(g, 9), dist.all_reduce, op=Op.MAX, group=g),
    "all_reduce min": lambda g: changed(mine(g, 9), dist.all_reduce, op=Op.MIN, group=g),
    "all_reduce product": lambda g: changed(mine(g, 9), dist.all_reduce, op=Op.PRODUCT, group=g),
    "all_reduce average of integers": average_integers,
    "all_reduce average": lambda g: changed(mine(g, 9) * g.size(), dist.all_reduce, op=Op.AVG, group=g),
    "all_reduce xor": lambda g: changed(mine(g, 9).int(), dist.all_reduce, op=Op.BXOR, group=g),
    "broadcast": lambda g: changed(mine(g, 4), dist.broadcast, src=g.size() - 1, group=g),
    "reduce": lambda g: changed(mine(g, 4), dist.reduce, dst=g.size() - 1, group=g)[: g.rank() == g.size() - 1],
    "gather": lambda g: gathered(g, 1),
    "scatter": lambda g: filled(
        torch.empty(5), dist.scatter, parts_of(g, 5) if g.rank() == 1 else None, src=1, group=g
    ),
    "all_gather": lambda g: filled(blank(g, 2, 3), dist.all_gather, mine(g, 2, 3), group=g),
    "all_gather_single": lambda g: filled(torch.empty(g.size() * 5), gather_single, mine(g, 5), group=g),
    "reduce_scatter": lambda g: filled(torch.empty(5), dist.reduce_scatter, parts_of(g, 5), group=g),
    "reduce_scatter_single": lambda g: filled(torch.empty(5), scatter_single, mine(g, g.size() * 5), group=g),
    "all_to_all": lambda g: swapped(g),
    "all_to_all_single": lambda g: filled(
        torch.empty(g.size(), 2), dist.all_to_all_single, mine(g, g.size(), 2), group=g
    ),
    "uneven": swapped_unevenly,
}  # fmt: skip


def exchange_objects() -> list[Any]:
    """Pass objects of different sizes around."""
    rank, size = dist.get_rank(), dist.get_world_size()
    everything: list[Any] = [None] * size
    dist.all_gather_object(everything, {"rank": rank, "text": "x" * 50 * rank})
    given = ["from", rank] if rank == 0 else [None, None]
    dist.broadcast_object_list(given, src=0)
    at_last: list[Any] = [None] * size
    dist.gather_object(rank * 11, at_last if rank == size - 1 else None, dst=size - 1)
    part: list[Any] = [None]
    dist.scatter_object_list(part, [f"part {i}" for i in range(size)] if rank == 0 else None, src=0)
    return [everything, given, at_last, part]


def use_handles() -> dict[str, Any]:
    """Start operations without waiting; return what the handles and futures say."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensors = [torch.full((1000,), float(rank + k)) for k in range(5)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    doubled = works[4].get_future().then(lambda future: future.value()[0] * 2)
    waited = [work.wait() for work in reversed(works)]
    total = sum(range(size))
    # Here rank 0 waits for the others' message before they have begun what it has already started.
    early = dist.all_reduce(torch.ones(3), async_op=True) if rank == 0 else None
    token = torch.zeros(1)
    if rank == 0:
        for source in range(1, size):
            dist.recv(token, source)
    else:
        dist.send(token, 0)
        dist.all_reduce(torch.ones(3))
    if early is not None:
        early.wait()
    failing = dist.all_reduce(torch.ones(3 + rank), async_op=True)
    with torch.inference_mode():
        inferred = torch.ones(2)
        dist.all_reduce(inferred, async_op=True).wait()
    barrier = dist.barrier(async_op=True)
    barrier.wait()
    return {
        "waited": waited, "sums": [tensor[-1].item() - k * size - total for k, tensor in enumerate(tensors)],
        "then": doubled.wait()[0].item() - 2 * (4 * size + total),
        "completed": [work.is_completed() and work.is_success() and work.exception() is None for work in works],
        "result": works[0].result()[0][0].item() - total, "barrier": barrier.is_completed(),
        "failed": error_of(failing.wait), "failed_future": error_of(failing.get_future().wait),
        "is_success": failing.is_success(), "inferred": inferred.tolist(),
    }  # fmt: skip


def use_subgroups() -> dict[str, Any]:
    """Work in groups of some ranks, also at the same time."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ends, evens = dist.new_group([0, size - 1]), dist.new_group(list(range(0, size, 2)))
    seen: dict[str, Any] = {}
    for name, group in (("ends", ends), ("evens", evens)):
        if rank in dist.get_process_group_ranks(group) if group is not dist.GroupMember.NON_GROUP_MEMBER else False:
            value = torch.tensor([float(rank + 1)])
            dist.all_reduce(value, group=group)
            last = torch.tensor([float(rank)])
            dist.broadcast(last, src=dist.get_process_group_ranks(group)[-1], group=group)
            seen[name] = [value.item(), last.item(), dist.get_backend(group)]
    return seen


def ask_for_names() -> dict[str, Any]:
    """Ask the group what other libraries ask: its devices, its store, its names, another timeout."""
    group = dist.new_group(group_desc="two names")
    c10d = dist.distributed_c10d
    store = group.get_group_store()
    store.set(f"seen by {dist.get_rank()}", group.group_desc)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        c10d._set_pg_timeout(timedelta(seconds=50), group)  # which warns for all but gloo and NCCL
        default = str(c10d._get_pg_default_device(group))
    return {
        "devices": [default, c10d._get_object_coll_device(group), *c10d._device_capability(group)],
        "carrier": group._get_backend(torch.device("cpu")) is group,
        "no carrier": error_of(lambda: group._get_backend(torch.device("cuda"))),
        "found": group.group_name == c10d._world.pg_names[group],
        "told": store.get("seen by 0").decode(),
    }


def destroy_subgroup() -> list[Any]:
    """Make groups and destroy them, each apart from the rest; the sums of the groups, and of what is left."""
    seen = []
    for leave in (dist.destroy_process_group, dist.distributed_c10d._abort_process_group):
        group, value = dist.new_group(), torch.ones(1)
        dist.all_reduce(value, group=group)
        leave(group)
        dist.all_reduce(value)
        seen += [value.item(), group in dist.distributed_c10d._world.pg_map]
    return seen


def send_messages() -> dict[str, Any]:
    """Send between pairs: both ways at once, out of order, larger than the mailbox, in a batch."""
    rank, size = dist.get_rank(), dist.get_world_size()
    following, previous = (rank + 1) % size, (rank - 1) % size
    got = torch.empty(BIG)
    works = [dist.isend(numbers(rank, BIG), following), dist.irecv(got, previous)]
    waited = [work.wait() for work in works]
    seen: dict[str, Any] = {"around": torch.equal(got, numbers(previous, BIG)), "waited": waited}
    small, large = torch.empty(2), torch.empty(BIG, dtype=torch.float64)
    column = torch.zeros(5, 3)
    if rank == 0:
        first = dist.isend(torch.ones(2), 1, tag=1)
        dist.isend(torch.full((BIG,), 2.0, dtype=torch.float64), 1, tag=2).wait()
        first.wait()
        dist.send(torch.arange(5.0), 1)
        dist.send(torch.ones(4), 1, tag=7)
        dist.send(torch.ones(0), 1)
        dist.send_object_list(["hello", 1], 1)
    elif rank == 1:
        dist.recv(large, 0, tag=2)
        dist.recv(small, 0, tag=1)
        dist.recv(column[:, 1], 0)
        seen["other_shape"] = error_of(lambda: dist.recv(torch.empty(5), 0, tag=7))
        dist.recv(torch.empty(0), 0)
        objects: list[Any] = [None, None]
        dist.recv_object_list(objects, 0)
        seen["pair"] = [
            small.tolist(),
            large.sum().item() / BIG,
            column.sum(1).tolist(),
            column[:, 0].sum().item(),
            objects,
        ]
    batch = [dist.P2POp(dist.isend, numbers(rank, 3), following), dist.P2POp(dist.irecv, got[:3], previous)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    seen["batch"] = torch.equal(got[:3], numbers(previous, 3))
    return seen


REFUSED: dict[str, Callable[[], object]] = {
    "any source": lambda: dist.recv(torch.ones(1)),
    "sparse": lambda: dist.all_reduce(torch.eye(2).to_sparse()),
    "device": lambda: dist.all_reduce(torch.ones(2, device="meta")),
    "operator": lambda: dist.all_reduce(torch.ones(2), op=dist._make_nccl_premul_sum(2.0)),
    "self": lambda: dist.distributed_c10d._get_default_group().send([torch.ones(1)], dist.get_rank(), 0),
}

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "unused": {"find_unused_parameters": True, "unused": True},
    "small buckets": {"bucket_cap_mb": 0.01},
    "no_sync": {"accumulate": True},
}


class Model(nn.Module):
    """A small model with a buffer, and a layer that not every step uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.sometimes = nn.Linear(12, 64), nn.Linear(64, 5), nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)

    def forward(self, x: Tensor, *, is_long: bool) -> Tensor:
        """Compute; `is_long` says whether the middle layer takes part."""
        hidden = self.norm(self.first(x).tanh())
        return self.last(self.sometimes(hidden) if is_long else hidden)


def train(group: Group, *, accumulate: bool = False, unused: bool = False, **options: Any) -> str:
    """Train with DDP; return the final weights' bytes in hex."""
    torch.manual_seed(group.rank())  # DDP sends rank 0's weights to the others
    model = DistributedDataParallel(Model(), process_group=group, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    draw = torch.Generator().manual_seed(7 + group.rank())
    for step in range(4):
        optimizer.zero_grad()
        if accumulate:
            with model.no_sync():
                model(torch.randn(6, 12, generator=draw), is_long=True).square().mean().backward()
        is_long = not unused or step % 2 == 1
        model(torch.randn(6, 12, generator=draw), is_long=is_long).square().mean().backward()
        optimizer.step()
    state = model.module.state_dict() if dist.get_world_size(group) == 1 else dict(model.module.named_parameters())
    return b"".join(bits(value) for value in state.values()).hex()


def join_unevenly() -> str:
    """Train with another number of batches on each rank; return the weights' bytes in hex."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for _ in range(2 + dist.get_rank()):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
    return b"".join(map(bits, model.module.state_dict().values())).hex()


def init_again(world: World, store: dist.Store) -> dict[str, Any]:
    """Make the default group anew at one store, in both spellings; and one that torch cannot make."""
    place = {"store": store, "rank": world.rank, "world_size": world.world_size, "timeout": timedelta(seconds=30)}
    seen: dict[str, Any] = {"sums": []}
    for name in ("shm", "cpu:shm", "shm"):
        dist.init_process_group(name, **place)
        value = torch.ones(1)
        dist.all_reduce(value)
        dist.barrier()
        seen["sums"].append(value.item())
        dist.destroy_process_group()
    seen["late"] = wait_for_the_last(world, store, place)
    dist.init_process_group("cpu:shm,cuda:nccl", **place)
    seen["several"] = error_of(lambda: dist.all_reduce(torch.ones(1)))
    dist.destroy_process_group()
    return seen


def wait_for_the_last(world: World, store: dist.Store, place: dict[str, Any]) -> str:
    """Let all but the last rank come to a monitored barrier; return their error."""
    dist.init_process_group("shm", **place)
    group = dist.group.WORLD
    group.monitored_barrier()
    error = ""
    if world.rank < world.world_size - 1:
        error = error_of(lambda: group.monitored_barrier(timedelta(seconds=0.2)))
        store.set(f"given up {world.rank}", "yes")
    else:
        store.wait([f"given up {rank}" for rank in range(world.rank)])
    dist.destroy_process_group()
    return error


def lose_the_last(world: World, store: dist.Store) -> dict[str, str]:
    """Train until the last rank leaves without a word; return the errors of the others."""
    warnings.simplefilter("ignore")  # the group is not destroyed
    dist.init_process_group("shm", store=dist.PrefixStore("last", store), rank=world.rank, world_size=world.world_size)
    model = DistributedDataParallel(nn.Linear(4, 2))
    handle = None
    if world.rank < world.world_size - 1:
        in_backward = error_of(lambda: model(torch.ones(3, 4)).sum().backward())
        handle = dist.all_reduce(torch.ones(1), async_op=True)
        return {
            "backward": in_backward, "handle": error_of(handle.wait), "future": error_of(handle.get_future().wait),
            "afterwards": error_of(dist.barrier),
        }  # fmt: skip
    return {}
