"""Micro-batches travel through slots with the same bits, types and aliases, and a slot is never lent while in use."""

import gc
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from unisono.data import loader as loading
from unisono.data.loader import Fetcher, Task, fetch_all
from unisono.data.slots import Slots


class Rows:
    """Sample i is a row of i, with a number that names it."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((5,), float(index)), index


class Named(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def tasks(count):
    return [Task(0, np.arange(step % 16 * 4, step % 16 * 4 + 4)) for step in range(count)]


def through(batch, slots=None):
    """Return a batch as the rank gets it, without a process between."""
    slots = slots or Slots(1)
    slots.begin(slots.lend())
    return slots.open(slots.park(batch))


def test_a_slot_is_lent_again_when_its_tensors_are_gone():
    """Not before: also a view or a NumPy array of one of them keeps it."""
    slots = Slots(1)
    batch = through({"x": torch.arange(6.0), "y": torch.arange(3)}, slots)
    assert slots.lend() == -1
    kept = batch["x"].view(2, 3)[1].numpy()
    del batch
    gc.collect()
    assert slots.lend() == -1
    assert kept.tolist() == [3.0, 4.0, 5.0]
    del kept
    gc.collect()
    assert slots.lend() == 0


def test_what_is_in_use_is_not_written_over(monkeypatch):
    """A rank that keeps everything gets memory of its own for each; the control lends what is in use."""
    kept = list(fetch_all(Fetcher(Rows(), 0), tasks(60), num_workers=2))
    wanted = [task.indices.tolist() for task in tasks(60)]
    assert [batch.x[:, 0].int().tolist() for batch in kept] == [batch.y.tolist() for batch in kept] == wanted
    monkeypatch.setattr(Slots, "lend", lambda self: 0)
    spoilt = list(fetch_all(Fetcher(Rows(), 0), tasks(60), num_workers=2))
    assert [batch.y.tolist() for batch in spoilt] != wanted


def test_tensors_come_as_they_were():
    """Types, strides, offsets, aliases; containers and whatever is no tensor stay what they are."""
    x = torch.arange(24.0).view(2, 3, 4)
    batch = {
        "same": [x, x], "view": x.transpose(0, 2), "part": x[1], "named": Named(torch.tensor(True), torch.empty(0, 3)),
        "half": torch.ones(3, dtype=torch.bfloat16), "scalar": torch.tensor(7), "text": ("a", None, 3),
        "last": torch.arange(36).view(1, 3, 3, 4).contiguous(memory_format=torch.channels_last),
    }  # fmt: skip
    got = through(batch)
    assert got["same"][0] is got["same"][1]
    for mine, theirs in [(got[name], batch[name]) for name in ("view", "part", "half", "scalar", "last")]:
        assert torch.equal(mine, theirs)
        assert (mine.dtype, mine.stride(), mine.storage_offset()) == (
            theirs.dtype,
            theirs.stride(),
            theirs.storage_offset(),
        )
        assert mine.untyped_storage().data_ptr() % 64 == 0
    assert type(got["named"]) is Named
    assert got["named"].right.shape == (0, 3)
    assert got["text"] == ("a", None, 3)
    got["same"][0][1] = -1  # all of them are views of one storage
    assert (got["part"] == -1).all()
    assert (got["view"][:, :, 1] == -1).all()
    assert x[1, 0, 0] == 12


def test_what_is_no_plain_memory_travels_as_it_is():
    """Sparse tensors, tensors with a gradient, and a small part of much are left to torch."""
    much = torch.zeros(1000)
    odd = [torch.eye(3).to_sparse(), torch.ones(2, requires_grad=True), much[:3]]
    slots = Slots(1)
    assert all(mine is theirs for mine, theirs in zip(through(odd, slots), odd, strict=True))
    assert slots.lend() == 0


class Mixed(Rows):
    """Its samples have two types."""

    def __getitem__(self, index):
        return torch.zeros(2, dtype=torch.float64 if index % 2 else torch.float32), index


@pytest.mark.parametrize("has_slots", [True, False])
def test_samples_of_two_types_are_collated_alike(monkeypatch, has_slots):
    """A loader process promotes them as the rank itself does."""
    monkeypatch.setattr(loading.Slots, "make", Slots.make if has_slots else lambda count: None)
    for count in (0, 1):
        (batch,) = fetch_all(Fetcher(Mixed(), 0), tasks(1), num_workers=count)
        assert batch.x.dtype == torch.float64


def num_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_pass_leaves_no_descriptor():
    """The memory has no name, and is closed with the pass."""
    list(fetch_all(Fetcher(Rows(), 0), tasks(8), num_workers=1))  # whatever is opened once
    gc.collect()
    before = num_descriptors()
    for _ in range(5):
        list(fetch_all(Fetcher(Rows(), 0), tasks(8), num_workers=1))
    gc.collect()
    assert num_descriptors() < before + 5  # the last pass's queues may close in a moment
