"""What is done because a loader process is a fork: one thread, and the rank's garbage left alone."""

import gc
import multiprocessing
import os

import pytest
import torch

from unisono.data.loader import Fetcher, Task, fetch_all


class Heavy:
    """Its one sample keeps as many threads busy as there may be, and says how many that is."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        threads = torch.get_num_threads()
        return torch.ones(1 << 20).mul(2).sum(), threads


@pytest.fixture
def two_threads():
    """Two threads, both of them at work already."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.ones(1 << 20).mul(2).sum()
    yield
    torch.set_num_threads(before)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_samples_are_computed_with_one_thread(two_threads, num_workers):
    """A forked worker would wait for ever for a second one, and without workers a transform has the same bits."""
    (batch,) = fetch_all(Fetcher(Heavy(), 0), [Task(0, torch.tensor([0]))], num_workers=num_workers)
    assert (batch.x.item(), batch.y.item()) == (1 << 21, 1)
    assert torch.get_num_threads() == 2


class Collecting:
    """Its one sample is the process that fetches it, and whether that one collects garbage of its own."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        is_on = gc.isenabled()
        gc.collect()
        return torch.tensor(os.getpid()), is_on


EAGER = {"is": False}
os.register_at_fork(after_in_child=lambda: gc.set_threshold(1) if EAGER["is"] else None)


@pytest.fixture(params=[True, False])
def collects(request, monkeypatch):
    """Whether garbage is collected: here seldom, in a forked process with every object it makes."""
    before, threshold = gc.isenabled(), gc.get_threshold()
    gc.collect()
    gc.set_threshold(1_000_000)
    (gc.enable if request.param else gc.disable)()
    monkeypatch.setitem(EAGER, "is", True)
    yield request.param
    gc.set_threshold(*threshold)
    (gc.enable if before else gc.disable)()


def test_workers_leave_the_ranks_garbage_alone(collects):
    """What the rank has not collected yet, a store with a thread, is not destroyed where there is no such thread."""
    destroyed = multiprocessing.get_context("fork").Value("i", 0)

    class Store:
        def __init__(self):
            self.me = self

        def __del__(self):
            destroyed.value = os.getpid()

    Store()
    (batch,) = fetch_all(Fetcher(Collecting(), 0), [Task(0, torch.tensor([0]))], num_workers=1)
    assert batch.x.item() != os.getpid()
    assert batch.y.item() == gc.isenabled() == collects
    assert destroyed.value == 0
    gc.collect()
    assert destroyed.value == os.getpid()


def test_a_sample_that_fails_leaves_the_threads(two_threads):
    """Training goes on with its own number of them."""
    with pytest.raises(KeyError):
        Fetcher({0: 1.0}, 0)[Task(0, torch.tensor([7]))]
    assert torch.get_num_threads() == 2
