"""Training on a file of tokens: the same bits on 1, 2 and 3 workers, with loader processes, and after SIGKILL."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from ranks import run_threads
from unisono.collectives.loopback import LoopbackTransport
from unisono.data.loader import Fetcher, Task

EXAMPLE = Path(__file__).parents[3] / "examples" / "token_file.py"
END, LENGTH = 0, 12


class Bigrams(nn.Module):
    """From a token, and how far it stands from its document's begin, to the next: enough to see every number."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50, 8), nn.Embedding(LENGTH, 8)
        self.read = nn.Linear(8, 50)

    def forward(self, x):
        """Return logits."""
        if isinstance(x, tuple):
            return self.read(self.tokens(x.tokens) + self.positions(x.positions))
        return self.read(self.tokens(x))


class KeyedByRank:
    """The control: samples that depend on who fetches them."""

    def __init__(self, data, rank):
        self.data, self.rank = data, rank

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]

    def fetch_keyed(self, indices, *, seed, epoch):
        return self.data.fetch_keyed(indices, seed=seed + self.rank, epoch=epoch)


def train(transport, path, kind, loaders=0, *, is_wrong=False):
    """Train two epochs as one rank; return the fingerprint."""
    tokens = unisono.TokenFile(path, vocabulary=50)
    kinds = {"crops": tokens.crops(LENGTH), "packed": tokens.packed(LENGTH, end_of_text=END)}
    data = unisono.Mixture({kinds["crops"]: 3, tokens.rows(LENGTH): 1}) if kind == "mixed" else kinds[kind]
    run = unisono.Run(seed=0, replicas=4, transport=transport)
    model, _ = run.prepare(model := Bigrams(), torch.optim.SGD(model.parameters(), lr=0.5))
    loader = run.loader(KeyedByRank(data, run.world.rank) if is_wrong else data, batch_size=10, num_workers=loaders)
    for batch in run.steps(loader, epochs=2):
        run.step(batch, lambda micro: F.cross_entropy(model(micro.x).flatten(0, 1), micro.y.flatten()))
    return run.fingerprint()


@pytest.fixture
def path(tmp_path):
    """60 documents."""
    drawn = np.random.default_rng(0)
    texts = [[*drawn.integers(1, 50, size), END] for size in drawn.integers(1, 30, 60)]
    np.concatenate(texts).astype(np.uint16).tofile(tmp_path / "train.bin")
    return tmp_path / "train.bin"


@pytest.mark.parametrize("kind", ["crops", "packed", "mixed"])
def test_equal_bits_on_every_number_of_workers(path, kind):
    """1, 2 and 3 ranks, and a loader process, end with one fingerprint; a control that knows its rank does not."""
    (alone,) = run_threads(train, 1, path, kind)
    assert train(LoopbackTransport(), path, kind, 1) == alone  # forked from the main thread, as ranks do
    for world_size in (2, 3):
        assert run_threads(train, world_size, path, kind) == [alone] * world_size


def test_samples_that_know_their_rank_are_noticed(path, monkeypatch):
    """In the first step, if nobody looks before it; other bits, if nobody does there either."""
    monkeypatch.setattr("unisono.train.score.first_samples", lambda loader: {})
    with pytest.raises(unisono.StepError, match="replica 0 has other samples on rank 1 than on rank 0"):
        run_threads(lambda transport: train(transport, path, "crops", is_wrong=True), 2)
    monkeypatch.setattr("unisono.strategies.witness.first_loss.FirstLoss.compute", lambda *_: None)
    (alone,) = run_threads(train, 1, path, "crops")
    found = run_threads(lambda transport: train(transport, path, "crops", is_wrong=True), 2)
    assert set(found) != {alone}


def test_a_mixture_draws_crops_anew_in_every_pass(path):
    """A sample that comes round again is another crop; in an evaluation it is always the same."""
    data = unisono.Mixture({unisono.TokenFile(path).crops(LENGTH, samples=4): 1})
    fetcher = Fetcher(data, seed=0)
    passes = [fetcher[Task(np.array([epoch] * 4), np.arange(4))].x for epoch in (0, 1, 0)]
    assert torch.equal(passes[0], passes[2])
    assert not any(torch.equal(a, b) for a, b in zip(passes[0], passes[1], strict=True))
    assert torch.equal(fetcher[Task(-1, np.arange(4))].x, fetcher[Task(-1, np.arange(4))].x)


def test_the_score_names_the_file(path, tmp_path):
    """A run directory is not gone on with when the file's content is another."""

    def start():
        run = unisono.Run(seed=0, replicas=1, out=tmp_path / "run")
        with run:
            model, _ = run.prepare(model := Bigrams(), torch.optim.SGD(model.parameters(), lr=0.5))
            loader = run.loader(unisono.TokenFile(path).crops(LENGTH), batch_size=10)
            for batch in run.steps(loader, epochs=1, max_steps=2):
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x).flatten(0, 1), micro.y.flatten()))

    start()
    score = json.loads((tmp_path / "run" / "score.json").read_text())
    assert score["data"]["fingerprint"].startswith(f"uint16 blocks {path.stat().st_size}-")
    assert score["data"]["fingerprint"].endswith(" length=12 crops")
    tokens = np.fromfile(path, np.uint16)
    tokens[5] += 1
    tokens.tofile(path)
    with pytest.raises(unisono.ScoreMismatch, match="fingerprint"):
        start()


@pytest.mark.slow
def test_killed_and_resumed_on_other_workers(tmp_path):
    """The example under SIGKILL of a worker and another number of workers: ledgers and fingerprint of a calm run."""
    command = [sys.executable, "-m", "unisono", "chaos", str(EXAMPLE), "-n", "2", "--replicas", "4", "--kills", "2"]
    command += ["--fault", "kill-worker", "--fault", "resize", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
