"""The run: equal to a plain loop where there is one replica, resumes, refuses, and leaves no half-done step."""

import itertools
import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from reference import bits
from train.conftest import build_batch_norm, build_mlp
from unisono.collectives.loopback import run_ranks
from unisono.data.sampler import ExactSampler
from unisono.determinism.switches import set_determinism


class ConvNet(nn.Module):
    """Convolution, batch normalisation, linear layer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 4))

    def forward(self, x):
        return self.layers(x.view(-1, 1, 2, 3))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True, fused=False), None


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01, foreach=True, fused=False), None


def adamw(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True, fused=False)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=15)


def state_bits(model, optimizer):
    """Return every bit of weights, buffers and optimizer state."""
    found = {name: bits(tensor) for name, tensor in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        found |= {f"{index} {key}": bits(torch.as_tensor(value)) for key, value in state.items() if value is not None}
    return found


def plain_loop(toy, build, optimize, clip):
    """Train as a book on PyTorch would, with the run's order of samples."""
    set_determinism(1)
    torch.manual_seed(3)
    model = build()
    optimizer, scheduler = optimize(model)
    sampler = ExactSampler(56, 12, seed=3)
    losses = []
    for step in range(1, 16):
        chosen = torch.from_numpy(sampler.batch(step))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(toy.x[chosen]), toy.y[chosen])
        loss.backward()
        if "clip_norm" in clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip["clip_norm"], foreach=True)
        if "clip_value" in clip:
            nn.utils.clip_grad_value_(model.parameters(), clip["clip_value"])
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return state_bits(model, optimizer), losses


def run_loop(toy, build, optimize, clip, replicas, transport="auto"):
    """Train the same through a run."""
    losses = []
    with unisono.Run(seed=3, replicas=replicas, transport=transport, **clip) as run:
        model = build()
        optimizer, scheduler = optimize(model)
        model, optimizer = run.prepare(model, optimizer, scheduler)
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=3):
            losses.append(run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y)))
        return state_bits(model, optimizer), losses


@pytest.mark.parametrize(
    ("optimize", "clip"), [(sgd, {}), (adam, {}), (adamw, {"clip_norm": 0.3}), (sgd, {"clip_value": 0.01})]
)
@pytest.mark.parametrize("build", [build_mlp, ConvNet])
def test_one_replica_is_the_plain_loop(toy, build, optimize, clip):
    """With one replica on one rank, weights, buffers, optimizer state and losses are a plain loop's, bit for bit."""
    assert run_loop(toy, build, optimize, clip, 1) == plain_loop(toy, build, optimize, clip)


def test_clipping_by_value_in_any_world(toy):
    """The mean gradient of the whole batch is clipped, so one rank and three leave the same bits."""
    alone = run_loop(toy, build_mlp, sgd, {"clip_value": 0.01}, 4)
    shared = run_ranks(lambda transport: run_loop(toy, build_mlp, sgd, {"clip_value": 0.01}, 4, transport), 3)
    assert shared == [alone] * 3
    assert alone != run_loop(toy, build_mlp, sgd, {}, 4)


def test_clipping_by_value_needs_an_order(toy):
    """Complex numbers have no largest; said before the first step."""
    model = nn.Linear(2, 2, dtype=torch.complex64)
    with unisono.Run(clip_value=1.0) as run, pytest.raises(unisono.ConfigError, match="the complex 'weight'"):
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_two_replicas_are_another_score(toy):
    """Negative control: two replicas give other bits than the plain loop, but the same loss to rounding."""
    (two, two_losses), (one, one_losses) = run_loop(toy, build_mlp, sgd, {}, 2), plain_loop(toy, build_mlp, sgd, {})
    assert two != one
    assert two_losses == pytest.approx(one_losses, rel=1e-4)


def test_clipping_and_schedule_matter(toy):
    """Negative control: without clipping, and with another schedule, the bits are others."""
    norm = {"clip_norm": 0.3}
    clipped = run_loop(toy, build_mlp, adamw, norm, 1)[0]
    assert clipped != run_loop(toy, build_mlp, adamw, {}, 1)[0]
    assert run_loop(toy, build_mlp, sgd, norm, 1)[0] != run_loop(toy, build_mlp, sgd, {}, 1)[0]


def test_optimizer_flags_are_pinned():
    """`foreach` and `fused` are set where they were left open, and left alone where they were not."""
    with unisono.Run() as run:
        model = build_mlp()
        _, optimizer = run.prepare(model, torch.optim.Adam(model.parameters()))
        assert {(group["foreach"], group["fused"]) for group in optimizer.param_groups} == {(True, False)}
    with unisono.Run() as run:
        model = build_mlp()
        _, optimizer = run.prepare(model, torch.optim.Adam(model.parameters(), foreach=False))
        assert {(group["foreach"], group["fused"]) for group in optimizer.param_groups} == {(False, False)}


def test_scheduler_counts_steps(toy):
    """The scheduler steps once per optimizer step, after it; the ledger has the rate of the update."""
    rates = []
    with unisono.Run(replicas=2) as run:
        model = build_mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        run.prepare(model, optimizer, scheduler)
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
            rates.append(optimizer.param_groups[0]["lr"])
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    assert rates == [1.0, 0.5, 0.25, 0.125, 0.0625]


def test_each_sample_once_per_epoch(toy):
    """An epoch is five batches, the last one short; every sample comes once, in another order each epoch."""
    seen = []
    with toy.run() as (run, model, _):
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2):
            seen.append(batch.indices.tolist())
            assert (batch.step, batch.epoch) == (len(seen), (len(seen) - 1) // 5)
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    first, second = [*itertools.chain(*seen[:5])], [*itertools.chain(*seen[5:])]
    assert [len(batch) for batch in seen] == [12, 12, 12, 12, 8] * 2
    assert sorted(first) == sorted(second) == list(range(56))
    assert first != second


@pytest.mark.parametrize("out", [False, True], ids=["nothing kept", "run directory"])
def test_steps_asked_for_again(toy, tmp_path, out):
    """`steps` yields what is left to do: two epochs, then a third, are three, also where a launch begins anew."""
    whole, _ = toy.train(epochs=3)
    with toy.run(out=tmp_path / "run" if out else None) as (run, model, _):
        done = []
        for epochs in (2, 3):
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=epochs):
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
                done.append(batch.step)
        assert done == list(range(1, 16))
        assert run.fingerprint() == whole


def loop_over_epochs(toy, last_of=lambda epoch: epoch + 1, leave_at=None, **settings):
    """Train as programs of other libraries do, and return steps done and fingerprint."""
    with toy.run(**settings) as (run, model, _):
        done = []
        for epoch in range(3):
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=last_of(epoch)):
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
                done.append(batch.step)
                if batch.step == leave_at:
                    return done, ""
        return done, run.fingerprint()


def test_a_loop_over_epochs(toy, tmp_path, capfd):
    """`epochs=epoch + 1` trains them all, also after an interruption, which passes over those that are done."""
    whole, _ = toy.train(epochs=3)
    assert loop_over_epochs(toy) == (list(range(1, 16)), whole)
    assert loop_over_epochs(toy, out=tmp_path, leave_at=12)[0] == list(range(1, 13))
    assert "left to" not in capfd.readouterr().err
    assert loop_over_epochs(toy, out=tmp_path) == ([13, 14, 15], whole)
    assert capfd.readouterr().err.count("has come to step 12: a loop that ends with step 5 has nothing left to do") == 1
    assert loop_over_epochs(toy, out=tmp_path) == ([], whole)
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2
    assert "has come to step 15" in said[0]
    assert "is complete: step 15 of 15 is done" in said[1]


@pytest.mark.parametrize("again", [False, True], ids=["first launch", "started again"])
def test_a_loop_over_epochs_that_trains_one(toy, tmp_path, again):
    """`epochs=1` each time is refused where it yields nothing, in the launch after that, too."""
    wrong = r"nothing to do: epochs= .* step 5 of 5 is done. Hint: all epochs in one loop, .* epochs=epoch \+ 1\)"
    for _ in range(1 + again):
        with pytest.raises(unisono.ConfigError, match=wrong):
            loop_over_epochs(toy, lambda _: 1, out=tmp_path)


def test_a_loop_over_epochs_is_replayed(toy, tmp_path, monkeypatch):
    """A launcher that ends the run after a step (`replay`) ends each of the loops there, and none is refused."""
    monkeypatch.setenv("UNISONO_LAST_STEP", "7")
    assert loop_over_epochs(toy, out=tmp_path)[0] == list(range(1, 8))


def test_files(toy, tmp_path):
    """The run directory holds score, environment, ledger, checkpoints and result, and is its owner's alone."""
    print_, done = toy.train(out=tmp_path / "run")
    out = tmp_path / "run"
    assert done == list(range(1, 11))
    assert out.stat().st_mode & 0o777 == 0o700
    result = json.loads((out / "result.json").read_text())
    assert (result["fingerprint"], result["steps"], result["epochs"]) == (print_, 10, 2)
    assert (result["world_size"], result["replicas"], result["resumed_from_step"]) == (1, 4, 0)
    assert json.loads((out / "score.json").read_text())["batch_size"] == 12
    assert json.loads((out / "environment.json").read_text())["torch"] == torch.__version__
    steps = [json.loads(line)["step"] for line in (out / "ledger.jsonl").read_text().splitlines()]
    assert steps == done
    assert {path.name[:13] for path in (out / "checkpoints").glob("step-*")} == {"step-00000005", "step-00000010"}


def test_goes_on_longer(toy, tmp_path):
    """A finished run does nothing more, or goes on to more epochs as if it had been asked for them at once."""
    whole, _ = toy.train(epochs=3)
    toy.train(epochs=2, out=tmp_path)
    assert toy.train(epochs=2, out=tmp_path)[1] == []
    assert toy.train(epochs=3, out=tmp_path) == (whole, [11, 12, 13, 14, 15])


def test_fewer_epochs_than_done(toy, tmp_path):
    """Asked for fewer epochs than are done, the run does nothing and its result tells what it holds."""
    whole, _ = toy.train(epochs=2, out=tmp_path)
    assert toy.train(epochs=1, out=tmp_path) == (whole, [])
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["fingerprint"], result["steps"]) == (whole, 10)


def test_another_score_is_refused(toy, tmp_path):
    """A resume with other settings is refused, and every differing field is listed with old and new value."""
    toy.train(out=tmp_path, stop_after=3)
    with pytest.raises(unisono.ScoreMismatch) as caught:
        toy.train(out=tmp_path, seed=9, batch_size=20, lr=0.2, clip_norm=1.0, settings={"a": 1})
    text = str(caught.value)
    for line in (
        "seed: 0 -> 9", "batch_size: 12 -> 20", "clip_norm: None -> 1.0", "settings.a: None -> 1",
        "model.initial_weights: ", "optimizer.groups[0].lr: 0.1 -> 0.2",
    ):  # fmt: skip
        assert line in text
    assert "model.structure" not in text
    assert "replicas" not in text
    with pytest.raises(unisono.ScoreMismatch, match="replicas: 4 -> 2"):
        toy.train(out=tmp_path, replicas=2)
    with pytest.raises(unisono.ScoreMismatch, match=r"model\.structure"):
        toy.train(out=tmp_path, build=build_batch_norm)
    toy.train(out=tmp_path)  # the directory is as it was


def test_another_environment_is_refused(toy, tmp_path, monkeypatch):
    """A variable that chooses other kernels is drift: refused by name, or recorded when it is allowed."""
    toy.train(out=tmp_path, stop_after=3)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    with pytest.raises(unisono.EnvironmentDrift, match=r"variables: \{\} -> \{'ONEDNN_MAX_CPU_ISA': 'AVX2'\}"):
        toy.train(out=tmp_path)
    assert "drifted" not in (tmp_path / "score.json").read_text()
    assert json.loads((tmp_path / "environment.json").read_text())["drifted"] == []
    toy.train(out=tmp_path, allow_drift=True)
    recorded = json.loads((tmp_path / "environment.json").read_text())
    assert len(recorded["drifted"]) == 1
    assert "ONEDNN_MAX_CPU_ISA" in recorded["drifted"][0][0]
    toy.train(out=tmp_path)  # what was allowed is the run's environment now


def test_other_threads_are_refused(toy, tmp_path):
    """Another number of threads gives other bits: refused, and not even drift that may be allowed."""
    toy.train(out=tmp_path, stop_after=3)
    with pytest.raises(unisono.EnvironmentDrift, match="threads: 1 -> 2"):
        toy.train(out=tmp_path, threads=2)
    with pytest.raises(unisono.ScoreMismatch, match="threads: 1 -> 2"):
        toy.train(out=tmp_path, threads=2, allow_drift=True)


def test_a_refused_launch_leaves_no_trace(toy, tmp_path, monkeypatch):
    """A launch that is refused for its score changes no file, so that the right one still finds its environment."""
    toy.train(out=tmp_path, stop_after=3)

    def files():  # each launch leaves its name in the lock
        return {
            path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file() if path.name != "run.lock"
        }

    before = files()
    with monkeypatch.context() as patched:
        patched.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
        with pytest.raises(unisono.ScoreMismatch):
            toy.train(out=tmp_path, seed=9, allow_drift=True)
    assert files() == before
    toy.train(out=tmp_path)


def test_other_software_is_refused(toy, tmp_path):
    """Another torch than the first launch's is drift too."""
    toy.train(out=tmp_path, stop_after=3)
    file = tmp_path / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"torch": "1.0", "numpy": "0.1"}))
    with pytest.raises(unisono.EnvironmentDrift, match=r"torch: '1\.0' -> ") as caught:
        toy.train(out=tmp_path)
    assert "numpy" not in str(caught.value)  # decides no bits


def test_skipped_batch(toy):
    """A batch that was not passed to `step` is noticed before the next one."""
    with toy.run() as (run, _, _):
        steps = run.steps(run.loader(toy.data, batch_size=12), epochs=1)
        next(steps)
        with pytest.raises(unisono.StepError, match="step 1 was not passed"):
            next(steps)


def test_batch_used_twice(toy):
    """A batch is for one step: its second use changes nothing and says which step is due."""
    with toy.run() as (run, model, _):
        batch = next(run.steps(run.loader(toy.data, batch_size=12), epochs=1))
        run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        before = run.fingerprint()
        with pytest.raises(unisono.StepError, match="expected the batch of step 2, got that of step 1") as caught:
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        assert "Hint: one run.step() for each batch" in str(caught.value)
        assert run.fingerprint() == before


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_not_finite(toy, tmp_path, build, world_size):
    """A NaN sample stops all ranks alike with step, replica and sample ids; weights, buffers, files stay as before."""
    order = ExactSampler(56, 12, seed=0)
    bad = order.batch(7)[4]  # the second sample of replica 1
    toy.x[bad] = float("nan")
    # Until step 7 the sample must not come: its first epoch's turn is made harmless.
    early = next(step for step in range(1, 6) if bad in order.batch(step))

    def program(transport):
        with toy.run(build=build, out=tmp_path, transport=transport, checkpoint_every=3) as (run, model, optimizer):
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2):
                before = state_bits(model, optimizer)

                def loss(micro, is_early=batch.step == early):
                    x = micro.x.nan_to_num() if is_early else micro.x
                    return F.cross_entropy(model(x), micro.y)

                if batch.step < 7:
                    run.step(batch, loss)
                    continue
                with pytest.raises(unisono.NonFiniteError) as caught:
                    run.step(batch, loss)
                assert (caught.value.step, caught.value.replicas) == (7, (1,))
                assert f"samples of replica 1: {order.batch(7)[3:6].tolist()}" in str(caught.value)
                assert isinstance(caught.value, ArithmeticError)
                after = state_bits(model, optimizer)
                return [name for name in before if after[name] != before[name]]
        return None

    assert run_ranks(program, world_size) == [[]] * world_size
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 6
    assert max(path.name for path in (tmp_path / "checkpoints").glob("step-*")).startswith("step-00000006")


def test_damaged_checkpoint(toy, tmp_path):
    """One flipped bit in the newest checkpoint: a warning, the older one is taken, the final bits are the same."""
    whole, _ = toy.train()
    toy.train(out=tmp_path, checkpoint_every=2, stop_after=7)
    newest = max((tmp_path / "checkpoints").glob("step-*"))
    assert newest.name.startswith("step-00000006")
    damaged = bytearray((newest / "model.safetensors").read_bytes())
    damaged[-3] ^= 1
    (newest / "model.safetensors").write_bytes(damaged)
    with pytest.warns(UserWarning, match=r"checkpoint skipped: .*model\.safetensors is damaged"):
        print_, done = toy.train(out=tmp_path)
    assert (print_, done) == (whole, list(range(5, 11)))


class Passing(nn.Module):
    """Its non-persistent buffer changes while training, and nothing reads it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("seen", torch.zeros(3), persistent=False)

    def forward(self, x):
        self.seen = self.seen + 1
        return self.layer(x)


def test_what_is_not_saved_is_not_in_the_ledger(toy, tmp_path):
    """Non-persistent buffers start anew on resume; the ledger of the resumed run is that of the whole one all the same.

    The control: with a persistent buffer, which is saved, the ledger sees it too.
    """
    whole, _ = toy.train(build=Passing, out=tmp_path / "whole")
    toy.train(build=Passing, out=tmp_path / "parts", checkpoint_every=2, stop_after=5)
    assert toy.train(build=Passing, out=tmp_path / "parts", checkpoint_every=2)[0] == whole
    ledgers = [(tmp_path / name / "ledger.jsonl").read_text() for name in ("whole", "parts")]
    assert ledgers[0] == ledgers[1]

    def persistent():
        model = Passing()
        model._non_persistent_buffers_set.clear()
        return model

    toy.train(build=persistent, out=tmp_path / "other")
    assert (tmp_path / "other" / "ledger.jsonl").read_text() != ledgers[0]


def test_layers_frozen_on_the_way(toy, tmp_path):
    """A layer frozen in the middle of a run is still frozen after a resume, with the same bits."""

    def train(out, stop_after=None):
        with toy.run(out=out, checkpoint_every=2) as (run, model, _):
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2):
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
                if batch.step == 3:
                    model[0].requires_grad_(False)
                if batch.step == stop_after:
                    return None
            return run.fingerprint()

    whole = train(tmp_path / "whole")
    train(tmp_path / "parts", stop_after=7)
    assert train(tmp_path / "parts") == whole


def test_no_checkpoint_can_be_trusted(toy, tmp_path):
    """With all checkpoints damaged the run stops and says so, on every rank; it does not start from scratch."""
    toy.train(out=tmp_path, checkpoint_every=2, stop_after=7)
    for path in (tmp_path / "checkpoints").glob("step-*"):
        (path / "manifest.json").write_text("{")
    with pytest.raises(unisono.CheckpointError, match="none of the 2 checkpoints") as refused:
        toy.train(out=tmp_path)
    assert refused.value.is_final  # no launcher starts it again
    heard = []

    def program(transport):
        try:
            toy.train(out=tmp_path, transport=transport)
        except unisono.UnisonoError as error:
            heard.append("none of the 2 checkpoints" in str(error))

    run_ranks(program, 3)
    assert heard == [True] * 3


def test_more_ranks_than_replicas():
    """A world larger than the replicas is refused before anything is written or sent."""
    with pytest.raises(unisono.ConfigError, match="of 2 replicas, got 3"):
        run_ranks(lambda transport: unisono.Run(replicas=2, transport=transport), 3)


def test_replicas_unset(toy, tmp_path):
    """Unset, replicas are the first launch's world size; later launches take the recorded number."""

    def program(transport):
        with toy.run(replicas=None, out=tmp_path, transport=transport) as (run, model, _):
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2):
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
                if batch.step == 5 * (1 + (run.world.world_size != 3)):
                    break
            return run.replicas

    assert run_ranks(program, 3) == [3, 3, 3]
    assert run_ranks(program, 2) == [3, 3]
    with pytest.raises(unisono.ConfigError, match="of 3 replicas, got 4"):
        run_ranks(program, 4)
    with unisono.Run() as run:
        assert run.replicas == 1


def test_replicas_imposed_by_the_launcher(monkeypatch, tmp_path, toy):
    """The launcher's number of replicas holds where the program leaves it unset, and its run directory wins."""
    monkeypatch.setenv("UNISONO_REPLICAS", "6")
    monkeypatch.setenv("UNISONO_RUN_DIR", str(tmp_path / "imposed"))
    with unisono.Run() as run:
        assert run.replicas == 6
    toy.train(out=tmp_path / "own", epochs=1)
    assert (tmp_path / "imposed" / "result.json").exists()
    assert not (tmp_path / "own").exists()


def test_out_cannot_be_written(tmp_path):
    """A run directory that cannot be made is refused at once, with its path, on every rank."""
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(unisono.ConfigError, match=r"directory that can be written, got .*file.* from --out"):
            unisono.Run(out=out)
    heard = []

    def program(transport):
        try:
            unisono.Run(out=tmp_path / "file", transport=transport)
        except unisono.UnisonoError as error:
            heard.append("directory that can be written" in str(error))

    run_ranks(program, 3)
    assert heard == [True] * 3


def test_two_loops_at_once(toy):
    """The second one takes over the data of the first, which is refused when it goes on."""
    with toy.run() as (run, model, _):
        loaders = [run.loader(toy.data, batch_size=12) for _ in range(2)]
        with pytest.raises(unisono.StepError, match=r"another loop over run.steps\(\) has begun within this one"):
            for batch, _ in zip(*(run.steps(each, epochs=1) for each in loaders), strict=True):
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))


def test_a_sample_without_a_target(toy):
    """What it is made of is said."""
    with toy.run() as (run, model, _), pytest.raises(IndexError) as caught:
        data = torch.utils.data.TensorDataset(torch.ones(12, 6))
        for batch in run.steps(run.loader(data, batch_size=12), epochs=1):
            run.step(batch, lambda micro: F.cross_entropy(model(micro[0]), micro[1]))
    assert "Hint: a sample of this data set is one value" in caught.value.__notes__[-1]


def test_models_that_know_their_rank(toy):
    """Initial weights that differ between ranks are refused before the first step, on all ranks."""
    heard = []

    def program(transport):
        def build():
            torch.manual_seed(transport.rank)
            return build_mlp()

        try:
            with toy.run(build=build, transport=transport):
                heard.append("prepared")
        except unisono.RankDivergence as error:
            heard.append(str(error))

    run_ranks(program, 3)
    assert len(heard) == 3
    begin = "the ranks begin with different weights: the model was built before unisono.Run(seed=...), or"
    assert all(text.startswith(begin) and "Hint: build the model after Run(seed=...)" in text for text in heard)
    assert all("differ before the first step: model.initial_weights: " in text[-120:] for text in heard)


def test_ranks_with_other_seeds(toy):
    """What differs is said, not what follows from it: initial weights and replicas' randomness."""
    heard = []

    def program(transport):
        try:
            with toy.run(seed=transport.rank, transport=transport):
                heard.append("prepared")
        except unisono.RankDivergence as error:
            heard.append(str(error))

    run_ranks(program, 2)
    assert len(heard) == 2
    assert all("before the first step: seed: " in text and "the same Run(...)" in text for text in heard), heard


def test_ranks_with_other_optimizers(toy):
    """A learning rate that differs between ranks is refused too; equal ones (negative control) are not."""

    def train(transport, *, lr):
        with toy.run(transport=transport, lr=lr):
            return True

    with pytest.raises(unisono.RankDivergence, match=r"optimizer\.groups"):
        run_ranks(lambda transport: train(transport, lr=0.1 * (1 + transport.rank)), 2)
    assert run_ranks(lambda transport: train(transport, lr=0.1), 2) == [True, True]


def test_first_weights_are_the_seeds(toy):
    """Models built after the run start from its seed, whatever was drawn before, on any rank."""

    def program(transport):
        torch.rand(transport.rank + 1)
        with toy.run(transport=transport, seed=5) as (run, _, _):
            return run.fingerprint()

    prints = {*run_ranks(program, 3), *run_ranks(program, 1)}
    assert len(prints) == 1
    with toy.run(seed=6) as (run, _, _):
        assert run.fingerprint() not in prints


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"replicas": 0}, "replicas as a whole number of replicas from 1 to .*, got 0"),
        ({"threads": 0}, "threads as a whole number of threads from 1 to .*, got 0"),
        ({"checkpoint_every": 0}, "checkpoint_every as .* a whole number of steps from 1 to .*, got 0"),
        ({"clip_norm": 0.0}, "clip_norm as a number above 0"),
        ({"clip_norm": float("inf")}, "clip_norm as a number above 0, at most .*, got inf"),
        ({"clip_norm": True}, r"clip_norm as a number above 0, at most .*, got True \(bool\)"),
        ({"threads": 10**23}, "threads as a whole number of threads from 1 to 4,096, got 1000"),
        ({"replicas": 2.0}, "replicas as a whole number .*, got 2.0"),
        ({"seed": None}, "got None. Hint: leave it out, or seed=0."),
        ({"seed": 2**63}, "seed as a whole number from -9,223,372,036,854,775,808 to 9,223,372,036,854,775,807"),
        ({"clip_norm": float("nan")}, "clip_norm as a number above 0"),
        ({"clip_value": -1.0}, "clip_value as a number above 0"),
        ({"clip_value": 0.1, "clip_norm": 1.0}, "got both .1.0 and 0.1."),
    ],
)
def test_settings_out_of_range(settings, said):
    """Settings out of range are refused with the bound and the value."""
    with pytest.raises(unisono.ConfigError, match=said):
        unisono.Run(**settings)


def test_integers_of_numpy_become_plain_ones():
    """Of an array's shape, say: what is stored as JSON is an int."""
    with unisono.Run(seed=np.int64(3), replicas=np.int32(2), threads=np.uint8(1)) as run:
        assert [type(value) for value in (run.seed, run.replicas, run.threads)] == [int] * 3


def test_wrong_order(toy):
    """Steps before `prepare`, and no epochs, are refused."""
    with unisono.Run() as run:
        with pytest.raises(unisono.ConfigError, match="prepare"):
            next(run.steps(run.loader(toy.data, batch_size=12), epochs=1))
        with pytest.raises(unisono.ConfigError, match="prepare"):
            run.fingerprint()
    with (
        toy.run() as (run, _, _),
        pytest.raises(unisono.ConfigError, match=r"epochs as a whole number of epochs from 1 to .*, got 0"),
    ):
        next(run.steps(run.loader(toy.data, batch_size=12), epochs=0))


def test_a_model_without_parameters():
    """A model that cannot learn is refused by name."""
    with unisono.Run() as run, pytest.raises(unisono.ConfigError, match="trainable parameters, got Linear"):
        model = nn.Linear(1, 1).requires_grad_(False)
        run.prepare(model, torch.optim.SGD(model.parameters()))


def test_the_ledger_tells_bits(toy, tmp_path):
    """Two runs of one score have equal ledgers; a changed sample changes it from its step on."""
    toy.train(out=tmp_path / "a")
    toy.train(out=tmp_path / "b")
    sample = ExactSampler(56, 12, seed=0).batch(3)[0]
    toy.x[sample, 0] += 1e-6
    toy.train(out=tmp_path / "c")
    a, b, c = ((tmp_path / name / "ledger.jsonl").read_text().splitlines() for name in "abc")
    assert a == b
    assert [x == y for x, y in zip(a, c, strict=True)] == [True, True, *[False] * 8]
