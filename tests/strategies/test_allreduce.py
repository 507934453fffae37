"""Averaging by hand: the schedules for real, what is wrong with the naive ring, local SGD, pre-division."""

import pytest
import torch

import unisono
from ranks import run_threads
from strategies.conformance import loss_of, mlp
from strategies.strategy_runs import train
from unisono.collectives.execute import execute
from unisono.collectives.placement import cut
from unisono.collectives.schedules import SCHEDULES, plan, simulate, start
from unisono.errors import ConfigError, RankDivergence

SUMS = ("ring", "naive-ring", "tree", "owner-computes", "halving-doubling", "all-reduce")


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
def test_schedules_played_have_the_bits_of_the_simulation(name, world_size):
    """Every rank ends with what `simulate` says, bit for bit, also where chunks do not divide the buffer."""
    values = [torch.randn(37, generator=torch.Generator().manual_seed(rank)) for rank in range(world_size)]
    schedule = plan(name, world_size)
    parts = cut(37, schedule.num_chunks)

    def program(transport):
        mine = values[transport.rank].clone()
        execute(schedule, mine, transport)
        return mine.tolist()

    found = run_threads(program, world_size)
    held = start(schedule, lambda rank, chunk: values[rank][parts[chunk].start : parts[chunk].stop])
    for rank, end in enumerate(simulate(schedule, held, torch.add)):
        assert found[rank] == torch.cat([end[chunk] for chunk in range(schedule.num_chunks)]).tolist()
    assert name in SCHEDULES


def test_a_schedule_for_other_ranks_is_refused():
    """A schedule knows how many ranks it is for."""
    with pytest.raises(ConfigError, match="schedule for 1 ranks, got one for 3"):
        run_threads(lambda transport: execute(plan("ring", 3), torch.ones(3), transport), 1)


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_naive_ring_lets_ranks_drift_apart_and_says_so(world_size):
    """From 3 ranks on the ranks' weights differ, with a warning; between 2 they do not. The ring keeps them equal."""

    def program(transport, algorithm):
        return train(transport, unisono.strategy("allreduce", algorithm=algorithm), steps=12)["weights"]

    assert len(set(run_threads(program, world_size, "ring"))) == 1
    if world_size == 2:
        assert len(set(run_threads(program, world_size, "naive_ring"))) == 1
        return
    with pytest.warns(UserWarning, match=r"step \d: the naive ring adds in another order on every rank"):
        weights = run_threads(program, world_size, "naive_ring")
    assert len(set(weights)) > 1


def test_ranks_that_drift_apart_otherwise_are_stopped():
    """A rank that changes its weights between steps is named."""
    data = unisono.ArrayDataset(torch.randn(8, 64), torch.arange(8))

    def program(transport):
        with unisono.Run(strategy="allreduce", transport=transport) as run:
            model = mlp()
            front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            for batch in run.steps(run.loader(data, batch_size=4), epochs=2):
                run.step(batch, loss_of(front))
                if batch.step == 2 and run.world.rank == 1:
                    model[1].weight.data[0, 0] += 1

    with pytest.raises(RankDivergence, match="step 3: rank 1"):
        run_threads(program, 2)


def test_the_place_of_the_division_changes_bits_only():
    """Pre-division by 1, by the world size (the default) and by something between agree to rounding."""

    def program(transport, factor):
        return train(transport, unisono.strategy("allreduce", predivide=factor), steps=6)["values"]

    whole, before, after, between = (run_threads(program, 3, factor)[0] for factor in (None, 3, 1, 1.7))
    assert whole == before
    for other in (after, between):
        assert other != whole
        assert torch.allclose(torch.tensor(other), torch.tensor(whole), atol=1e-6)


def test_local_steps_meet_every_few_steps():
    """With sync_every=3 ranks differ between meetings and are equal after them; weights travel with their momentum."""

    def program(transport, sync_every, steps):
        return train(transport, unisono.strategy("allreduce", sync_every=sync_every), steps=steps, settle=False)

    for steps, count in ((2, 2), (3, 1), (4, 2)):
        assert len({found["weights"] for found in run_threads(program, 2, 3, steps)}) == count
    often, seldom = (run_threads(program, 2, every, 6)[0]["bytes"] for every in (1, 3))
    assert 0.6 < seldom / often < 0.7


def test_fp16_scales_losses_and_leaves_out_what_overflows():
    """The first scale overflows in some steps: they change nothing, on all ranks alike; then it trains."""

    def program(transport):
        return train(transport, unisono.strategy("allreduce", amp="fp16"), steps=20, scale=3e4, lr=0.05 / 3e4)

    found = run_threads(program, 2)
    assert found[0]["report"]["skipped_steps"] == found[1]["report"]["skipped_steps"] > 0
    assert found[0]["weights"] == found[1]["weights"]
    assert found[0]["losses"][-1] < found[0]["losses"][0]
