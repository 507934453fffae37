"""How many samples a second the loader gives, beside torch's DataLoader and beside a NumPy loop.

    python benchmarks/loader.py [--rounds 5] [--only images] [--out DIR]
    python benchmarks/loader.py --quick

Images: the same data set and the same function of the user's (a random crop after padding, a random flip, normalised),
with two loader processes on both sides; then our `Pictures` with `Augment`, which do it by micro-batches, beside the
same DataLoader. Tokens: crops at keyed places of a memory-mapped file of uint16, cut by `TokenFile`, beside a loop that
cuts the same crops as nanoGPT does; and packed documents beside crops. Plain: tensors in memory, without loader
processes.

Every batch is read once by who asks for it. The first batches of a pass, which wait for processes to start, are left
out. Freed memory is kept on both sides, as in a `Run`.
"""

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import in_turn, parser_of, rounds_of, save, slug, stop
from results import Bar, Result
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import unisono
from unisono.data.augment import Augment
from unisono.data.loader import Fetcher, Loader
from unisono.data.pictures import Pictures
from unisono.data.sampler import ExactSampler, Indices
from unisono.determinism.keyed_words import keyed_places
from unisono.determinism.seeding import mix
from unisono.system.memory import keep_freed_memory

WORKERS = 2
FIRST = 8  # batches of a pass that are left out
SIZES = {28: (128, 40_000), 64: (64, 16_000), 224: (32, 3_200)}  # side of the image: batch, samples
BLOCK, CROPS = 1024, 12  # tokens of a crop, crops of a batch: nanoGPT's defaults
END = 50_001
MEAN, STD = torch.full((3, 1, 1), 120.0), torch.full((3, 1, 1), 60.0)


class Images(Dataset):
    """Images in memory, uint8 (3, side, side), with a label; or what a function makes of each."""

    def __init__(self, pixels: Tensor, change: Callable[[Any], Any] | None = None) -> None:
        self.pixels, self.change = pixels, change

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        sample = self.pixels[index], index % 10
        return sample if self.change is None else self.change(sample)


def augmented(sample: tuple[Tensor, int]) -> tuple[Tensor, int]:
    """Crop at a random place after padding by an eighth, mirror every second image, normalise."""
    image, label = sample
    side, most = image.shape[1], image.shape[1] // 8
    down, right = torch.randint(0, 2 * most + 1, (2,)).tolist()
    image = F.pad(image, (most, most, most, most))[:, down : down + side, right : right + side]
    if torch.rand(()) < 0.5:
        image = image.flip(2)
    return image.float().sub_(MEAN).div_(STD), label


class Places:
    """What nanoGPT's loop reads: the file, and the places at which `TokenFile.crops` cuts."""

    def __init__(self, path: Path) -> None:
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")

    def starts(self, indices: Indices) -> list[int]:
        return keyed_places(mix(0, "crop", 0), indices, len(self.tokens) - BLOCK).tolist()


def numpy_loop(data: Places, sampler: ExactSampler) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut the crops of each step as nanoGPT's ``get_batch`` does."""
    for step in range(1, sampler.steps_per_epoch + 1):
        starts = data.starts(sampler.batch(step))
        yield (
            torch.stack([torch.from_numpy(data.tokens[i : i + BLOCK].astype(np.int64)) for i in starts]),
            torch.stack([torch.from_numpy(data.tokens[i + 1 : i + 1 + BLOCK].astype(np.int64)) for i in starts]),
        )


def ours(data: Any, batch: int, *, workers: int, change: Callable[[Any], Any] | None = None) -> Iterator[Any]:
    sampler = ExactSampler(len(data), batch, 1, seed=0)
    loader = Loader(sampler, Fetcher(data, 0, transform=change), range(1), num_workers=workers)
    return loader.micro_batches(1, len(loader))


def theirs(data: Any, batch: int, *, workers: int) -> Iterator[Any]:
    return iter(DataLoader(data, batch_size=batch, shuffle=True, num_workers=workers))


def read(x: Any) -> None:
    for part in x if isinstance(x, tuple) else (x,):
        part.sum()


def rate(batches: Callable[[], Iterator[Any]]) -> float:
    """Return samples per second of a pass, without its first batches."""
    pass_ = batches()
    for x, _ in itertools.islice(pass_, FIRST):
        read(x)
    began, count = time.perf_counter(), 0
    for x, y in pass_:
        read(x)
        count += len(y)
    return count / (time.perf_counter() - began)


def pixels_of(side: int, count: int) -> Tensor:
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def compare(ways: dict[str, Callable[[], Iterator[Any]]], rounds: int, peer: str, what: str, **how: Any) -> Result:
    """Return the record of ours beside the peer, pass by pass in turn."""
    rates = in_turn({name: partial(rate, way) for name, way in ways.items()}, rounds, warm_up=0)
    us, them = rates.values()
    key = slug(" ".join(str(word) for word in (what, *how["settings"].values())))
    return Result.of(key, us, topic="Data", what=what, unit="samples/s", peer=peer, against=them,
                     less_is_better=False, **how)  # fmt: skip


def images(rounds: int, quick: bool) -> Iterator[Result]:
    least = Bar(of="ratio", at_least=1.3)
    for side, (batch, count) in SIZES.items():
        data = Images(pixels_of(side, 2 * FIRST * batch if quick else count))
        peer = partial(theirs, Images(data.pixels, augmented), batch, workers=WORKERS)
        settings = {"side": side, "batch": batch, "loader processes": WORKERS}
        ways = {"ours": partial(ours, data, batch, workers=WORKERS, change=augmented), "peer": peer}
        yield compare(ways, rounds, "torch's DataLoader", "images, a transform per sample", bar=least,
                      settings=settings)  # fmt: skip
        changes = Augment(flip=True, shift=side // 8)
        rows = data.pixels.permute(0, 2, 3, 1).contiguous().numpy()
        whole = Pictures(rows, np.arange(len(data)) % 10, mean=120 / 255, std=60 / 255, augment=changes)
        ways = {"ours": partial(ours, whole, batch, workers=WORKERS), "peer": peer}
        yield compare(ways, rounds, "torch's DataLoader", "images, Pictures with Augment", bar=least, settings=settings)


def tokens(rounds: int, quick: bool) -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.bin"
        np.random.default_rng(0).integers(0, 50_000, 400_000 if quick else 20_000_000).astype(np.uint16).tofile(path)
        crops = unisono.TokenFile(path, vocabulary=50_000).crops(BLOCK, samples=600 if quick else 24_000)
        data, sampler = Places(path), ExactSampler(len(crops), CROPS, 1, seed=0)
        pairs = zip(ours(crops, CROPS, workers=0), numpy_loop(data, sampler), strict=True)
        if not all(
            torch.equal(mine, same) for pair in itertools.islice(pairs, 20) for mine, same in zip(*pair, strict=True)
        ):
            stop("expected the same crops on both sides")
        for workers, bar in ((0, Bar(of="ratio", at_least=0.95)), (WORKERS, None)):
            ways = {"ours": partial(ours, crops, CROPS, workers=workers), "peer": partial(numpy_loop, data, sampler)}
            settings = {"tokens": BLOCK, "batch": CROPS, "loader processes": workers}
            yield compare(ways, rounds, "a NumPy loop", "token crops", bar=bar, settings=settings)
        ends = np.cumsum(np.random.default_rng(0).lognormal(5.5, 1, len(data.tokens) // 400).astype(int) + 1)
        written = np.fromfile(path, np.uint16)
        written[ends[ends < len(written)]] = END
        written.tofile(path)
        rows = unisono.TokenFile(path, cache=folder).packed(BLOCK, end_of_text=END)
        crops = unisono.TokenFile(path).crops(BLOCK, samples=len(rows))
        ways = {"ours": partial(ours, rows, CROPS, workers=0), "peer": partial(ours, crops, CROPS, workers=0)}
        settings = {"tokens": BLOCK, "batch": CROPS, "loader processes": 0}
        yield compare(ways, rounds, "crops", "token rows, documents packed", settings=settings,
                      note="with segments, positions and ignored targets")  # fmt: skip


def plain(rounds: int, quick: bool) -> Iterator[Result]:
    count, batch = 4_000 if quick else 40_000, 128
    settings: dict[str, Any] = {"side": 28, "batch": batch, "loader processes": 0}
    pixels = pixels_of(28, count)
    whole = TensorDataset(pixels.float(), torch.arange(count) % 10)
    ways = {"ours": partial(ours, whole, batch, workers=0), "peer": partial(theirs, whole, batch, workers=0)}
    yield compare(ways, rounds, "torch's DataLoader", "tensors in memory", settings=settings)
    peer = partial(theirs, Images(pixels, augmented), batch, workers=0)
    ways = {"ours": partial(ours, Images(pixels), batch, workers=0, change=augmented), "peer": peer}
    yield compare(ways, rounds, "torch's DataLoader", "images, a transform per sample", settings=settings,
                  note="three generators are keyed for every sample")  # fmt: skip


CELLS = {"images": images, "tokens": tokens, "plain": plain}


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--only", choices=CELLS, action="append", help="these alone; may be repeated")
    given = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    for name in given.only or CELLS:
        save(given, CELLS[name](rounds_of(given), given.quick))


if __name__ == "__main__":
    main()
