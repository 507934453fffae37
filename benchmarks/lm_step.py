"""A language model's training beside nanoGPT's loop on DDP with gloo: the same GPT, the same crops, steps in turn.

    python benchmarks/lm_step.py [--rounds 6] [--only accumulated] [--quick] [--out DIR]

The recipe's GPT of 10 M parameters without dropout, 2 processes with one thread each, a file of tokens, AdamW (fused)
and a clipped norm on both sides. nanoGPT's loop: its ``get_batch`` on a memory-mapped file, gradients accumulated over
a rank's micro-batches, exchanged with the last. Ours: `Run.loader` over `TokenFile.crops` and `Run.step`. *One*: a
micro-batch for each process. *Accumulated*: four for each process, 8 replicas. What differs between the models that
people train with either (attention with a mask of documents, dropout) is not measured: the model is the same.
A sample is the time of a step, its data included.
"""

import contextlib
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from harness import in_turn, join_world, parser_of, rounds_of, save, slug
from results import Bar, Result
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import unisono
from unisono.recipes.gpt import GPT, Micro, Shape, decay_groups
from unisono.recipes.lm import mean_loss
from unisono.recipes.lm_presets import PRESETS

RANKS = 2
KINDS = {"one": (1, 4), "accumulated": (4, 2)}  # micro-batches of a rank, rows of each


def micro_of(x: Tensor, y: Tensor) -> Micro:
    """Return crops as the model takes them: every row is one document."""
    return Micro(x, torch.zeros_like(x), torch.arange(x.shape[1]).expand_as(x), y)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(decay_groups(model, 0.1), lr=1e-3, betas=(0.9, 0.95), fused=True)


def ours(path: Path, model: GPT, micro_batches: int, rows: int) -> Callable[[], object]:
    run = unisono.Run(seed=0, replicas=micro_batches * RANKS, clip_norm=1.0)
    model, _ = run.prepare(model, optimizer_of(model))
    crops = unisono.TokenFile(path, vocabulary=model.tokens.num_embeddings).crops(model.shape.length, samples=10**6)
    batches = run.steps(run.loader(crops, batch_size=rows * run.replicas), epochs=1)
    return lambda: run.step(next(batches), lambda micro: mean_loss(model(micro_of(micro.x, micro.y)), micro.y))


def nano_gpt(path: Path, model: GPT, micro_batches: int, rows: int) -> Callable[[], object]:
    """Return a step of nanoGPT's ``train.py``, with its loss scaling left out, which does nothing on a CPU."""
    wrapped, optimizer = DistributedDataParallel(model, gradient_as_bucket_view=True), optimizer_of(model)
    block = model.shape.length

    def get_batch() -> tuple[Tensor, Tensor]:
        data = np.memmap(path, dtype=np.uint16, mode="r")  # anew each time, as there: against a leak of memory
        places = torch.randint(len(data) - block, (rows,))
        x = torch.stack([torch.from_numpy(data[i : i + block].astype(np.int64)) for i in places])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block].astype(np.int64)) for i in places])
        return x, y

    def step() -> None:
        for number in range(micro_batches):
            is_last = number == micro_batches - 1
            with contextlib.nullcontext() if is_last else wrapped.no_sync():
                x, y = get_batch()
                (mean_loss(wrapped(micro_of(x, y)), y) / micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def timed(step: Callable[[], object]) -> float:
    """Return the milliseconds of a step that all ranks begin together."""
    dist.barrier()
    began = time.perf_counter()
    step()
    return (time.perf_counter() - began) * 1e3


def main() -> None:
    parser = parser_of(__doc__, rounds=6)
    parser.add_argument("--only", choices=KINDS, action="append", help="these alone; may be repeated")
    given = parser.parse_args()
    join_world(RANKS)
    dist.init_process_group("gloo")
    settings = PRESETS["small" if given.quick else "10m"]
    shape, found = Shape(**settings.shape), []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.bin")
        drawn = np.random.default_rng(0).integers(0, settings.vocabulary, 200_000 if given.quick else 5_000_000)
        drawn.astype(np.uint16).tofile(path)
        for kind in given.only or KINDS:
            micro_batches, rows = KINDS[kind]
            steps = {}
            for name, way in (("ours", ours), ("peer", nano_gpt)):
                torch.manual_seed(0)  # both begin with the same weights, on both ranks
                steps[name] = way(path, GPT(settings.vocabulary, shape), micro_batches, rows)
            times = in_turn({name: partial(timed, step) for name, step in steps.items()}, rounds_of(given))
            how = {"ranks": RANKS, "micro-batches of a rank": micro_batches, "rows": rows, "tokens": shape.length}
            what = "one micro-batch a process" if micro_batches == 1 else "four micro-batches a process"
            found.append(Result.of(
                slug(f"gpt {kind}"), times["ours"], against=times["peer"], peer="nanoGPT's loop, DDP over gloo",
                unit="ms a step", topic="Steps", what=f"a step of a GPT of 10 M, {what}", settings=how,
                bar=Bar(of="ratio", at_least=1),
            ))  # fmt: skip
    if dist.get_rank() == 0:
        save(given, found)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
