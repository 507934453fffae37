"""A pipeline has the bits of exact: whatever the stages, the schedule, the cuts and the number of pipelines."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from cases import some_are_slow
from ranks import run_threads
from strategies.fsdp_programs import leg, model_of
from strategies.strategy_runs import toy_data, train
from unisono.collectives.loopback import run_ranks
from unisono.errors import ConfigError, PeerLost, StepError
from unisono.strategies.pipelines import executor
from unisono.strategies.pipelines.schedule import plan


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """Give what exact makes of the job, and its ledger."""
    out = tmp_path_factory.mktemp("exact")
    return leg(None, "exact", 8, out=str(out)), (out / "ledger.jsonl").read_text()


@pytest.mark.parametrize(("world_size", "options"), some_are_slow([
    (2, {}), (1, {}), (4, {}), (4, {"schedule": "interleaved"}), (2, {"schedule": "gpipe"}),
    (1, {"stages": 3, "schedule": "interleaved"}),
    (3, {"stages": 3}), (2, {"cuts": ("1",)}), (2, {"stages": 4, "schedule": "gpipe", "chunks": 1}),
], 3))  # fmt: skip
def test_bits_and_ledger_are_those_of_exact(exact, tmp_path, world_size, options):
    """With batch statistics, dropout on both sides of cuts, moments, and a short last batch."""
    reports = run_threads(lambda t: leg(t, "pipeline", 8, out=str(tmp_path), **options), world_size)
    expected, ledger = exact
    for report in reports:
        assert {**report, "bytes": 0} == expected
    assert (tmp_path / "ledger.jsonl").read_text() == ledger


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "clip"), [(2, {"clip": 0.05}), (4, {"clip": 0.05}), (2, {"clip_value": 1e-3})])
def test_clipping_too(world_size, clip):
    """The norm is that of the whole model; by value, each stage clips its own."""
    expected = leg(None, "exact", 4, **clip)
    assert run_threads(lambda t: leg(t, "pipeline", 4, **clip), world_size) == [expected] * world_size
    assert expected["fingerprint"] != leg(None, "exact", 4)["fingerprint"]  # the control


def test_a_run_goes_on_with_any_number_of_stages(exact, tmp_path):
    """Saved by two, resumed by three, then by four in two pipelines: the bits of a run that was never interrupted."""
    out = str(tmp_path)
    run_threads(lambda t: leg(t, "pipeline", 3, out=out), 2)
    run_threads(lambda t: leg(t, "pipeline", 6, out=out, stages=3, schedule="gpipe"), 3)
    reports = run_threads(lambda t: leg(t, "pipeline", 8, out=out), 4)
    assert {report["fingerprint"] for report in reports} == {exact[0]["fingerprint"]}
    assert {report["moments"] for report in reports} == {exact[0]["moments"]}
    assert (tmp_path / "ledger.jsonl").read_text() == exact[1]


@pytest.mark.parametrize("harm", ["gradient", "buffers"])
def test_what_the_bits_rest_on(exact, monkeypatch, harm):
    """The controls: a stage that skips a gradient, buffers that are not kept apart."""
    if harm == "gradient":
        real = executor.Executor._give

        def give(self, parcel, action, stage, tag):
            if action.direction == "backward" and action.micro == 1:
                parcel = type(parcel)(tensors=tuple(None for _ in parcel.tensors))
            real(self, parcel, action, stage, tag)

        monkeypatch.setattr(executor.Executor, "_give", give)
    else:
        monkeypatch.setattr("unisono.strategies.parts.replica_buffers.ReplicaBuffers.start_apart", lambda self: None)
        monkeypatch.setattr("unisono.strategies.parts.replica_buffers.ReplicaBuffers.start_replica", lambda self: None)
    reports = run_threads(lambda t: leg(t, "pipeline", 8), 2)
    assert all(report["fingerprint"] != exact[0]["fingerprint"] for report in reports)


def test_random_streams_travel(monkeypatch):
    """A stage goes on drawing where the one before has stopped; the control: streams that stay behind."""
    strategy = unisono.strategy("pipeline", cuts=("2",))
    expected = train(None, unisono.strategy("exact"), replicas=4, steps=3, build=drawing)["weights"]
    assert train(None, strategy, replicas=4, steps=3, build=drawing)["weights"] == expected
    monkeypatch.setattr(executor, "capture", lambda _: b"")
    assert train(None, strategy, replicas=4, steps=3, build=drawing)["weights"] != expected


def drawing():
    """Return a model that draws in both of its halves."""
    return nn.Sequential(nn.Linear(64, 32), nn.Dropout(0.5), nn.Linear(32, 32), nn.Dropout(0.5), nn.Linear(32, 10))


def test_a_schedule_that_hangs_is_an_error(monkeypatch):
    """Backward before forward on one rank: all wait for each other, which is said."""

    def wrong(*args):
        actions = plan(*args)
        return (tuple(sorted(actions[0], key=lambda m: (m.direction, m.micro))), *actions[1:])

    monkeypatch.setattr(executor, "cached_plan", wrong)
    with pytest.raises(PeerLost, match=r"all ranks wait for each other|left before"):
        run_threads(lambda t: leg(t, "pipeline", 2), 2)


def test_a_rank_keeps_its_stages_only():
    """Other ranks' weights have no memory and are NaN, so that nobody takes them for weights."""

    def program(transport):
        with unisono.Run(seed=0, strategy="pipeline", transport=transport) as run:
            model = model_of()
            front, _ = run.prepare(model, torch.optim.Adam(model.parameters()))
            kept = {
                name: bool(p.isfinite().all()) and p.untyped_storage().nbytes() >= p.nbytes
                for name, p in model.named_parameters()
            }
            gone = {name: bool(p.isnan().all()) and p.untyped_storage().nbytes() == 4
                    for name, p in model.named_parameters()}  # fmt: skip
            assert all(kept[name] != gone[name] for name in kept)
            with pytest.raises(StepError, match=r"in run.step\(\) and run.evaluate\(\) only"):
                front(torch.zeros(1, 64))
            return sorted(name for name in kept if kept[name])

    first, second = run_ranks(program, 2)
    assert sorted([*first, *second]) == sorted(name for name, _ in model_of().named_parameters())
    assert first and second


@pytest.mark.parametrize(("loss", "message"), [
    (lambda model, m: F.cross_entropy(model(m.x), m.y) + model(m.x).sum(), "call the prepared model once, it did 2"),
    (lambda model, m: torch.zeros((), requires_grad=True), "call the prepared model once, it did 0"),
    (lambda model, m: model(m.x), r"expected a scalar loss"),
])  # fmt: skip
def test_loss_functions_that_do_not_fit(loss, message):
    """They call the model once and return a scalar."""
    with unisono.Run(seed=0, strategy="pipeline") as run:
        model = model_of()
        front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        batch = next(run.steps(run.loader(toy_data(), batch_size=16), epochs=1))
        with pytest.raises(StepError, match=message):
            run.step(batch, lambda m: loss(front, m))


@pytest.mark.parametrize("place", ["before", "around"])
def test_what_stands_around_the_models_call(place):
    """Draws before it are the same on both ends, and autocast holds in the stages between."""

    def loss(front):
        def of(m):
            if place == "before":
                order = torch.randperm(len(m.x))
                return F.cross_entropy(front(m.x[order] * torch.rand(())), m.y[order])
            with torch.autocast("cpu", torch.bfloat16):
                return F.cross_entropy(front(m.x).float(), m.y)

        return of

    def program(transport, name, **options):
        strategy = unisono.strategy(name, **options)
        with unisono.Run(seed=0, replicas=4, strategy=strategy, transport=transport or "auto") as run:
            model = drawing()
            front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            for batch in run.steps(run.loader(toy_data(), batch_size=16), epochs=1, max_steps=3):
                run.step(batch, loss(front))
            return run.fingerprint()

    expected = program(None, "exact")
    assert set(run_ranks(lambda t: program(t, "pipeline", stages=3), 3)) == {expected}


def test_what_is_refused_before_the_first_step():
    """More stages than layers, tied weights in two stages, nothing to train, and a detailed record."""

    def prepare(build, **options):
        with unisono.Run(seed=0, strategy=unisono.strategy("pipeline", **options)) as run:
            model = build()
            run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def tied():
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        model[2].weight = model[0].weight
        return model

    with pytest.raises(ConfigError, match=r"at most 3 stages for a model of 3 layers, got 4.*Hint: --stages 3"):
        prepare(lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), stages=4)
    with pytest.raises(ConfigError, match=r"of '2' \(stage 1\) is also in stage 0; stages cannot share"):
        prepare(tied)
    with pytest.raises(ConfigError, match=r"detail looks at whole weights.*strategy pipeline"):
        unisono.Run(strategy="pipeline", detail=True)
    with pytest.raises(ConfigError, match="with 4 parameters, none with requires_grad"):
        prepare(lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).requires_grad_(False))


def test_too_few_micro_batches_are_warned_of():
    """With the idle share that they cost."""
    with pytest.warns(UserWarning, match=r"micro-batches 1 for 2 processes leave 50% of the time idle"):
        run_threads(lambda t: train(t, unisono.strategy("pipeline", micro_batches=1), steps=1), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = run_threads(lambda t: train(t, unisono.strategy("pipeline"), steps=2)["report"], 2)[0]
    assert [name for part in report["stages"] for name in part] == ["0", "1", "2", "3"]
    assert 0 < report["idle_share_by_formula"] < 0.5
    assert sum(report["stage_bytes"]) == 4 * (64 * 64 + 64 + 64 * 10 + 10)


def test_nan_in_one_stage_names_the_replica():
    """Found where it arises, told to all, and the weights stay."""

    def program(transport):
        with unisono.Run(seed=0, replicas=4, strategy="pipeline", transport=transport) as run:
            model = model_of()
            front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            batch = next(run.steps(run.loader(toy_data(), batch_size=16), epochs=1))
            calls = iter(range(100))
            try:
                run.step(batch, lambda m: F.cross_entropy(front(m.x), m.y) * (float("nan") if next(calls) == 2 else 1))
            except unisono.errors.NonFiniteError as error:
                return str(error)

    told = run_ranks(program, 2)
    assert all("replica 2" in text for text in told), told


def test_diverging_pipelines_are_named():
    """The same stage of two pipelines must stay the same bits."""

    def program(transport):
        with unisono.Run(seed=0, strategy="pipeline", transport=transport) as run:
            model = model_of()
            front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            for batch in run.steps(run.loader(toy_data(), batch_size=16), epochs=1, max_steps=2):
                if batch.step == 2 and transport.rank == 3:
                    with torch.no_grad():
                        next(p for p in model.parameters() if p.isfinite().all())[0] += 1e-3
                run.step(batch, lambda m: F.cross_entropy(front(m.x), m.y))

    with pytest.raises(unisono.errors.RankDivergence, match=r"step 2: rank 3 .*first in '.*weight'"):
        run_ranks(program, 4)
