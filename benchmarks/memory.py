"""How much memory training takes at its peak: `exact` by replicas and ranks, against DDP, fsdp and the formula.

    python benchmarks/memory.py [--rounds 1] [--only NAME]... [--quick] [--out DIR]

A GPT-like transformer of 50 M parameters under Adam, one thread a process. Every way gets the same batch of 8 parts and
does 4 steps in fresh processes: once with parts of 16 tokens, where gradients and their sums are nearly all there is,
once with parts of 128 tokens, where activations count too. A figure is the peak of a rank's resident memory (`VmHWM`:
the interpreter, torch, everything), the mean over ranks; pages that ranks share in memory are counted once for all of
them. The formula counts tensors of the gradient's size that are there at once, activations apart; ``over the start``
holds the same for what was measured: the peak over what the process held before the model was built.
"""

import functools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from harness import UNISONO, in_turn, leave_group, parser_of, rounds_of, run, save
from results import Bar, Result
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

PARTS, STEPS = 8, 4
BAR = Bar(of="ratio", at_least=round(1 / 1.15, 4))


@dataclass(frozen=True)
class Size:
    """A model and its batch.

    Attributes:
        width: Of its layers.
        depth: Blocks.
        words: Of the vocabulary; the embedding is the output's matrix too.
        texts: In a part of the batch.
        tokens: In a text.
    """

    width: int
    depth: int
    words: int
    texts: int
    tokens: int


SIZES = {"16 tokens": Size(512, 12, 24_000, 1, 16), "128 tokens": Size(512, 12, 24_000, 2, 64)}
QUICK = {"quick": Size(128, 2, 2_000, 1, 8)}


@dataclass(frozen=True)
class Way:
    """One of those compared.

    Attributes:
        kind: What trains.
        ranks: Processes.
        replicas: Of ours.
        transport: Of ours.
        peer: Against which it is held.
        is_barred: Whether it has to come near that.
    """

    kind: str
    ranks: int
    replicas: int = 0
    transport: str = "auto"
    peer: str | None = None
    is_barred: bool = False

    def formula(self) -> float:
        """Return the peak without activations in sizes of the gradient: weights, Adam's two moments, and the rest."""
        hosted = max(1, self.replicas // self.ranks)
        sums = hosted.bit_length() - (hosted & (hosted - 1) == 0 and hosted > 1)  # a power of two: its logarithm
        match self.kind:
            case "exact":
                return 3 + sums
            case "fsdp":  # slices of the state; the sums of all ranks' replicas, in slices
                return 3 / self.ranks + sums
            case "DDP":  # gradients, and the buckets in which they are sent
                return 3 + 2
            case _:
                return 3 + 1


WAYS = {
    "torch, 1 rank": Way("torch", 1),
    "DDP, 1 rank": Way("DDP", 1),
    "DDP, 2 ranks": Way("DDP", 2),
    "DDP with bucket views, 2 ranks": Way("DDP views", 2),
    "exact V=1, 1 rank": Way("exact", 1, 1, peer="DDP, 1 rank"),
    "exact V=8, 1 rank": Way("exact", 1, 8, peer="DDP, 1 rank", is_barred=True),
    "exact V=2, 2 ranks, shared memory": Way("exact", 2, 2, peer="DDP, 2 ranks"),
    "exact V=8, 2 ranks, shared memory": Way("exact", 2, 8, peer="DDP, 2 ranks", is_barred=True),
    "exact V=2, 2 ranks, sockets": Way("exact", 2, 2, "gloo", peer="DDP, 2 ranks"),
    "exact V=8, 2 ranks, sockets": Way("exact", 2, 8, "gloo", peer="DDP, 2 ranks", is_barred=True),
    "fsdp V=8, 2 ranks": Way("fsdp", 2, 8, peer="DDP, 2 ranks"),
}


class Block(nn.Module):
    """A block of the transformer, normalised first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        texts, tokens, width = x.shape
        heads = self.qkv(self.before(x)).view(texts, tokens, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.narrow(F.gelu(self.wide(self.after(x))))


class Transformer(nn.Module):
    """Predicts the next token; the loss is its mean cross-entropy."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(size.words, size.width), nn.Embedding(size.tokens, size.width)
        self.blocks = nn.Sequential(*[Block(size.width) for _ in range(size.depth)])
        self.last = nn.LayerNorm(size.width)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        found = self.last(self.blocks(self.words(x[:, :-1]) + self.places.weight))
        return F.cross_entropy(F.linear(found, self.words.weight).flatten(0, 1), x[:, 1:].flatten())


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        train(*sys.argv[2:])
        return
    parser = parser_of(__doc__, rounds=1)
    parser.add_argument("--only", action="append", choices=WAYS, help="measure this way alone; may be repeated")
    given = parser.parse_args()
    found = []
    for name, size in (QUICK if given.quick else SIZES).items():
        chosen = given.only or (["DDP, 1 rank", "exact V=8, 1 rank"] if given.quick else [*WAYS])
        ways = {way: functools.partial(measure, way, name) for way in chosen}
        found += records(in_turn(ways, rounds_of(given, quick=1), warm_up=0), name, size)
    save(given, found)


def measure(way: str, size: str) -> dict[str, float]:
    """Train in fresh processes; return the mean over ranks of their peaks, MB, and what the peak is over the start."""
    ranks, words = WAYS[way].ranks, [Path(__file__).resolve(), "--rank", way, size]
    starter = [*UNISONO, "run", "-n", str(ranks), "--output", "leader"]
    if WAYS[way].kind not in ("exact", "fsdp"):
        starter = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    with tempfile.TemporaryDirectory(prefix="unisono-memory-") as folder:
        run([*starter, *words, folder], env={**os.environ, "OMP_NUM_THREADS": "1"})
        told = [json.loads(path.read_text()) for path in Path(folder).iterdir()]
    assert len(told) == ranks
    shared = (ranks - 1) * statistics.mean(each["RssShmem"] for each in told) / ranks
    peak = statistics.mean(each["VmHWM"] for each in told) - shared
    return {"peak": peak, "over": peak - statistics.mean(each["start"] for each in told)}


def records(found: dict[str, list[dict[str, float]]], name: str, size: Size) -> Iterator[Result]:
    """Make the records of all ways with one size."""
    unit = sum(parameter.nbytes for parameter in Transformer(size).parameters()) / 1e6
    peaks = {way: [turn["peak"] for turn in turns] for way, turns in found.items()}
    for key, turns in found.items():
        way, against = WAYS[key], peaks.get(WAYS[key].peer or "")
        over = statistics.median(turn["over"] for turn in turns) / unit
        yield Result.of(
            f"{key}, {name}".replace(", ", "-").replace(" ", "-").replace("=", "").lower(),
            peaks[key],
            topic="Memory",
            what=f"peak memory of a rank, {key}, parts of {name}",
            unit="MB",
            peer=way.peer if against else None,
            against=against,
            bar=BAR if way.is_barred and against else None,
            settings={
                "parameters": round(unit / 4e-6), "gradient, MB": round(unit, 1), "formula, gradients": way.formula(),
                "over the start, gradients": round(over, 2),
            },
        )  # fmt: skip


def train(key: str, name: str, folder: str) -> None:
    """Do the steps on this rank, and leave what the kernel says of this process."""
    way, size = WAYS[key], {**SIZES, **QUICK}[name]
    torch.manual_seed(0)
    x = torch.randint(size.words, (PARTS * size.texts, size.tokens + 1))
    rank, start = (ours if way.kind in ("exact", "fsdp") else theirs)(way, size, x)
    told = {**status(), "start": start}
    Path(folder, f"{rank}.json").write_text(json.dumps(told))


def ours(way: Way, size: Size, x: Tensor) -> tuple[int, float]:
    """Train with unisono; return rank and MB before the model is built."""
    import unisono

    options: dict[str, Any] = {"wrap": "Block"} if way.kind == "fsdp" else {}
    strategy = unisono.strategy(way.kind, **options)
    with unisono.Run(seed=0, replicas=way.replicas, transport=way.transport, strategy=strategy) as training:
        start = held()
        model, optimizer = build(size)
        prepared, _ = training.prepare(model, optimizer)
        loader = training.loader(torch.utils.data.TensorDataset(x), batch_size=len(x))
        for batch in training.steps(loader, epochs=STEPS):
            training.step(batch, lambda micro: prepared(micro[0]))
        return training.world.rank, start


def theirs(way: Way, size: Size, x: Tensor) -> tuple[int, float]:
    """Train with torch; return rank and MB before the model is built."""
    dist.init_process_group("gloo")
    rank, start = dist.get_rank(), held()
    model, optimizer = build(size)
    step: Callable[[Tensor], Tensor] = model
    if way.kind != "torch":
        step = DistributedDataParallel(model, gradient_as_bucket_view=way.kind == "DDP views")
    for _ in range(STEPS):
        optimizer.zero_grad()
        step(x.chunk(way.ranks)[rank]).backward()
        optimizer.step()
    leave_group()
    return rank, start


def build(size: Size) -> tuple[Transformer, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Transformer(size)
    return model, torch.optim.Adam(model.parameters(), lr=1e-4)


def held() -> float:
    """Return the MB that this process holds now, with what torch imports for the first optimizer."""
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])
    return status()["VmRSS"]


def status() -> dict[str, float]:
    """Return what the kernel says of this process's memory, MB."""
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    return {words[0][:-1]: int(words[1]) * 1024 / 1e6 for words in lines if words[-1:] == ["kB"]}


if __name__ == "__main__":
    main()
