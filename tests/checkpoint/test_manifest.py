"""What a manifest says of its files: hashes by what they are over."""

import hashlib

import torch
from torch.nn import functional as F

import unisono
from ranks import run_threads
from unisono.checkpoint.files import FileSum
from unisono.checkpoint.manifest import Facts, Manifest
from unisono.checkpoint.store import list_steps, verify


def train(transport, out):
    """Train three steps with Adam."""
    with unisono.Run(seed=0, replicas=3, out=out, transport=transport or "auto") as run:
        model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Linear(16, 4))
        model, optimizer = run.prepare(model, torch.optim.Adam(model.parameters()))
        data = unisono.ArrayDataset(torch.ones(9, 6), torch.arange(9) % 4)
        for batch in run.steps(run.loader(data, batch_size=3), epochs=1):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        assert optimizer.state


def hashes_of(out):
    (_, newest), *_ = list_steps(out / "checkpoints")
    return verify(newest).hashes


def test_weights_and_optimizer_have_hashes_of_their_own(tmp_path):
    """On one rank and on three they are equal, and those of the files."""
    found = []
    for world_size in (1, 3):
        run_threads(train, world_size, tmp_path / str(world_size))
        found.append(hashes_of(tmp_path / str(world_size)))
    alone, together = found
    assert alone == together
    assert alone.keys() == {"model", "optimizer", "state"}
    (_, newest), *_ = list_steps(tmp_path / "1" / "checkpoints")
    content = (newest / "model.safetensors").read_bytes()
    assert alone["model"] == hashlib.sha256(content).hexdigest()


def test_a_part_that_differs_changes_the_hash():
    """Any of several parts counts, and so does their order; state.json is the plain values."""
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")

    def hashes(first, second):
        files = {
            names[0]: FileSum(1, first * 64),
            names[1]: FileSum(1, second * 64),
            "state.json": FileSum(1, "c" * 64),
        }
        return Manifest(step=1, files=files, facts=Facts()).hashes

    assert hashes("a", "b").keys() == {"model", "state"}
    assert hashes("a", "b")["state"] == "c" * 64
    assert len({hashes(*pair)["model"] for pair in ("ab", "ba", "aa")}) == 3
