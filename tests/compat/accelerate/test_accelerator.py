"""A script for accelerate whose import line alone is changed trains to the same bits on any number of ranks."""

import contextlib
import functools
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

from compat.accelerate.scripts import classify, parts
from compat.shared import Killed, data, trained_by, turn
from ranks import run_threads
from unisono.compat.accelerate import Accelerator, DataLoaderConfiguration, set_seed
from unisono.data.sampler import ExactSampler
from unisono.errors import ConfigError, NonFiniteError, PlaceError, RankDivergence, StepError

trained = functools.partial(trained_by, classify)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_bits_do_not_depend_on_ranks(tmp_path, accumulation):
    """Weights, ledger, schedule, loss and outputs in evaluation are equal on 1, 2, 3 and 6 ranks."""
    reference, ledger = trained(tmp_path, 1, accumulation=accumulation)
    assert reference["turns"] == math.ceil(67 / 18)
    assert reference["steps"] == 2 * math.ceil(reference["turns"] / accumulation) == len(ledger.splitlines())
    assert len(reference["right"]) == 23
    for ranks in (2, 3, 6)[::accumulation]:
        assert trained(tmp_path, ranks, accumulation=accumulation) == (reference, ledger)


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(5, marks=pytest.mark.slow)])
def test_killed_and_resumed(tmp_path, step):
    """Killed in a turn on 2 ranks, the script gone on with on 3 and then 1 has the calm run's ledger and weights."""
    calm, ledger = trained(tmp_path / "calm", 1, accumulation=2, epochs=3)

    def killed(transport):
        with contextlib.suppress(Killed):
            classify(
                transport, tmp_path / "out", accumulation=2, epochs=3, checkpoint_every=1,
                kill=lambda accelerator: accelerator.completed_steps == step,
            )  # fmt: skip

    run_threads(killed, 2)
    lines = (tmp_path / "out" / "ledger.jsonl").read_text()
    assert 0 < len(lines.splitlines()) < len(ledger.splitlines())
    assert ledger.startswith(lines)
    partly = run_threads(lambda transport: classify(transport, tmp_path / "out", accumulation=2, epochs=2), 3)
    assert partly[0]["steps"] == 4 or step == 5
    done = run_threads(
        lambda transport: classify(transport, tmp_path / "out", replicas=None, accumulation=2, epochs=3), 1
    )
    assert (tmp_path / "out" / "ledger.jsonl").read_text() == ledger
    assert {**done[0], "loss": 0} == {**calm, "loss": 0}  # of a last pass that was complete there is none


def test_a_rate_set_by_hand_counts_once(tmp_path):
    """Ended between two epochs, before and after a rate was set and saved, then within one: the calm run's weights."""

    def script(place):
        def after(accelerator, optimizer, epoch):
            if (epoch, "before") == place:
                raise Killed
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
            accelerator.save_state()
            if (epoch, "after") == place:
                raise Killed

        def train(transport):
            how = {"after": after, "kill": lambda accelerator: accelerator.completed_steps == place}
            with contextlib.suppress(Killed):
                return classify(transport, tmp_path / ("calm" if place is None else "out"), epochs=3, **how)

        return train

    calm = run_threads(script(None), 1)
    for place in ((0, "before"), (0, "after"), (0, "after"), 6, (1, "after")):
        assert run_threads(script(place), 2) == [None] * 2
    assert run_threads(script("end"), 3) == calm * 3
    assert calm[0]["lr"][0] < 0.5 * 0.01 * 0.5  # the control: the rate set by hand is in use


def test_a_state_without_what_comes_after_its_pass_is_refused(tmp_path):
    """load_state() of a directory that was saved as a pass ended, where the script begins with the next one."""
    run_threads(lambda transport: classify(transport, tmp_path, epochs=1), 1)
    with pytest.raises(StepError, match="leave out load_state"):
        run_threads(lambda transport: classify(transport, tmp_path, load=True), 1)


@pytest.mark.slow
def test_sigkill_and_restart(tmp_path):
    """Real processes, killed by SIGKILL: the launcher starts the unchanged script again, and the bits are equal."""
    script = Path(__file__).with_name("scripts.py")
    path = {"PYTHONPATH": str(Path(__file__).parents[2])}

    def run(name, marker):
        out = tmp_path / name
        command = [
            sys.executable,
            "-m",
            "unisono",
            "run",
            "-n",
            "2",
            "--max-restarts",
            "2",
            str(script),
            str(out),
            marker,
        ]
        done = subprocess.run(command, env=os.environ | path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return (out / "ledger.jsonl").read_text(), done.stdout.split()[-1]

    there = tmp_path / "marker"
    there.touch()
    assert run("killed", str(tmp_path / "new")) == run("calm", str(there))
    assert (tmp_path / "new").exists()
    assert '"launch": 2' in (tmp_path / "killed" / "phases" / "rank-0.jsonl").read_text()


def plain_loop(batches, *, schedule_steps, clip=0.5):
    """Return the weights that one process and one batch a step come to."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    losses = []
    x, y = data().tensors
    for batch in batches:
        loss = F.cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        for _ in range(schedule_steps):
            schedule.step()
        losses.append(loss.item())
    return model, losses, schedule.get_last_lr()


def shim_loop(transport, *, clip=0.5, split=False, **settings):
    set_seed(0)
    config = DataLoaderConfiguration(split_batches=split, even_batches=False)
    accelerator = Accelerator(replicas=4, dataloader_config=config, transport=transport, **settings)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    train = DataLoader(data(), batch_size=20 if split else 5, shuffle=True)
    model, optimizer, train, schedule = accelerator.prepare(model, optimizer, train, schedule)
    losses = []
    for _ in range(3):
        for x, y in train:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            nn.utils.clip_grad_norm_(model.parameters(), clip)  # torch's own: only a whole gradient is there to clip
            optimizer.step()
            schedule.step()
            if accelerator.sync_gradients:
                losses.append(accelerator.last_loss)
    return [parameter.tolist() for parameter in model.parameters()], losses, schedule.get_last_lr()


@pytest.mark.parametrize("split", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_equal_to_a_plain_loop(split):
    """Equal must not mean equally wrong: one process with the whole batch comes to the same weights within rounding."""
    sampler = ExactSampler(67, 20, seed=0)
    batches = [torch.from_numpy(sampler.batch(step)) for step in range(1, 13)]
    model, losses, lr = plain_loop(batches, schedule_steps=1 if split else 4)
    weights, ours, our_lr = run_threads(lambda transport: shim_loop(transport, split=split), 3)[0]
    assert ours == pytest.approx(losses, rel=1e-5)
    assert our_lr == pytest.approx(lr)
    for parameter, found in zip(model.parameters(), weights, strict=True):
        torch.testing.assert_close(torch.tensor(found), parameter.detach(), rtol=1e-4, atol=1e-5)
    other = plain_loop(batches, schedule_steps=1 if split else 4, clip=0.1)[1]
    assert ours != pytest.approx(other, rel=1e-3)  # the control: clipping counts


def no_backward(accelerator, model, optimizer, train):
    for x, _ in train:
        model(x)


def no_step(accelerator, model, optimizer, train):
    for x, y in train:
        accelerator.backward(F.cross_entropy(model(x), y))


def step_first(accelerator, model, optimizer, train):
    for _ in train:
        optimizer.step()


def raw_step(accelerator, model, optimizer, train):
    for x, y in train:
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.optimizer.step()


def gather_early(accelerator, model, optimizer, train):
    for batch in train:
        accelerator.gather(torch.tensor(1.0))
        turn(accelerator, model, optimizer, batch)


def save_early(accelerator, model, optimizer, train):
    for batch in train:
        accelerator.save_state("nowhere")
        turn(accelerator, model, optimizer, batch)


def save_in_the_middle(accelerator, model, optimizer, train):
    for x, y in train:
        accelerator.backward(F.cross_entropy(model(x), y))
        if accelerator.sync_gradients:
            accelerator.save_state("nowhere")
        optimizer.step()


def skip_untrained(accelerator, model, optimizer, train):
    for batch in accelerator.skip_first_batches(train, 1):
        turn(accelerator, model, optimizer, batch)


def seed_late(accelerator, model, optimizer, train):
    set_seed(4)


def second_optimizer(accelerator, model, optimizer, train):
    accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))


def no_sync(accelerator, model, optimizer, train):
    accelerator.no_sync(model)


def uneven(accelerator, model, optimizer, train):
    accelerator.join_uneven_inputs([model])


def load_late(accelerator, model, optimizer, train):
    for batch in train:
        turn(accelerator, model, optimizer, batch)
    accelerator.load_state("nowhere")


@pytest.mark.parametrize(
    ("habit", "error", "words"),
    [
        (no_backward, StepError, r"model\.eval\(\) before the loop"),
        (no_step, StepError, "gradient_accumulation_steps="),
        (step_first, StepError, "backward, then step"),
        (raw_step, StepError, "that of the optimizer that accelerator.prepare"),
        (gather_early, PlaceError, "if accelerator.sync_gradients"),
        (save_early, PlaceError, r"^accelerator\.save_state\(\) was called in a turn"),
        (save_in_the_middle, StepError, r"^accelerator\.save_state\(\) was called .* call it after the update"),
        (skip_untrained, StepError, "one after the other"),
        (seed_late, ConfigError, r"before accelerator\.prepare\(\)"),
        (second_optimizer, ConfigError, "a group of parameters for each"),
        (no_sync, ConfigError, "gradient_accumulation_steps="),
        (uneven, ConfigError, "leave it out"),
        (load_late, ConfigError, "before the first step"),
    ],
)
def test_habits_that_are_refused(habit, error, words):
    """What would not be exact is refused where it happens, with what to write instead."""
    accelerator = Accelerator(replicas=3)
    with pytest.raises(error, match=words):
        habit(accelerator, *parts(accelerator))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mixed_precision": "fp16"}, "bf16"),
        ({"fsdp_plugin": object()}, "strategy='fsdp'"),
        ({"dynamo_backend": "inductor"}, r"torch\.compile"),
        ({"kwargs_handlers": [object()]}, "leave it out"),
        ({"dataloader_config": DataLoaderConfiguration(dispatch_batches=True)}, "readers='leader'"),
        ({"strategy": "ddp"}, "own loop"),
        ({"log_with": "comet"}, "tensorboard"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps"),
    ],
)
def test_settings_that_are_refused(settings, words):
    """So are settings, before anything is built."""
    with pytest.raises(ConfigError, match=words):
        Accelerator(**settings)


def test_more_ranks_than_processes_are_refused():
    """V processes cannot be played by more ranks, also where accumulation makes more micro-batches."""
    with pytest.raises(ConfigError, match="at most as many workers"):
        run_threads(lambda transport: Accelerator(replicas=2, gradient_accumulation_steps=2, transport=transport), 3)


def test_leaving_a_pass_keeps_what_is_done(tmp_path):
    """A break before a step's update leaves the state of the step before, in memory and in the run directory."""
    accelerator = Accelerator(replicas=3, out=tmp_path)
    model, optimizer, train = parts(accelerator)
    known = None
    for batch in train:
        if accelerator.completed_steps == 2:
            accelerator.backward(F.cross_entropy(model(batch[0]), batch[1]))
            break
        turn(accelerator, model, optimizer, batch)
        known = accelerator.run.fingerprint()
    assert accelerator.run.fingerprint() == known
    assert accelerator.run.result()["steps"] == 2
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_are_whole_or_not_there():
    """Before the step's last turn there is no gradient to read; in it, it is that of the whole batch."""
    accelerator = Accelerator(replicas=3)
    model, optimizer, train = parts(accelerator)
    seen = []
    for x, y in train:
        before = [parameter.clone() for parameter in model.parameters()]
        accelerator.backward(F.cross_entropy(model(x), y))
        seen.append(model.weight.grad is not None)
        assert seen[-1] == accelerator.sync_gradients
        gradient = model.weight.grad
        if gradient is not None:
            gradient = gradient.clone()
        optimizer.step()
        if gradient is not None:
            torch.testing.assert_close(before[0] - 0.1 * gradient, model.weight.detach())
    assert seen == [False, False, True] * 4


@pytest.mark.parametrize(
    ("samples", "how", "places"), [(20, {}, 24), (20, {"drop_last": True}, 18), (23, {"even": False}, 23), (4, {}, 6)]
)
def test_the_end_of_an_epoch(samples, how, places):
    """As accelerate has it: filled up by the epoch's first samples, or left out; or, if asked for, a short batch."""
    how = {**how}
    config = DataLoaderConfiguration(even_batches=how.pop("even", True))
    accelerator = Accelerator(replicas=3, dataloader_config=config)
    model, optimizer, train = parts(accelerator, samples, shuffle=False, **how)
    seen = torch.cat([batch[0] for batch in batches_of(accelerator, model, optimizer, train)])
    whole = data(samples).tensors[0]
    assert torch.equal(seen, torch.cat([whole, whole])[:places])
    assert len(train) == -(-places // 6) == accelerator.completed_steps


def batches_of(accelerator, model, optimizer, train):
    for batch in train:
        yield batch
        turn(accelerator, model, optimizer, batch)


def test_uneven_ends_are_refused_without_filling():
    """even_batches=False cannot be honoured where a rank would have nothing to compute."""
    accelerator = Accelerator(replicas=3, dataloader_config=DataLoaderConfiguration(even_batches=False))
    with pytest.raises(ConfigError, match="even_batches=True"):
        next(iter(parts(accelerator, 20)[2]))


def test_a_state_is_gone_on_from(tmp_path):
    """save_state and load_state in the middle of an epoch, on other ranks, without a run directory: same weights."""

    def train(transport, folder, *, saves=None, loads=None, epochs=2):
        accelerator = Accelerator(replicas=3, transport=transport)
        model, optimizer, train = parts(accelerator, shuffle=True)
        first = 0
        if loads is not None:
            accelerator.load_state(folder)
            first, done = divmod(loads, len(train))
            train = accelerator.skip_first_batches(train, done)
        for _ in range(first, epochs):
            for batch in train:
                turn(accelerator, model, optimizer, batch)
                if accelerator.sync_gradients and accelerator.completed_steps == saves:
                    assert Path(accelerator.save_state(folder)) == folder
        return accelerator.run.fingerprint(), accelerator.completed_steps

    calm = run_threads(train, 1, tmp_path / "none")[0]
    assert run_threads(lambda transport: train(transport, tmp_path / "state", saves=6), 2) == [list(calm)] * 2
    assert run_threads(lambda transport: train(transport, tmp_path / "state", loads=6), 3) == [list(calm)] * 3
    with pytest.raises(StepError, match="one after the other"):
        run_threads(lambda transport: train(transport, tmp_path / "state", loads=7), 1)


def test_a_state_of_another_run_is_refused(tmp_path):
    """A run directory that stands elsewhere does not go on from a state that is not its own."""
    accelerator = Accelerator(replicas=3)
    model, optimizer, train = parts(accelerator)
    for batch in train:
        turn(accelerator, model, optimizer, batch)
    accelerator.save_state(tmp_path / "state")
    other = Accelerator(replicas=3, project_dir=tmp_path / "out")
    prepared = parts(other)
    other.load_state(tmp_path / "state")
    with pytest.raises(ConfigError, match="another run"):
        next(iter(prepared[2]))


def test_bf16(tmp_path):
    """bf16 is part of the score, gives float32 outputs, and the same bits on any number of ranks."""
    reference, ledger = trained(tmp_path / "a", 1, mixed_precision="bf16", epochs=1)
    assert trained(tmp_path / "a", 2, mixed_precision="bf16", epochs=1) == (reference, ledger)
    assert trained(tmp_path / "b", 1, epochs=1)[1] != ledger
    accelerator = Accelerator(mixed_precision="bf16")
    assert accelerator.prepare(nn.Linear(2, 2))(torch.ones(1, 2)).dtype == torch.float32


def test_ranks_that_build_different_models_are_told():
    """As ever: what depends on the rank before the first step is found there."""

    def program(transport):
        accelerator = Accelerator(replicas=2, transport=transport)
        torch.manual_seed(transport.rank)
        parts(accelerator)

    with pytest.raises(RankDivergence, match="before the first step"):
        run_threads(program, 2)


def test_subsets():
    """Subset makes shorter epochs."""
    accelerator = Accelerator(replicas=2)
    model = nn.Linear(8, 2)
    loader = DataLoader(Subset(TensorDataset(torch.arange(10.0)), range(8)), batch_size=2)
    loader, model = accelerator.prepare(loader, model)
    assert torch.cat([batch[0] for batch in loader]).tolist() == list(map(float, range(8)))


@pytest.mark.parametrize("skips", [False, True])
def test_a_loss_that_is_not_finite(skips):
    """The run stops before the update; or, if asked to, leaves weights and schedule as they are for this step."""
    accelerator = Accelerator(replicas=3, **({"non_finite": "skip"} if skips else {}))
    model, optimizer, train = parts(accelerator)
    schedule = accelerator.prepare(torch.optim.lr_scheduler.ExponentialLR(optimizer.optimizer, 0.5))
    skipped = []

    def train_all():
        for x, y in train:
            known = accelerator.run.fingerprint()
            factor = math.nan if accelerator.completed_steps == 1 else 1.0
            accelerator.backward(F.cross_entropy(model(x), y) * factor)
            optimizer.step()
            schedule.step()
            if accelerator.sync_gradients:
                skipped.append(optimizer.step_was_skipped)
                assert (accelerator.run.fingerprint() == known) == skipped[-1]

    if skips:
        train_all()
        assert skipped == [False, True, False, False]
        assert schedule.get_last_lr() == [pytest.approx(0.1 * 0.5**9)]
    else:
        with pytest.raises(NonFiniteError, match="step 2"):
            train_all()
