"""Mixed precision: the same bits on any number of workers, an exact scaler, resumable; what it refuses."""

import itertools

import pytest
import torch

import unisono
from forks import run_forked
from ranks import run_threads
from strategies.precision_programs import data, loss_of, model_of, play, play_both
from unisono.errors import ConfigError, NonFiniteError, RankDivergence
from unisono.strategies import precision as module
from unisono.strategies.catalog import find
from unisono.strategies.precision import MixedPrecision

HUGE = 3e4  # a sample's weight that overflows from a scale of about 16 on


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_bits_do_not_depend_on_the_number_of_workers(name, monkeypatch):
    """Ledger, losses, weights, metrics and scale are equal on 1, 2 and 3 ranks; one replica overflows now and then."""
    monkeypatch.setattr(module, "_PATIENCE", 2)
    runs = [run_threads(play, ranks, name, "exact", {}, HUGE) for ranks in (1, 2, 3)]
    first = runs[0][0]
    assert first["ledger"].count("\n") == 14
    for found in runs:
        assert found[0] == first
        assert {(each["fingerprint"], each["scale"]) for each in found} == {(first["fingerprint"], first["scale"])}
    assert (first["skipped"] or 0) == first["ledger"].count('"skipped"') == (0 if name == "bf16" else first["skipped"])
    assert (name == "bf16") or (first["skipped"] > 3 and 1 < first["scale"] < 2**16)
    assert first["dtypes"] == [{"bf16": "torch.bfloat16", "fp16": "torch.float16"}[name]]


def test_a_scale_of_each_rank_is_noticed(monkeypatch):
    """The control: were the scale to grow with what a rank has seen by itself, the ranks would be stopped."""
    turns = itertools.count()
    monkeypatch.setattr(MixedPrecision, "updated", lambda self: setattr(self, "scale", 2.0 ** (next(turns) % 5)))
    with pytest.raises(RankDivergence, match="first in"):
        run_threads(play, 2, "fp16", "allreduce", {}, 1.0, None)


def test_float16_is_what_torchs_scaler_computes(monkeypatch):
    """With one replica weights and scale are those of torch's loop with autocast and GradScaler, bit for bit."""
    monkeypatch.setattr(module, "_PATIENCE", 3)
    with unisono.Run(replicas=1, precision="fp16") as run:
        ours = torch.nn.Sequential(torch.nn.Linear(64, 10))
        theirs = torch.nn.Sequential(torch.nn.Linear(64, 10))
        theirs.load_state_dict(ours.state_dict())
        front, _ = run.prepare(ours, torch.optim.SGD(ours.parameters(), lr=0.1, momentum=0.9))
        optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", growth_interval=3)
        arrays = data(HUGE).arrays
        for batch in run.steps(run.loader(data(HUGE), batch_size=24), epochs=9):
            run.step(batch, lambda micro: loss_of(front, micro))
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = loss_of(
                    theirs, [torch.as_tensor(array)[torch.from_numpy(batch.indices.copy())] for array in arrays]
                )
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            assert run.precision.scale == scaler.get_scale(), batch.step
        assert run.precision.num_skipped > 3
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_a_resumed_run_goes_on_with_its_scale(tmp_path, monkeypatch):
    """Stopped after overflows, gone on with on other ranks: the ledger of a calm run; not without the state."""
    calm = run_threads(play, 2, "fp16", "exact", {}, HUGE)[0]
    for name, ranks in (("whole", (3, 1)), ("forgotten", (1, 2))):
        out = str(tmp_path / name)
        before = run_threads(play, ranks[0], "fp16", "exact", {}, HUGE, 4, out, 7)[0]
        assert before["skipped"] > 2
        if name == "forgotten":
            monkeypatch.setattr(MixedPrecision, "load", lambda *_: None)
        after = run_threads(play, ranks[1], "fp16", "exact", {}, HUGE, 4, out)[0]
        assert (after["ledger"] == calm["ledger"]) is (name == "whole")
        assert (after["skipped"] == calm["skipped"]) is (name == "whole")


CASES = {
    "islands": {"island_steps": 2}, "local": {"sync_every": 3}, "ps": {}, "dp": {}, "balanced_dp": {},
    "model_parallel": {}, "pipeline": {}, "ddp": {}, "fsdp": {}, "allreduce": {},
}  # fmt: skip
NAMES = {"islands": "exact", "local": "allreduce"}
QUICK = ("islands", "fsdp")


@pytest.mark.parametrize(
    "case", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_every_strategy_computes_and_scales(case, monkeypatch):
    """Losses near those of float32, in other bits; what overflows is left out by all ranks alike."""
    strategy, ranks = NAMES.get(case, case), {"dp": 1, "balanced_dp": 1, "ddp": 1, "fsdp": 1, "ps": 3}.get(case, 2)
    replicas = None if strategy in ("allreduce", "ps", "dp", "balanced_dp", "model_parallel", "ddp") else 4

    def found(name, planted=1.0):
        return run_threads(play, ranks, name, strategy, CASES[case], planted, replicas, None, 8)

    huge = found("fp16", HUGE)
    monkeypatch.setattr(module, "_FIRST", 2.0**10)
    plain, brain, half = found("fp32"), found("bf16"), found("fp16")
    expected = [float.fromhex(loss) for loss in plain[0]["losses"]]
    for other, near in ((brain, 0.05), (half, 0.01)):
        assert [float.fromhex(loss) for loss in other[0]["losses"]] == pytest.approx(expected, rel=near, abs=near)
        assert other[0]["fingerprint"] != plain[0]["fingerprint"]
    assert half[0]["skipped"] == 0
    assert huge[0]["skipped"] > 2
    assert len({(each["fingerprint"], each["scale"]) for each in huge}) == 1


@pytest.mark.slow
def test_processes_agree():
    """Two processes leave out the same steps; sharded weights have the bits of exact."""
    ddp, fsdp = zip(*run_forked(play_both, 2, HUGE), strict=True)
    for found in (ddp, fsdp):
        assert len({(each["fingerprint"], each["scale"]) for each in found}) == 1
        assert found[0]["scale"] < 2**13
    assert fsdp[0]["fingerprint"] == run_threads(play, 1, "fp16", "exact", {}, HUGE)[0]["fingerprint"]


def test_what_is_not_finite_is_no_matter_of_scale():
    """A loss that is not finite stops the run at once; an infinite gradient, once the least scale has not helped."""

    def spoiled(spoil):
        with unisono.Run(replicas=2, precision="fp16") as run:
            model = model_of()
            front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            with pytest.raises(NonFiniteError) as caught:
                for batch in run.steps(run.loader(data(), batch_size=24), epochs=9):
                    run.step(batch, lambda micro: spoil(loss_of(front, micro)))
        return caught.value.step, run.precision.num_skipped, run.precision.scale

    assert spoiled(lambda loss: loss * float("inf")) == (1, 0, 2.0**16)
    assert spoiled(lambda loss: loss + (loss - loss.detach()).sqrt()) == (17, 16, 1.0)


def test_old_words_and_old_state():
    """`amp` says the same as `precision`, with one score; torch's scaler of older checkpoints is taken over."""
    with (
        unisono.Run(strategy=find("allreduce", {"amp": "bf16"})) as one,
        unisono.Run(strategy="allreduce", precision="bf16") as other,
    ):
        assert one.precision.name == other.precision.name == "bf16"
        assert one.strategy.score() == other.strategy.score() == find("allreduce", {}).score()
        assert one.precision.score == {"precision": "bf16"}
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**9)
    scaler.scale(torch.zeros(1))
    mine = MixedPrecision("fp16")
    mine.load({"scaler": scaler.state_dict() | {"_growth_tracker": 7}})
    assert mine.state() == {"scaler": {"scale": 512.0, "good_steps": 7, "skipped": 0}}
    assert MixedPrecision().state() == MixedPrecision("bf16").state() == {}


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"precision": "bfloat16"}, "expected precision fp32, bf16, fp16, got 'bfloat16'. Hint: 'bf16'."),
        ({"precision": "fp16", "strategy": find("dp", {"amp": "bf16"})}, "say two things. Hint: leave amp out"),
        ({"precision": "fp16", "strategy": "ps_async"}, "Hint: precision bf16, which needs no scaling"),
    ],
)
def test_what_cannot_be_is_refused(settings, hint):
    """With the line to write instead."""
    with pytest.raises(ConfigError) as caught:
        unisono.Run(**settings)
    assert hint in str(caught.value)


def test_weights_that_are_float16_are_refused():
    """Their gradients would overflow as the loss's do."""
    with unisono.Run(precision="fp16") as run, pytest.raises(ConfigError, match=r"Hint: leave .half\(\) out"):
        model = model_of().half()
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_predictions_are_float32():
    """`Trainer.predict` and metrics get outputs in float32, whatever the model computes in."""
    with unisono.Run(precision="bf16") as run:
        model = model_of()
        trainer = unisono.Trainer(
            run, model, torch.optim.SGD(model.parameters(), lr=0.1), loss=torch.nn.functional.cross_entropy
        )
        arrays = data().arrays
        found = trainer.predict(unisono.ArrayDataset(arrays[0]))
        assert (found.dtype, found.shape) == (torch.float32, (30, 10))
        with torch.no_grad():
            plain = model.eval()(torch.as_tensor(arrays[0]))
        assert not torch.equal(found, plain)
        assert torch.allclose(found, plain, atol=0.05)
