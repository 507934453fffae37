"""Sources with an order of their own: the same ledger on any number of workers, killed and resumed on others."""

import contextlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from ranks import run_threads
from shard_files import write_numbered_tars
from unisono.collectives.loopback import LoopbackTransport
from unisono.data.sets.augment import Augment
from unisono.data.sets.pictures import Pictures
from unisono.errors import ConfigError, ScoreMismatch


class Killed(BaseException):
    """What ends a run in the middle of a step."""


def pair(sample):
    """Return inputs that a random draw changes, and a target."""
    number = float(sample["cls"])
    return torch.tensor([number / 10, 1.0]) + 0.1 * torch.rand(2), int(number) % 3


class Source:
    """Trains on `make()` in directories below `folder`."""

    def __init__(self, folder, make, plan=None):
        self.folder, self.make, self.plan = folder, make, plan

    def train(self, out, workers, *, epochs=3, stop_after=None, num_workers=0, seed=0):
        """Return ledger and fingerprint; after `stop_after` steps the next one is killed, on all ranks."""

        def program(transport):
            run = unisono.Run(seed=seed, replicas=5, out=self.folder / out, transport=transport, checkpoint_every=2)
            model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.2), nn.Linear(4, 3))
            run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            loader = run.loader(
                self.make(), batch_size=6, transform=pair, plan=self.plan, num_workers=num_workers, prefetch=1
            )
            for batch in run.steps(loader, epochs=epochs):
                if batch.step == stop_after:
                    with contextlib.suppress(Killed):
                        run.step(batch, self.die)
                    break
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            return run.fingerprint()

        # one rank in the main thread, from which its loader processes are forked
        fingerprints = run_threads(program, workers) if workers > 1 else [program(LoopbackTransport())]
        assert len(set(fingerprints)) == 1
        return (self.folder / out / "ledger.jsonl").read_text(), fingerprints[0]

    @staticmethod
    def die(micro):
        raise Killed


@pytest.fixture
def shards(tmp_path):
    folder = write_numbered_tars(tmp_path / "tars", [4, 5, 6, 7])
    return lambda: unisono.Shards(folder, window=2, cache=tmp_path / "cache")


@pytest.fixture
def source(request, shards, tmp_path):
    if request.param == "mixture":
        more = [{"cls": number} for number in range(100, 109)]
        return Source(tmp_path, lambda: unisono.Mixture([(shards(), 2), (more, 1)], num_samples=22))
    plan = unisono.Weighted([number % 5 for number in range(22)]) if request.param == "weighted" else None
    return Source(tmp_path, shards, plan)


@pytest.mark.parametrize(
    "source", ["shards", "mixture", pytest.param("weighted", marks=pytest.mark.slow)], indirect=True
)
def test_any_number_of_workers(source):
    """One ledger; another seed is another run."""
    ledger, fingerprint = source.train("one", 1)
    assert len(ledger.splitlines()) == 12
    for workers in (2, 3):
        assert source.train(f"{workers}", workers) == (ledger, fingerprint)
    assert source.train("other", 1, seed=1, epochs=1)[0].splitlines() != ledger.splitlines()[:4]


@pytest.mark.parametrize(
    "source",
    ["shards", *(pytest.param(name, marks=pytest.mark.slow) for name in ("weighted", "mixture"))],
    indirect=True,
)
def test_loader_processes(source):
    """Two of them make what the rank would."""
    assert source.train("forked", 1, epochs=1, num_workers=2) == source.train("calm", 1, epochs=1)


@pytest.mark.parametrize(
    ("source", "stop_after"),
    [
        ("mixture", 7),
        *(
            pytest.param(source, step, marks=pytest.mark.slow)
            for source in ("shards", "weighted", "mixture")
            for step in (2, 3, 5, 6)
        ),
    ],
    indirect=["source"],
)
def test_killed_and_resumed_on_others(source, stop_after):
    """In the middle of a step, on 3 workers, then on 1, then on 2: as if nothing had been."""
    expected = source.train("calm", 1)
    source.train("killed", 3, stop_after=stop_after)
    source.train("killed", 1, stop_after=stop_after + 2)
    assert source.train("killed", 2) == expected


def test_a_run_goes_on_with_its_own_shards_only(shards, tmp_path):
    """The score names the shard that has changed, and the window."""
    source = Source(tmp_path, shards)
    source.train("run", 1, epochs=1)
    other = Source(tmp_path, lambda: unisono.Shards(tmp_path / "tars", window=3, cache=tmp_path / "cache"))
    with pytest.raises(ScoreMismatch, match=r"data\.plan\.window: 2 -> 3"):
        other.train("run", 1)
    path = tmp_path / "tars" / "part-02.tar"
    content = bytearray(path.read_bytes())
    content[600] ^= 1
    path.write_bytes(content)
    with pytest.raises(ScoreMismatch, match=r"part-02\.tar"):
        source.train("run", 1)


def test_augmentation_is_not_lost_beside_a_transform():
    """`Pictures` augment whole micro-batches; a transform gets single images as they are."""
    images = np.zeros((8, 4, 4), np.uint8)
    with unisono.Run(seed=0, replicas=2) as run:
        for how in ({"transform": tuple}, {"collate": tuple}):
            run.loader(Pictures(images, np.zeros(8, np.int64)), batch_size=4, **how)
            augmented = Pictures(images, np.zeros(8, np.int64), augment=Augment(flip=True))
            with pytest.raises(ConfigError, match="a Pictures changes whole micro-batches at random, which transform="):
                run.loader(augmented, batch_size=4, **how)
