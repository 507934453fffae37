"""Rounded gradients: the same bits on any ranks, over any transport, and fewer bytes between hosts.

Over gloo two ranks, overlap and bytes are among the default tests in `parts.test_overlap`, which has the launch.
"""

import pytest
import torch

import jobs
import unisono
from forks import run_forked
from ranks import once, run_threads
from strategies import compress_programs
from strategies.compress_programs import KINDS, MISTAKES

WAYS = ("off", "on", "uneven")
BYTES = {"none": 4.0, "bf16": 2.0, "int8": 1.0625}


@once
def threads(world_size):
    """Return the report of each rank of this process."""
    return run_threads(compress_programs.play, world_size, ["off"])


@once
def over_gloo(world_size):
    """Return every rank's report, over messages."""
    return run_forked(compress_programs.play, world_size, ["off", "on"])


@once
def over_hosts(names):
    """Return every rank's report, on hosts of these names."""
    return run_forked(compress_programs.play, len(names), ["off", "on"], names)


def check(reports, carries):
    """Every way to train has the bits of a rank alone, and names the same bad replicas."""
    (alone,) = threads(1)
    for report in reports:
        assert report["transport"] == carries
        for kind in ("none", *KINDS):
            ways = [one["digest"] for name, one in report.items() if name in {f"{kind} {way}" for way in WAYS}]
            assert set(ways) == {alone[f"{kind} off"]["digest"]}
            assert len(ways) == (2 if carries == "LoopbackTransport" else 3)
        for kind in KINDS:
            assert report[f"{kind} bad"]["bad"] == [[], [1], [1], [1]]
            assert report[f"{kind} bad"]["digest"] == alone[f"{kind} bad"]["digest"]


@pytest.mark.parametrize("world_size", [1, 3, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 4, 5))])
def test_in_one_process(world_size):
    """Loopback's ranks, one to as many as replicas."""
    check(threads(world_size), "LoopbackTransport")


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3])
def test_over_gloo(world_size):
    """Processes that send messages, with overlap and without."""
    check(over_gloo(world_size), "ProcessGroupTransport")
    assert all(report[f"{kind} on"]["early"] == 2 for report in over_gloo(world_size) for kind in KINDS)


@pytest.mark.slow
def test_over_shared_memory():
    """Processes of one host."""
    check(over_hosts("aaa"), "ShmTransport")


@pytest.mark.slow
@pytest.mark.parametrize("names", ["aab", "aabb"])
def test_over_hosts(names):
    """Hosts with several ranks each: shared memory inside, rounded messages between them."""
    check(over_hosts(names), "HostsTransport")
    for kind in KINDS:
        crossed, plain = (sum(report[f"{name} off"]["sent"] for report in over_hosts(names)) for name in (kind, "none"))
        assert crossed < plain * (BYTES[kind] / 4 + 0.01)


def test_the_gradients_are_rounded():
    """What the optimizer gets has no more bits than what was sent."""
    (alone,) = threads(1)
    assert [alone[f"{kind} off"]["rounded"] for kind in ("none", *KINDS)] == [False, True, True]
    assert len({alone[f"{kind} off"]["digest"] for kind in ("none", *KINDS)}) == 3


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_seen(name):
    """Negative control: where a rounding knows a rank or a cut, or a leaf or sum is left out, worlds differ."""
    with MISTAKES[name]():
        alone, three = (run_threads(compress_programs.play_mistake, size)[0] for size in (1, 3))
    assert (alone == three) == (name == "none")


def test_a_run_goes_on_with_other_workers(tmp_path):
    """Rounding keeps nothing from step to step: a run resumed on 3, 1 and 4 ranks ends in the same bits."""
    data = jobs.save_digits(tmp_path)
    expected = run_threads(jobs.play_leg, 2, data, str(tmp_path / "whole"), None, 3, "int8")[0]
    for ranks, stop_after in ((3, 4), (1, 8), (4, None)):
        played = run_threads(jobs.play_leg, ranks, data, str(tmp_path / "legs"), stop_after, 3, "int8")
    assert played[0]["fingerprint"] == expected["fingerprint"]
    assert played[0]["moments"] == expected["moments"]
    ledgers = [(tmp_path / name / "ledger.jsonl").read_text() for name in ("whole", "legs")]
    assert ledgers[0] == ledgers[1]
    with pytest.raises(unisono.ScoreMismatch, match=r"compress"):
        run_threads(jobs.play_leg, 1, data, str(tmp_path / "legs"), None, 3, "bf16")
    with pytest.raises(unisono.ScoreMismatch, match=r"compress"):
        run_threads(jobs.play_leg, 1, data, str(tmp_path / "legs"), None, 3)


def test_large_gradients_that_are_taken_early():
    """A replica's gradient is whole before it is rounded, also where it is taken in during the backward pass."""
    ways = [(1, "off"), (1, "auto"), (3, "auto")]
    assert len({run_threads(compress_programs.train_large, size, overlap)[0] for size, overlap in ways}) == 1


def _bad_step(transport, kind, policy):
    """Train 5 numbers, in a block of 16 places, with NaN in one sample of step 2; return what each has moved by."""
    strategy = unisono.strategy("exact", compress=kind)
    with unisono.Run(seed=0, replicas=4, transport=transport, strategy=strategy, non_finite=policy) as run:
        model = torch.nn.Linear(5, 1, bias=False)
        first = model.weight.detach().clone()
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        data = unisono.ArrayDataset(torch.ones(40, 5), torch.arange(40) == 2)
        for batch in run.steps(run.loader(data, batch_size=8, shuffle=False), epochs=1):
            run.step(batch, lambda micro: (model(micro.x) / ~micro.y[:, None]).mean())
        return (first - model.weight.detach()).flatten().tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_step_leaves_nothing_behind(kind):
    """NaN of one replica, which rounding spreads over its block, is found neither in the next steps nor in others."""
    alone, three = (run_threads(_bad_step, size, kind, "skip")[0] for size in (1, 3))
    assert alone == three == pytest.approx([0.4] * 5)
    for size in (1, 3):
        with pytest.raises(unisono.NonFiniteError, match="infinite in replica 1 of 4;"):
            run_threads(_bad_step, size, kind, "stop")


def test_only_float32_is_rounded():
    """Gradients of another type are refused, by name."""
    with pytest.raises(unisono.ConfigError, match=r"compress rounds gradients of float32, got '0.weight' of float64"):
        run_threads(compress_programs.train_doubles, 1)


def test_the_score_names_it_where_it_is_asked_for():
    """Scores of runs without it stay as they were."""
    assert unisono.strategy("exact").score() == unisono.strategy("exact", compress="none").score() == {"name": "exact"}
    assert unisono.strategy("exact", compress="int8").score() == {"name": "exact", "compress": "int8"}
    with pytest.raises(unisono.ConfigError, match=r"one of compress and codec, .* Hint: leave codec out"):
        unisono.strategy("exact", compress="int8", codec="planes")
