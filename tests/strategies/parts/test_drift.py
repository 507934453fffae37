"""A comparison of weights names the rank, the first parameter and the step, alike on all ranks."""

import warnings

import pytest
import torch
from torch import nn

import unisono
from ranks import run_threads
from unisono.collectives.loopback import LoopbackTransport, run_ranks
from unisono.errors import RankDivergence
from unisono.strategies.parts.drift import compare_now


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def flip(tensor, bit=0):
    """Flip one bit of a tensor's last element."""
    with torch.no_grad():
        tensor.view(-1).view(torch.int32 if tensor.dtype == torch.float32 else tensor.dtype)[-1] ^= 1 << bit


def watch(world_size, harm, *, every=1, steps=3):
    """Let `harm` (rank, step, model) do its worst before each check and return what every rank hears."""

    def program(transport):
        model = build()
        for step in range(1, steps + 1):
            harm(transport.rank, step, model)
            try:
                if step % every == 0:
                    compare_now(model, transport, step)
            except RankDivergence as error:
                return str(error)
        return ""

    return run_ranks(program, world_size)


def test_equal_weights_pass():
    """Nothing is said while all ranks are alike, even if they all change."""
    assert watch(3, lambda rank, step, model: flip(model[0].weight)) == [""] * 3


@pytest.mark.parametrize("bit", [0, 13, 30])
@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_one_flipped_bit(culprit, bit):
    """One bit of one weight on one of three ranks: that rank, that parameter, that step, on all ranks."""

    def harm(rank, step, model):
        if (rank, step) == (culprit, 2):
            flip(model[2].weight, bit)

    texts = watch(3, harm)
    assert len(set(texts)) == 1
    assert f"step 2: rank {culprit} holds other weights than the others, first in" in texts[0]
    assert "first in '2.weight' (1 of 9 tensors)" in texts[0]
    assert "Hint:" in texts[0]


def test_the_first_parameter_in_the_models_order():
    """With several wrong ones the first is named, with the number of them; buffers count too."""

    def harm(rank, step, model):
        if rank == 1:
            flip(model[2].bias)
            flip(model[1].num_batches_tracked)
            flip(model[0].bias)

    assert "step 1: rank 1 holds other weights than the others, first in" in watch(3, harm)[0]
    assert "first in '0.bias' (3 of 9 tensors)" in watch(3, harm)[0]


def test_two_wrong_ranks_are_both_named():
    """The most frequent state is taken for the right one."""

    def harm(rank, step, model):
        if rank >= 3:
            flip(model[0].weight, rank)

    text = watch(5, harm)[0]
    assert "rank 3 holds other" in text
    assert "So does rank 4." in text


def test_between_two_the_leader_is_taken_for_right():
    """Two ranks cannot be outvoted: rank 1 is named."""
    assert (
        "rank 1 holds other weights"
        in watch(2, lambda rank, step, model: flip(model[0].weight) if rank == 0 else None)[0]
    )


def test_every_so_many_steps():
    """Between checks nothing is compared; the next check finds it. One rank alone never differs."""

    def harm(rank, step, model):
        if (rank, step) == (1, 1):
            flip(model[0].weight)

    assert watch(2, harm, every=3)[0].startswith("step 3: ")
    assert watch(2, harm, every=4) == ["", ""]
    compare_now(build(), LoopbackTransport(), 1)


def _evaluating(transport, culprit, options):
    """Train a model with dropout, which rank `culprit` leaves in evaluation mode after step 2; return what is told."""
    strategy = unisono.strategy("allreduce") if options is None else unisono.strategy("exact", **options)
    with unisono.Run(seed=0, replicas=2, transport=transport, strategy=strategy) as run:
        model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5))
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = run.loader(unisono.ArrayDataset(torch.ones(16, 3)), batch_size=4)
        for batch in run.steps(loader, epochs=1):
            try:
                run.step(batch, lambda micro: model(micro[0]).sum())
            except RankDivergence as error:
                return str(error)
            if (batch.step, transport.rank) == (2, culprit):
                model.eval()
        return ""


@pytest.mark.parametrize("options", [{}, {"island_steps": 4}, None], ids=["exact", "islands", "allreduce"])
def test_a_rank_that_is_left_in_evaluation_mode(options):
    """Its weights stay those of the others, and the result would depend on who evaluates: named in the next step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (told,) = {*run_threads(_evaluating, 2, 1, options)}
        assert "step 3: the model of rank 1 is in evaluation mode, those of the others in training mode" in told
        assert run_threads(_evaluating, 2, None, options) == [""] * 2
