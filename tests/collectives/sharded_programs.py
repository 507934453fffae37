"""What torch builds on process groups, on `shm` and beside it in one process: meshes, DTensor, FSDP, checkpoints."""

import warnings
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import unisono.collectives.shm.backend  # noqa: F401 - makes "shm" known

SIZE = 2


def play_sharded(transport: None, folder: str) -> dict[str, Any]:
    """Do everything; what went wrong, by name."""
    warnings.simplefilter("ignore")  # torch's, about its own private functions
    dist.init_process_group("shm", timeout=timedelta(seconds=60))
    seen = {name: use(Path(folder)) for name, use in USES.items()}
    dist.destroy_process_group()
    return seen


def model() -> nn.Sequential:
    """Return the same small model on every rank; its last layer cannot be cut evenly."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def cut(net: nn.Sequential) -> nn.Sequential:
    """Let FSDP2 have it."""
    mesh = init_device_mesh("cpu", (SIZE,))
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh)
    return net


def train(net: nn.Module, ranks: list[int]) -> nn.Module:
    """Train three steps on the samples of some ranks."""
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        losses = [net(torch.ones(2, 4) * (rank + 1)).square().mean() for rank in ranks]
        torch.stack(losses).mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return net


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Return the names of tensors that differ by more than rounding."""
    whole = {key: value.full_tensor() if isinstance(value, DTensor) else value for key, value in found.items()}
    assert whole.keys() == expected.keys()
    return [key for key, value in expected.items() if not torch.allclose(whole[key], value, rtol=1e-5, atol=1e-6)]


def use_mesh(_: Path) -> list[str]:
    """Make a mesh of two dimensions and its groups."""
    mesh = init_device_mesh("cpu", (1, SIZE), mesh_dim_names=("outer", "inner"))
    total = torch.ones(1)
    dist.all_reduce(total, group=mesh.get_group("inner"))
    whole = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    seen = [int(total), mesh["inner"].size(), mesh.get_local_rank("inner"), mesh._flatten().size(), whole.size()]
    return [] if seen == [SIZE, SIZE, dist.get_rank(), SIZE, SIZE] else [str(seen)]


def use_tensors(_: Path) -> list[str]:
    """Cut, turn, multiply and sum a sharded tensor; some shards are empty."""
    mesh, x = init_device_mesh("cpu", (SIZE,)), torch.arange(6.0).view(3, 2)
    rows = distribute_tensor(x, mesh, [Shard(0)])
    whole_numbers = torch.arange(4) + 2 * dist.get_rank()
    found = {
        "rows": rows, "columns": rows.redistribute(mesh, [Shard(1)]), "product": rows @ rows.T, "sum": rows.sum(),
        "one": distribute_tensor(torch.ones(1), mesh, [Shard(0)]),
        "mean": DTensor.from_local(whole_numbers, mesh, [Partial("avg")]),
    }  # fmt: skip
    expected: dict[str, Tensor] = {
        "rows": x, "columns": x, "product": x @ x.T, "sum": x.sum(), "one": torch.ones(1), "mean": torch.arange(4) + 1,
    }  # fmt: skip
    return differences(found, expected)


def use_tensor_parallel(_: Path) -> list[str]:
    """The gradients of a model whose layers are cut."""
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    net, plain = parallelize_module(model(), init_device_mesh("cpu", (SIZE,)), plan), model()
    for each in (net, plain):
        each(torch.ones(3, 4)).sum().backward()
    gradients = [{key: value.grad for key, value in each.named_parameters()} for each in (net, plain)]
    return differences(*gradients)


def use_fsdp1(_: Path) -> list[str]:
    """Train with the older FSDP, on the same samples everywhere."""
    net = FullyShardedDataParallel(model(), device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    plain = model()
    of_plain = torch.optim.SGD(plain.parameters(), lr=0.1)
    for each, act in ((net, optimizer), (plain, of_plain)):
        each(torch.ones(2, 4)).sum().backward()
        act.step()
    return differences(net.state_dict(), plain.state_dict())


def use_fsdp2(_: Path) -> list[str]:
    """Train with FSDP2, on other samples everywhere."""
    net, plain = train(cut(model()), [dist.get_rank()]), train(model(), list(range(SIZE)))
    return differences(net.state_dict(), plain.state_dict())


def use_checkpoint(folder: Path) -> list[str]:
    """Save a sharded model and load it into another one."""
    net = train(cut(model()), [dist.get_rank()])
    dcp.save({"model": get_model_state_dict(net)}, checkpoint_id=folder / "plain")
    return differences(load(folder / "plain"), whole_of(net))


def use_async_checkpoint(folder: Path) -> list[str]:
    """Save in the background, and load."""
    net = train(cut(model()), [dist.get_rank()])
    saving: Any = dcp.async_save({"model": get_model_state_dict(net)}, checkpoint_id=folder / "async")
    done: Future[Any] = getattr(saving, "upload_completion", saving)
    done.result(timeout=60)
    return differences(load(folder / "async"), whole_of(net))


def use_broadcast(_: Path) -> list[str]:
    """Give all ranks the whole weights that rank 0 has."""
    net = cut(model())
    whole = {key: torch.full_like(value, 3.0) for key, value in model().state_dict().items()}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(net, dict(whole) if dist.get_rank() == 0 else {}, options=options)  # which writes to it
    return differences(net.state_dict(), whole)


def load(folder: Path) -> dict[str, Any]:
    """Return the state of a fresh model that has read a checkpoint."""
    fresh = cut(model())
    state = get_model_state_dict(fresh)
    dcp.load({"model": state}, checkpoint_id=folder)
    set_model_state_dict(fresh, state)
    return fresh.state_dict()


def whole_of(net: nn.Module) -> dict[str, Tensor]:
    """Return a sharded model's whole weights, which are no longer those it began with."""
    whole = {key: value.full_tensor() for key, value in net.state_dict().items()}
    assert differences(whole, model().state_dict())
    return whole


USES: dict[str, Callable[[Path], list[str]]] = {
    "mesh": use_mesh, "tensors": use_tensors, "tensor parallel": use_tensor_parallel, "fsdp1": use_fsdp1,
    "fsdp2": use_fsdp2, "checkpoint": use_checkpoint, "async checkpoint": use_async_checkpoint,
    "broadcast": use_broadcast,
}  # fmt: skip
