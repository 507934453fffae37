"""Trainings on islands, for ranks in threads or processes; and the same in plain torch, one island after the other."""

import copy
import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unisono
from ranks import join
from reference import bits, pairwise_sum
from strategies.conformance import loss_of
from strategies.strategy_runs import toy_data
from unisono.collectives.placement import cut
from unisono.collectives.transport import Transport

REPLICAS, BATCH = 4, 16


def model_of(*, dropout: float = 0.2, norm: str = "BatchNorm1d") -> nn.Module:
    """Return a model with batch statistics, random numbers and sizes that divide unevenly."""
    return nn.Sequential(
        nn.Linear(64, 33), getattr(nn, norm)(33), nn.ReLU(), nn.Dropout(dropout), nn.Linear(33, 17), nn.ReLU(),
        nn.Linear(17, 10),
    )  # fmt: skip


def start(
    transport: Transport | str | None, *, out: str | None = None, island_steps: int | None = 3, dropout: float = 0.2,
    kind: str = "AdamW", settings: dict[str, Any] | None = None, every: int = 2, norm: str = "BatchNorm1d",
    **run_settings: Any,
) -> tuple[unisono.Run, nn.Module, torch.optim.Optimizer]:  # fmt: skip
    """Return a run of four replicas, its model and its optimizer."""
    run = unisono.Run(
        seed=0, replicas=REPLICAS, strategy=unisono.strategy("exact", island_steps=island_steps, **(settings or {})),
        out=out, transport=transport or "auto", checkpoint_every=every, **run_settings,
    )  # fmt: skip
    model = model_of(dropout=dropout, norm=norm)
    lr = {"AdamW": 3e-3, "SGD": 0.1, "Adagrad": 0.01}[kind]
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=lr, **({"momentum": 0.9} if kind == "SGD" else {}))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
    front, optimizer = run.prepare(model, optimizer, scheduler)
    return run, front, optimizer


def state_of(run: unisono.Run) -> dict[str, str]:
    """Return the bytes of all that a checkpoint would hold, by name; collective."""
    packed = run._prepared().pack()
    found = {
        f"{stem}/{name}": bits(tensor.contiguous()).hex() for stem, part in packed.tensors.items()
        for name, tensor in part.items()
    }  # fmt: skip
    return found | {"values": repr(sorted((key, value) for key, value in packed.values.items()))}


def leg(
    transport: Transport | None, steps: int, out: str | None = None, island_steps: int | None = 3, *,
    samples: int = 93, over: str = "auto", **how: Any,
) -> dict[str, Any]:  # fmt: skip
    """Train to a step and say what is there; the last batch of an epoch has 13 samples."""
    run, front, _ = start(transport or over, out=out, island_steps=island_steps, **how)
    with run:
        losses, sent = [], []
        for batch in run.steps(run.loader(toy_data(samples), batch_size=BATCH), epochs=20, max_steps=steps):
            before = run.transport.bytes_sent
            losses.append(run.step(batch, loss_of(front)).hex())
            sent.append(run.transport.bytes_sent - before)
        state = state_of(run)
        return {"fingerprint": run.result()["fingerprint"], "losses": losses, "sent": sent, "state": state}


def legs(transport: Transport | None, cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Train several times; with ledgers."""
    warnings.filterwarnings("ignore", message="the run ends")
    joined = join(transport)
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = joined.all_gather_json(scratch)[0]
        for number, case in enumerate(cases):
            out = case.get("out", str(Path(folder, str(number))))
            report = leg(transport, **{**case, "out": out})
            found.append(report | {"ledger": Path(out, "ledger.jsonl").read_text() if joined.rank == 0 else ""})
        joined.barrier()
    return found


def dies(transport: Transport | None, out: str, step: int) -> None:
    """Train until a rank ends itself in a step, without a word."""
    run, front, _ = start(transport, out=out)
    for batch in run.steps(run.loader(toy_data(93), batch_size=BATCH), epochs=20, max_steps=11):
        if batch.step == step and run.world.rank == 1:
            os._exit(9)
        run.step(batch, loss_of(front))


def by_hand(
    steps: int, *, island_steps: int, islands: int, lr: float = 0.7, momentum: float = 0.9, clip: float | None = None,
    kind: str = "SGD", samples: int = 93, swap: int = 0,
) -> tuple[nn.Module, list[float]]:  # fmt: skip
    """Return the common model and the losses of DiLoCo in plain torch: a model and an optimizer for each island.

    Without dropout. `swap`: a mistake to be noticed: after that step two islands take each other's optimizer state.
    """
    run, front, first = start(None, island_steps=None, dropout=0.0, kind=kind)
    with run:
        loader = run.loader(toy_data(samples), batch_size=BATCH)
        batches = [loader.sampler.batch(step) for step in range(1, steps + 1)]
        x, y = loader.fetcher.dataset.fetch_micro_batch(np.arange(samples))
    common: nn.Module = copy.deepcopy(front)
    settings = dict(first.defaults)
    rate = settings.pop("lr")
    nets = [copy.deepcopy(common) for _ in range(islands)]
    inner = [type(first)(net.parameters(), lr=rate, **settings) for net in nets]
    velocity = [torch.zeros_like(parameter) for parameter in common.parameters()]
    size, losses = REPLICAS // islands, []
    for step, indices in enumerate(batches, start=1):
        parts = [indices[part.start : part.stop] for part in cut(len(indices), REPLICAS)]
        total = 0.0
        for number, (net, optimizer) in enumerate(zip(nets, inner, strict=True)):
            own = parts[number * size : (number + 1) * size]
            count = sum(map(len, own))
            begin = [buffer.clone() for buffer in net.buffers()]
            gradients, statistics = [], []
            for part in own:
                for buffer, value in zip(net.buffers(), begin, strict=True):
                    buffer.copy_(value)
                loss = F.cross_entropy(net(x[part]), y[part])
                total += len(part) / len(indices) * loss.item()
                optimizer.zero_grad()
                loss.backward(torch.tensor(len(part) / count))
                gradients.append([parameter.grad.clone() for parameter in net.parameters()])
                statistics.append([buffer.clone() for buffer in net.buffers()])
            for index, parameter in enumerate(net.parameters()):
                parameter.grad = pairwise_sum([gradient[index] for gradient in gradients], torch.add)
            merge(list(net.buffers()), statistics, [len(part) / count for part in own])
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
        rate *= 0.9 if step % 2 == 0 else 1  # as `start` schedules it
        losses.append(total)
        if step == swap:
            states = [optimizer.state_dict() for optimizer in inner[:2]]
            inner[0].load_state_dict(states[1])
            inner[1].load_state_dict(states[0])
        if step % island_steps == 0:
            meet(common, nets, velocity, lr, momentum)
    return common, losses


@torch.no_grad()
def merge(live: list[Tensor], found: list[list[Tensor]], weights: list[float]) -> None:
    """Leave the weighted sum of some results in floating-point buffers, the largest one in counters."""
    for index, buffer in enumerate(live):
        values = [one[index] for one in found]
        if buffer.is_floating_point():
            buffer.copy_(
                pairwise_sum([value * weight for value, weight in zip(values, weights, strict=True)], torch.add)
            )
        else:
            buffer.copy_(torch.stack(values).amax(dim=0))


@torch.no_grad()
def meet(common: nn.Module, nets: list[nn.Module], velocity: list[Tensor], lr: float, momentum: float) -> None:
    """Let torch's own SGD do the outer step, and give all islands the outcome."""
    moved = [list(net.parameters()) for net in nets]
    weights = list(common.parameters())
    for index, parameter in enumerate(weights):
        parameter.grad = pairwise_sum([(parameter - one[index]) * (1 / len(nets)) for one in moved], torch.add)
    outer = torch.optim.SGD(weights, lr=lr, momentum=momentum, nesterov=momentum > 0)
    for parameter, kept in zip(weights, velocity, strict=True):
        if momentum:
            outer.state[parameter]["momentum_buffer"] = kept
    outer.step()
    buffers = [list(net.buffers()) for net in nets]
    merge(list(common.buffers()), buffers, [1 / len(nets)] * len(nets))
    for net in nets:
        for mine, theirs in zip(
            [*net.parameters(), *net.buffers()], [*weights, *common.buffers()], strict=True
        ):  # fmt: skip
            mine.copy_(theirs)
