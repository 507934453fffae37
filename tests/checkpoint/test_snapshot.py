"""A snapshot keeps a moment's values, whoever writes to the live tensors before they have been copied."""

import io
import threading

import numpy as np
import pytest
import torch
from torch import nn

from unisono.checkpoint import snapshot
from unisono.checkpoint.snapshot import Snapshot, shared
from unisono.checkpoint.staging import Staging
from unisono.determinism.switches import address_of, checksum

LARGE = 1 << 18  # numbers: 1 MB

WRITERS = {
    "in place": lambda live: live.detach().mul_(2),
    ".data": lambda live: live.data.add_(1),
    "one number": lambda live: live.detach().__setitem__(3, 9.0),
    "another tensor": lambda live: setattr(live, "data", torch.zeros(LARGE)),
    "numpy": lambda live: live.detach().numpy().fill(5),
    "dlpack": lambda live: np.from_dlpack(live.detach()).fill(5),
    "foreach": lambda live: torch._foreach_mul_([live.data], 3.0),
    "storage": lambda live: live.untyped_storage().fill_(0),
    "shared": lambda live: live.share_memory_().data.add_(1),
}


def live_tensors():
    generator = torch.Generator().manual_seed(0)
    return {
        "w": nn.Parameter(torch.randn(LARGE, generator=generator)),
        "b": nn.Parameter(torch.randn(7, generator=generator)),
    }


def taken(live, restless=None, recorded=None):
    """Return a snapshot of live tensors, as a save makes it: of aliases."""
    files = {"model.safetensors": {name: tensor.detach() for name, tensor in live.items()}}
    found = Snapshot(files, Staging(), set() if restless is None else restless, recorded)
    return found, {name: tensor.detach().clone() for name, tensor in live.items()}


def recorded_of(live):
    return {("model", name): tensor for name, tensor in live.items()}


def are_equal(copies, wanted):
    return all(torch.equal(copies["model.safetensors"][name], value) for name, value in wanted.items())


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_whoever_writes(write):
    """Whatever way torch knows a tensor is written to by, before the copy or after it: the moment's values are kept."""
    for is_early in (True, False):
        live = live_tensors()
        held, wanted = taken(live, recorded=recorded_of(live))
        copies = None if is_early else held.copied()
        for tensor in live.values():
            if tensor is live["w"] or write is not WRITERS["another tensor"]:
                write(tensor)
        assert not torch.equal(live["w"].detach(), wanted["w"])
        assert are_equal(copies or held.copied(), wanted)


def test_without_copy_on_write_the_write_shows(monkeypatch):
    """The control: a snapshot that only remembers the tensors has what was written afterwards."""
    monkeypatch.setattr(snapshot, "shared", lambda tensor: tensor.detach() if tensor.nbytes > 1000 else None)
    live = live_tensors()
    held, wanted = taken(live, recorded={})
    live["w"].data.add_(1)
    assert not are_equal(held.copied(), wanted)


def test_nothing_is_copied_before_its_time():
    """A large tensor of which nobody else holds the memory stays where it is, before and after; it costs no copy."""
    live = live_tensors()
    where = address_of(live["w"])
    held, wanted = taken(live, recorded={})
    assert torch._C._is_cow_tensor(live["w"])
    assert are_equal(held.copied(), wanted)
    held.release()
    live["w"].data.add_(1)
    assert address_of(live["w"]) == where


def test_a_torch_without_copy_on_write(monkeypatch):
    """Everything is copied at once, and right."""
    monkeypatch.setattr(snapshot, "CAN_SHARE", False)
    live = live_tensors()
    held, wanted = taken(live, recorded={})
    assert not torch._C._is_cow_tensor(live["w"])
    live["w"].data.add_(1)
    assert are_equal(held.copied(), wanted)


def test_memory_that_others_hold_is_copied_at_once():
    """An array or an alias made before could be written to unseen: the copy is made before the snapshot returns."""
    for hold in (
        lambda tensor: tensor.detach().numpy(),
        lambda tensor: tensor.data,
        lambda tensor: tensor.detach()[5:],
    ):
        live = live_tensors()
        alias = hold(live["w"])
        held, wanted = taken(live, recorded={})
        assert not torch._C._is_cow_tensor(live["w"])
        alias[:] = 0
        assert are_equal(held.copied(), wanted)
    live = {"w": torch.from_numpy(np.ones(LARGE)), "b": torch.ones(LARGE).share_memory_()}
    held, wanted = taken(live, recorded={})
    for tensor in live.values():
        tensor.fill_(3)
    assert are_equal(held.copied(), wanted)


def test_what_is_written_early_is_copied_at_once_the_next_time():
    """What had to move to new memory before `release` costs more than a copy, so it is not shared again."""
    live, restless = live_tensors(), set()
    for _ in range(2):
        held, wanted = taken(live, restless, recorded={})
        live["w"].data.add_(1)
        assert are_equal(held.copied(), wanted)
        held.release()
    assert restless == {("model", "w")}
    held, _ = taken(live, restless, recorded={})
    assert not torch._C._is_cow_tensor(live["w"])


def test_release_waits_for_the_copy():
    """`release` returns only when everything has been copied, or copying has failed; its error is not swallowed."""
    live = live_tensors()
    held, wanted = taken(live, recorded={})
    waiter = threading.Thread(target=held.release)
    waiter.start()
    assert waiter.is_alive()
    copies = held.copied()
    waiter.join(60)
    assert not waiter.is_alive()
    live["w"].data.zero_()
    assert are_equal(copies, wanted)
    held, _ = taken(live, recorded={})
    held._staging.put = lambda *_: (_ for _ in ()).throw(MemoryError)
    with pytest.raises(MemoryError):
        held.copied()
    held.release()


def test_the_ledgers_word():
    """A copy that is not what the step began with is noticed; one made before the program changed weights is none."""
    live = live_tensors()
    held, _ = taken(live, recorded=recorded_of(live))
    held.copied()
    assert not held.differs()  # nothing is known
    held.expect(checksum(live.values()))
    assert not held.differs()
    held.expect(checksum(live.values()) + 1)
    assert held.differs()
    assert not held.differs(others=1)
    for name in live:  # changed since, as anybody could see: no word, and the copy is right
        live = live_tensors()
        held, wanted = taken(live, recorded=recorded_of(live))
        live[name].data.add_(1)
        held.expect(checksum(live.values()))
        assert are_equal(held.copied(), wanted)
        assert not held.differs()


def test_saving_a_model_meanwhile():
    """A program may save, copy and compute with what a snapshot holds."""
    model = nn.Sequential(nn.Linear(512, 512), nn.BatchNorm1d(512), nn.LSTM(512, 512))
    live = {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if tensor.is_floating_point()}
    plain = model(torch.ones(3, 512))[0]
    held, wanted = taken(live, recorded={})
    torch.save(model.state_dict(), io.BytesIO())
    found = model(torch.ones(3, 512))[0]
    found.sum().backward()
    assert torch.equal(plain, found)
    assert are_equal(held.copied(), wanted)
    assert shared(torch.ones(3)) is None
