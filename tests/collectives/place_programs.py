"""Collectives called where only the leader is, as programs that ranks run (see `ranks`)."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import unisono
from unisono.collectives.places import GuardedTransport
from unisono.collectives.transport import Transport
from unisono.errors import PlaceError

LOOPBACK = {
    "all_gather": "all_gather", "all_to_all": "all_to_all", "barrier": "barrier", "json": "all_gather_json",
    "board": "a reduction", "evaluate": "all_gather_json", "step": "all_gather_json",
}  # fmt: skip
PROCESSES = {
    "barrier": "barrier", "json": "all_gather_json", "board": "a reduction",
    "torch_all_reduce": "torch.distributed's allreduce",
    "torch_barrier": "torch.distributed's barrier", "torch_object": "torch.distributed's allgather",
}  # fmt: skip


def operations(run: unisono.Run) -> dict[str, Any]:
    """Return the ways to call a collective."""
    joined, one, two = run.transport, torch.zeros(1), torch.zeros(2)
    data = unisono.ArrayDataset(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))

    def other_run() -> None:
        other = unisono.Run(replicas=2, transport=joined)
        other.prepare(nn.Linear(2, 2), torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0))

    return {
        "all_gather": lambda: joined.all_gather(one, two),
        "all_to_all": lambda: joined.all_to_all(two, [1, 1], two.clone(), [1, 1]),
        "barrier": joined.barrier,
        "json": lambda: joined.all_gather_json(1),
        "board": lambda: joined.board,
        "evaluate": lambda: run.evaluate(data, lambda m: (m.x, m.y), {"a": unisono.Accuracy()}),
        "step": other_run,
        "torch_all_reduce": lambda: dist.all_reduce(one),
        "torch_barrier": dist.barrier,
        "torch_object": lambda: dist.all_gather_object([None, None], 1),
    }


def prepared(transport: Transport | None) -> unisono.Run:
    """Return a run of two ranks."""
    run = unisono.Run(replicas=2, transport=transport or "auto")
    model = nn.Linear(2, 2)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert isinstance(run.transport, GuardedTransport)
    return run


def attempt(run: unisono.Run, name: str) -> str:
    """Call one collective on the leader only and return what happened."""
    call = operations(run)[name]

    @unisono.leader_only
    def only_on_the_leader() -> None:
        call()

    try:
        return repr(only_on_the_leader())
    except PlaceError as error:
        return f"{type(error).__name__}: {error}"


def call(transport: Transport | None, name: str) -> str:
    """Try one."""
    return attempt(prepared(transport), name).removeprefix("PlaceError: ")


def call_all(transport: Transport | None) -> dict[str, str]:
    """Try all in turn, in one world that must stay whole."""
    with prepared(transport) as run:
        found = {}
        for name in PROCESSES:
            found[name] = attempt(run, name)
            assert run.transport.all_gather_json(run.world.rank) == [0, 1]
        return found
