"""Runs with a witness: the same ledger, an end that names who is wrong, refusals that name the way out."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from ranks import run_threads
from train.live_programs import REPLICAS, WRONG_FROM
from train.steps.test_membership import check, play, undisturbed
from unisono.collectives.placement import place_whole
from unisono.compat.accelerate import Accelerator
from unisono.errors import ConfigError, PeerLost, RankDivergence
from unisono.strategies.witness.choice import choose


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def data():
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(53, 6, generator=generator), torch.randint(0, 3, (53,), generator=generator)
    return unisono.ArrayDataset(x.numpy(), y.numpy())


def noisy(sample):
    return sample[0] + 0.1 * torch.randn(6), sample[1]


def train(transport, out, witness, wrong=None, workers=0, **settings):
    """Train four steps; the rank `wrong` computes another loss from the third on."""
    with unisono.Run(seed=2, replicas=4, out=out, transport=transport, witness=witness, **settings) as run:
        model = net()
        run.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
        loader = run.loader(data(), batch_size=20, transform=noisy, num_workers=workers, last="join")
        for batch in run.steps(loader, epochs=9, max_steps=4):
            factor = 1.001 if batch.step > 2 and transport.rank == wrong else 1.0
            run.step(batch, lambda micro, factor=factor: F.cross_entropy(model(micro.x), micro.y) * factor)
        return run.fingerprint(), run.result()


@pytest.mark.parametrize(
    ("world_size", "witness", "how"),
    [(2, 1.0, {}), (3, 1.0, {}), (3, 0.3, {}), (2, 1.0, {"strategy": unisono.strategy("exact", compress="bf16")})],
)
def test_the_bits_are_those_without(world_size, witness, how, tmp_path):
    """Ledger and fingerprint, with dropout, BatchNorm, a random transform, and gradients that are rounded."""
    ((mark, plain),) = run_threads(lambda transport: train(transport, tmp_path / "plain", None, **how), 1)
    told = run_threads(lambda transport: train(transport, tmp_path / "seen", witness, **how), world_size)
    assert {fingerprint for fingerprint, _ in told} == {mark}
    ledgers = [(tmp_path / name / "ledger.jsonl").read_bytes() for name in ("plain", "seen")]
    assert ledgers[0] == ledgers[1]
    found = told[0][1]["witness"]
    assert "witness" not in plain
    assert found["mismatches"] == 0
    assert found["replicas_checked"] == 4 if witness == 1.0 else 0 < found["replicas_checked"] < 4
    assert found["expected_steps_to_detection"] >= 1
    assert found["expected_s_to_detection"] > 0
    assert found["seen_steps_to_detection"] is found["seen_s_to_detection"] is None


@pytest.mark.parametrize("world_size", [2, 3])
def test_who_is_wrong_is_named_and_nothing_is_updated(world_size, tmp_path):
    """The step that was wrong is not in the ledger; of three ranks the one is named, of two both."""

    def program(transport):
        with pytest.raises((RankDivergence, PeerLost)) as caught:
            train(transport, tmp_path / "out", 1.0, wrong=1)
        return type(caught.value).__name__, str(caught.value)

    told = run_threads(program, world_size)
    lines = (tmp_path / "out" / "ledger.jsonl").read_text().splitlines()
    step = len(lines) + 1
    assert step in (3, 4)
    if world_size == 2:
        assert [kind for kind, _ in told] == ["RankDivergence"] * 2
        assert all(f"step {step}: " in text and "rank 0 (process" in text and "rank 1 (pro" in text for _, text in told)
        assert "three workers tell which" in told[0][1]
    else:
        assert [kind for kind, _ in told] == ["PeerLost", "RankDivergence", "PeerLost"]
        assert f"step {step}: " in told[1][1]
        assert "on 2 ranks, but rank 1 (process" in told[1][1]
        assert f"and the second time the same. Nothing of step {step} has been applied" in told[1][1]
        assert "seen right" in told[1][1]


@pytest.mark.slow
def test_with_live_recovery_the_step_is_finished_without_it():
    """On processes: who is wrong ends, the others have the bits of a run in which nobody was.

    It is noticed in the first step in which it is wrong: else what it has computed until then would be in the weights.
    """
    watched = choose(3, WRONG_FROM, place_whole(REPLICAS, 3), REPLICAS, 1.0)
    assert watched is not None
    assert 1 in watched[1:]
    (found,) = play([[3, {}, {"broken": "rank 1", "witness": 1.0}]])
    check(found, [0, 2])
    said = found["witness"]
    ((last,),) = ({one["last_right"] for one in said["put_out"] if (one["rank"], one["step"]) == (1, WRONG_FROM)},)
    assert said["seen_steps_to_detection"] == WRONG_FROM - last
    assert said["seen_s_to_detection"] > 0


def test_without_a_witness_nobody_notices():
    """Control: the same fault goes into the weights."""
    (found,) = play([[3, {}, {"broken": "rank 1"}]])
    assert (found["errors"], sorted(found["told"])) == ([], ["0", "1", "2"])
    one, another = found["ledger"], undisturbed()["ledger"]
    assert [line for line in one if line in another] == another[: WRONG_FROM - 1], "wrong from then on, and not before"


def several(run):
    parts = {"a": nn.Linear(6, 3), "b": nn.Linear(6, 3)}
    return parts, {name: torch.optim.SGD(part.parameters(), lr=0.1) for name, part in parts.items()}


def closure(run):
    model = nn.Linear(6, 3)
    return model, torch.optim.LBFGS(model.parameters())


def plain(run):
    model = nn.Linear(6, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("make", "source", "how", "says"),
    [
        (several, data, {}, "several optimizers"),
        (closure, data, {}, "a closure"),
        (plain, lambda: unisono.Stream(lambda: iter(data())), {}, "the data is a stream"),
        (plain, data, {"embed": lambda micro: micro.x}, "the loss is one over the whole batch"),
    ],
)
def test_what_cannot_be_computed_twice_is_refused(make, source, how, says):
    """Before anything is computed, by name."""

    def program(transport):
        run = unisono.Run(replicas=2, transport=transport, witness=0.5)
        run.prepare(*make(run))
        with pytest.raises(ConfigError, match=says) as caught:
            for batch in run.steps(run.loader(source(), batch_size=8), epochs=1):
                run.step(batch, lambda rows: rows.sum(), **how)
        return "Hint: leave --witness (witness=) out" in str(caught.value)

    assert run_threads(program, 2) == [True, True]


def test_a_loop_of_the_programs_own_is_refused():
    """What accelerate's loop computes nobody else can compute."""

    def program(transport):
        accelerator = Accelerator(replicas=2, transport=transport, witness=0.5)
        model, optimizer = plain(None)
        loader = torch.utils.data.DataLoader(data(), batch_size=4)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        with pytest.raises(ConfigError, match="the program's own loop computes it"):
            next(iter(loader))
        return True

    assert run_threads(program, 2) == [True, True]


def test_ranks_that_were_told_otherwise():
    """Hosts that were started with other rates notice it before the first step."""

    def program(transport):
        run = unisono.Run(replicas=2, transport=transport, witness=[0.5, None][transport.rank])
        with pytest.raises(RankDivergence, match="witness"):
            run.prepare(*plain(run))

    run_threads(program, 2)
