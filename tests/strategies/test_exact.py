"""The exact strategy: the right gradients, with the same bits on any number of ranks, whatever the model does."""

import copy
from dataclasses import replace

import pytest
import torch

from forks import run_forked
from ranks import once, run_threads
from strategies import exact_cases

NAMES = [case.__name__ for case in exact_cases.EVERYWHERE]
ONLY_IN_PROCESS = [case.__name__ for case in exact_cases.IN_PROCESS]


@once
def alone(name):
    """Return a case's report from a world of one."""
    return run_threads(exact_cases.play, 1, name)[0][name]


@once
def launched():
    """Return every rank's report of all cases, from three processes."""
    return run_forked(exact_cases.play, 3)


def check(name, reports, world_size):
    """All claims hold on every rank, and the bits are those of a world of one."""
    assert len(reports) == world_size
    for report in reports:
        assert [claim for claim, is_true in report["claims"].items() if not is_true] == []
        assert report["digest"] == alone(name)["digest"] or name == "drifted"


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.slow), 3, 5])
@pytest.mark.parametrize("name", NAMES + ONLY_IN_PROCESS)
def test_in_one_process(name, world_size):
    """Every case keeps its promise on loopback ranks: see the cases' docstrings."""
    world_size = min(world_size, 3) if name == "constant_buffer" else world_size  # it has three replicas
    ranks = [alone(name)] if world_size == 1 else [r[name] for r in run_threads(exact_cases.play, world_size, name)]
    check(name, ranks, world_size)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_in_three_processes(name):
    """Every case keeps its promise on processes joined by gloo: see the cases' docstrings."""
    check(name, [report[name] for report in launched()], 3)


def test_the_digest_can_differ():
    """Negative control: cases that compute other things have other digests."""
    digests = [alone(name)["digest"] for name in ("plain", "frozen", "groups", "dropout", "bfloat16")]
    assert len(set(digests)) == len(digests)


def test_a_forward_that_knows_its_rank_is_seen():
    """Negative control: where the loss depends on the rank, the bits depend on the world."""

    def program(transport):
        exact_cases.set_determinism(1)
        bench = exact_cases.Bench(transport, exact_cases.mlp())
        bench.train(loss=lambda micro: bench.cross_entropy(micro) * (1 + transport.rank))
        return bench.report()["digest"]

    assert run_threads(program, 1)[0] != run_threads(program, 2)[0]


class _Marked(torch.nn.Module):
    """Writes into a mask that is too large for the report."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.zeros(40, dtype=torch.int64))

    def forward(self, x):
        self.mask.add_(1)
        return x


@pytest.mark.parametrize(("extra", "expected"), [(torch.nn.BatchNorm1d, 0), (lambda _: _Marked(), 1)])
def test_the_report_is_a_steps_last_message(extra, expected):
    """Counters of BatchNorm cost no message of their own; the control, a large mask that changes, costs one."""
    models = [
        torch.nn.Sequential(torch.nn.Linear(6, 8), layer, torch.nn.Linear(8, 4))
        for layer in (torch.nn.Identity(), extra(8))
    ]

    def messages(transport, model):
        bench, counts, gather = exact_cases.Bench(transport, copy.deepcopy(model)), [], transport.all_gather
        transport.all_gather = lambda send, recv: counts.append(gather(send, recv))
        bench.gradients(23)
        transport.all_gather = gather
        return len(counts)

    without, found = run_threads(lambda transport: [messages(transport, model) for model in models], 2)[0]
    assert found - without == expected


def test_another_seed_draws_other_numbers():
    """The run's seed reaches dropout."""

    def draw(seed):
        def program(transport):
            model = torch.nn.Sequential(exact_cases.mlp(), torch.nn.Dropout(0.5))
            bench = exact_cases.Bench(transport, model)
            bench.strategy.context = replace(bench.strategy.context, seed=seed)
            return bench.gradients(23).checksum

        return run_threads(program, 2)[0]

    assert draw(3) == draw(3) != draw(4)
