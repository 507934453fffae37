"""A loss over the whole batch: that of one big batch, with the same bits on any number of ranks."""

import functools
import re

import pytest
import torch

import unisono
from forks import run_forked
from ranks import once, run_threads
from strategies import whole_batch_cases as cases
from unisono.collectives.loopback import LoopbackTransport

NAMES = [case.__name__ for case in cases.EVERYWHERE]


@once
def alone(name):
    """Return a case's report from a world of one."""
    return run_threads(cases.play, 1, name)[0][name]


def check(name, reports, world_size):
    """All claims hold on every rank, and the bits are those of a world of one."""
    assert len(reports) == world_size
    for report in reports:
        assert [claim for claim, is_true in report["claims"].items() if not is_true] == []
        assert report["digest"] == alone(name)["digest"]


@pytest.mark.parametrize("world_size", [1, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5))])
@pytest.mark.parametrize("name", [*NAMES, *(case.__name__ for case in cases.IN_PROCESS)])
def test_in_one_process(name, world_size):
    """Every case keeps its promise on loopback ranks: see the cases' docstrings."""
    check(name, [report[name] for report in run_threads(cases.play, world_size, name)], world_size)


@pytest.mark.slow
def test_in_processes():
    """The same on processes, through messages; gradients may leave meanwhile."""
    reports = run_forked(cases.over_messages, 3)
    for name in NAMES:
        check(name, [report[name] for report in reports], 3)


def test_placements_agree_and_digests_can_differ():
    """Most replicas on one rank gives the even placement's bits; negative control: other cases have other digests."""
    assert alone("uneven")["digest"] == alone("contrastive")["digest"]
    names = ("contrastive", "as_one_batch", "forms", "proxies", "encoders", "rounded")
    assert len({alone(name)["digest"] for name in names}) == len(names)


LEGS = ((3, 4), (1, 7), (2, None))
"""Ranks, and the step after which they leave."""


def test_resumed_on_other_numbers_of_ranks(tmp_path):
    """Clipped, left and resumed on other ranks, a step skipped for NaN: the ledger of a run in one go, alone."""
    settings = {"clip_norm": 0.1, "non_finite": "skip", "poison": 6, "checkpoint_every": 3}
    train = functools.partial(cases.train, **settings)
    whole = run_threads(train, 1, str(tmp_path / "whole"), None)[0]
    legs = [run_threads(train, ranks, str(tmp_path / "legs"), until) for ranks, until in LEGS]
    assert [len(rank["told"]) for leg in legs for rank in leg] == [4, 4, 4, 3, 3, 3]
    assert {(rank["fingerprint"], rank["ledger"]) for rank in legs[-1]} == {(whole["fingerprint"], whole["ledger"])}
    assert whole["ledger"].count("skipped") == 1
    assert len({loss for _, loss in whole["told"]}) == 10


def test_with_loader_processes(tmp_path):
    """The rank holds its micro-batches, which other processes have fetched, until the second pass."""
    forked = cases.train(LoopbackTransport(), str(tmp_path / "forked"), None, num_workers=1)  # from the main thread
    assert forked == run_threads(cases.train, 1, str(tmp_path / "alone"), None)[0]


@pytest.mark.parametrize(
    ("strategy", "embed", "words"),
    [
        (unisono.strategy("allreduce"), lambda micro: micro.x, "got strategy allreduce. Hint: Run(strategy='exact')"),
        (unisono.strategy("fsdp"), lambda micro: micro.x, "got strategy fsdp. Hint: Run(strategy='exact')"),
        (
            unisono.strategy("exact", island_steps=2),
            lambda micro: micro.x,
            "got strategy exact with island_steps",
        ),
        (unisono.strategy("exact"), "model", "expected a function as embed, got str. Hint: embed=lambda micro"),
    ],
)
def test_who_cannot_go_over_a_batch_twice_says_so(strategy, embed, words):
    """Other strategies, islands, and what is no function are refused by name, with the way out."""

    def program(transport):
        with unisono.Run(replicas=2, strategy=strategy, transport=transport) as run:  # fsdp has a group to be left
            layer = torch.nn.Linear(6, 4)
            run.prepare(layer, torch.optim.SGD(layer.parameters()))
            batch = next(run.steps(run.loader(unisono.ArrayDataset(*cases.samples(8)), batch_size=8), epochs=1))
            run.step(batch, lambda rows: rows.var(), embed=embed)

    with pytest.raises(unisono.ConfigError, match=re.escape(words)):
        run_threads(program, 1)
