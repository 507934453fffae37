"""A script for Fabric whose import line alone is changed trains to the same bits on any number of ranks."""

import contextlib
import functools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, Subset, WeightedRandomSampler

from compat.fabric.scripts import classify, parts
from compat.shared import Killed, data, trained_by, turn
from ranks import run_threads
from unisono.compat.fabric import Fabric, seed_everything
from unisono.errors import CheckpointError, ConfigError, PlaceError, RankDivergence, ScoreMismatch, StepError

trained = functools.partial(trained_by, classify)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_bits_do_not_depend_on_ranks(tmp_path, accumulation):
    """Weights, ledger, schedules, loss and scores are equal on 1, 2 and 4 ranks, also with uneven shares."""
    how = {"accumulation": accumulation, "samples": 72 if accumulation > 1 else 67}
    reference, ledger = trained(tmp_path, 1, **how)
    assert reference["turns"] == 4
    assert reference["processes"] == 6
    assert reference["steps"] == 8 // accumulation == len(ledger.splitlines())
    assert reference["scores"][1] <= 23
    for ranks in (2, 4) if accumulation == 1 else (2,):
        assert trained(tmp_path, ranks, **how) == (reference, ledger)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("step", [3, 4, pytest.param(6, marks=pytest.mark.slow)])
def test_killed_and_resumed(tmp_path, step, by_hand):
    """Killed on 2 ranks and gone on with on 3: the calm run's weights, ledger and learning rate.

    What the script does after each epoch (a schedule's step, a learning rate set by hand) is not done twice.
    """
    how = {"epochs": 3, "rate_by_hand": by_hand}
    calm, ledger = trained(tmp_path / "calm", 1, **how)

    def killed(transport):
        with contextlib.suppress(Killed):
            classify(transport, tmp_path / "out", kill=lambda fabric: fabric.completed_steps == step, **how)

    run_threads(killed, 2)
    lines = (tmp_path / "out" / "ledger.jsonl").read_text()
    assert ledger.startswith(lines)
    assert len(lines.splitlines()) == step
    done = run_threads(lambda transport: classify(transport, tmp_path / "out", **how), 3)
    assert (tmp_path / "out" / "ledger.jsonl").read_text() == ledger
    assert done == [calm] * 3


@pytest.mark.parametrize("accumulation", [1, 2])
def test_equal_to_a_plain_loop(accumulation):
    """Equal must not mean equally wrong: one process with the whole batch comes to the same weights within rounding.

    The script divides its loss where it accumulates, as it does under Fabric.
    """
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    sgd = torch.optim.SGD(plain.parameters(), lr=0.5)
    x, y = data(72).tensors
    for start in range(0, 72, 24):
        sgd.zero_grad()
        F.cross_entropy(plain(x[start : start + 24]), y[start : start + 24]).backward()
        sgd.step()

    def program(transport):
        seed_everything(0)
        fabric = Fabric(devices=4, accumulate_grad_batches=accumulation, transport=transport)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.5))
        for i, batch in enumerate(fabric.setup_dataloaders(DataLoader(data(72), batch_size=6 // accumulation))):
            fabric.backward(F.cross_entropy(model(batch[0]), batch[1]) / accumulation)
            if (i + 1) % accumulation == 0:
                optimizer.step()
        return [parameter.tolist() for parameter in model.parameters()]

    found = run_threads(program, 2)
    for parameter, ours in zip(plain.parameters(), found[0], strict=True):
        torch.testing.assert_close(torch.tensor(ours), parameter.detach(), rtol=1e-4, atol=1e-5)
    undivided = [parameter.tolist() for parameter in plain.parameters()]
    assert found[0][0] != undivided[0]  # the control: not the same computation


@pytest.mark.parametrize("has_directory", [False, True])
def test_a_state_is_gone_on_from(tmp_path, has_directory):
    """Save and load, on other ranks, with the script's own count of epochs: the calm run's weights."""

    def train(transport, *, stops_at=None, loads=False, out=None):
        fabric = Fabric(devices=3, transport=transport, out=out if has_directory else None)
        model, optimizer, train = parts(fabric, shuffle=True)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        state = {"model": model, "optimizer": optimizer, "epoch": 0}
        if loads:
            assert fabric.load(tmp_path / "state" / "one.ckpt", state) == {"more": [1, 2]}
        for epoch in range(state["epoch"], 3):
            for batch in train:
                turn(fabric, model, optimizer, batch)
            schedule.step()
            if epoch == stops_at:
                fabric.save(tmp_path / "state" / "one.ckpt", {**state, "epoch": epoch + 1, "more": [1, 2]})
                break
        return fabric.unisono.fingerprint(), fabric.completed_steps, optimizer.param_groups[0]["lr"]

    calm = run_threads(train, 1)[0]
    run_threads(lambda transport: train(transport, stops_at=1, out=tmp_path / "out"), 2)
    plain = torch.load(tmp_path / "state" / "one.ckpt", weights_only=True)
    assert plain["model"].keys() == {"weight", "bias"}
    going_on = lambda transport: train(transport, loads=True, out=tmp_path / "out")  # noqa: E731
    assert run_threads(going_on, 3) == [calm] * 3


def test_a_state_of_another_score_is_refused(tmp_path):
    """What was trained with another batch size cannot be gone on from; weights alone can."""
    fabric = Fabric(devices=3)
    model, optimizer, train = parts(fabric)
    for batch in train:
        turn(fabric, model, optimizer, batch)
    fabric.save(tmp_path / "a.ckpt", {"model": model, "optimizer": optimizer})
    other = Fabric(devices=3)
    model, optimizer, train = parts(other, batch_size=1)
    other.load(tmp_path / "a.ckpt", {"model": model, "optimizer": optimizer})
    with pytest.raises(ScoreMismatch, match="another score"):
        next(iter(train))
    third = Fabric(devices=3)
    model, optimizer, train = parts(third, batch_size=1)
    third.load(tmp_path / "a.ckpt", {"model": model})
    for batch in train:
        turn(third, model, optimizer, batch)
    assert third.completed_steps == 8
    third.load(tmp_path / "a.ckpt", {"model": model})
    with pytest.raises(StepError, match="load before the first step"):
        next(iter(train))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: path.unlink(), "cannot read"),
        (lambda path: path.write_bytes(path.read_bytes()[:-200]), "is not a file of tensors"),
        (lambda path: torch.save({"model": nn.Linear(2, 2)}, path), "is not a file of tensors"),
        (lambda path: torch.save([1], path), "holds a list"),
        (lambda path: torch.save({"weights": 1}, path), "has no model, but weights"),
    ],
)
def test_bad_files(tmp_path, change, words):
    """A file that is missing, cut off, or holds more than tensors, is told in one message."""
    fabric, path = Fabric(devices=1), tmp_path / "state.ckpt"
    model, _, _ = parts(fabric)
    fabric.save(path, {"model": model})
    change(path)
    with pytest.raises(CheckpointError, match=words):
        fabric.load(path, {"model": model})


def test_filters_and_raw_weights(tmp_path):
    """A filter leaves parts of a state out; a state_dict alone is loaded by load_raw."""
    fabric = Fabric(devices=1)
    model, _, _ = parts(fabric)
    fabric.save(tmp_path / "a.ckpt", {"model": model}, filter={"model": lambda name, _: name == "bias"})
    assert fabric.load(tmp_path / "a.ckpt")["model"].keys() == {"bias"}
    torch.save({name: torch.ones_like(value) for name, value in model.state_dict().items()}, tmp_path / "raw.pt")
    fabric.load_raw(tmp_path / "raw.pt", model)
    assert model.weight.unique().tolist() == [1.0]


def test_processes_and_collectives(tmp_path, capsys):
    """V processes on 2 ranks; broadcasts of tensors and plain values; unlike values are refused, not added up."""

    def program(transport):
        fabric = Fabric(devices=3, transport=transport)
        rank = fabric.global_rank
        assert (fabric.world_size, fabric.is_global_zero, fabric.node_rank) == (3, rank == 0, 0)
        with fabric.rank_zero_first():
            if rank == 0:
                (tmp_path / "first").touch()
            assert (tmp_path / "first").exists()
        fabric.barrier()
        fabric.print("once")
        own = torch.full((2, 3), rank + 0.5, dtype=torch.float64) if rank else torch.tensor([True])
        assert fabric.broadcast(own, src=1).tolist() == [[1.5] * 3] * 2
        assert fabric.broadcast({"name": [rank, None]}) == {"name": [0, None]}
        told = fabric.all_gather({"a": 2, "b": torch.ones(2)})
        assert (told["a"].item(), told["b"].tolist()) == (2, [1, 1])
        assert fabric.to_device([torch.ones(1)])[0].device == fabric.device
        with pytest.raises(RankDivergence, match="broadcast"):
            fabric.all_reduce(torch.tensor(float(rank)))
        return fabric.launch(lambda fabric, more: more, 5)

    assert run_threads(program, 2) == [5, 5]
    assert capsys.readouterr().out == "once\n"


def test_callbacks_and_loggers():
    """Callbacks get the keywords that they take; loggers get numbers."""
    seen = []

    class Told:
        def on_after_setup(self, module):
            seen.append(type(module).__name__)

        def on_after_optimizer_step(self, optimizer):
            seen.append(type(optimizer).__name__)

        def log_metrics(self, metrics, step):
            seen.append((metrics, step))

    fabric = Fabric(devices=2, callbacks=Told(), loggers=[Told()])
    model, optimizer, train = parts(fabric, samples=4)
    for batch in train:
        turn(fabric, model, optimizer, batch)
    fabric.log("loss", torch.tensor(2.0), step=3)
    assert seen == ["Linear", "SGD", ({"loss": 2.0}, 3)]


@pytest.mark.parametrize(
    ("samples", "how", "places", "turns"),
    [(20, {}, 21, 4), (20, {"drop_last": True}, 18, 3), (18, {}, 18, 3), (4, {}, 6, 1)],
)
def test_the_end_of_an_epoch(samples, how, places, turns):
    """As Fabric has it: each process gets as many samples, the missing ones are the epoch's first again."""
    fabric = Fabric(devices=3)
    model, optimizer, train = parts(fabric, samples, **how)
    seen = []
    for batch in train:
        seen.append(batch[0])
        turn(fabric, model, optimizer, batch)
    whole = data(samples).tensors[0]
    assert torch.equal(torch.cat(seen), torch.cat([whole, whole])[:places])
    assert len(train) == turns == fabric.completed_steps


def test_bf16(tmp_path):
    """bf16 is part of the score, gives float32 outputs, and the same bits on any number of ranks."""
    reference, ledger = trained(tmp_path / "a", 1, precision="bf16-mixed", epochs=1)
    assert trained(tmp_path / "a", 2, precision="bf16-mixed", epochs=1) == (reference, ledger)
    assert trained(tmp_path / "b", 1, epochs=1)[1] != ledger
    fabric = Fabric(precision="bf16-mixed")
    assert fabric.setup(nn.Linear(2, 2))(torch.ones(1, 2)).dtype == torch.float32
    with fabric.autocast():
        assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == torch.bfloat16


def test_schedules_that_are_handed_over_or_inside_others():
    """Setup returns a schedule in its place; one inside another is not stepped by itself; the rates are torch's."""
    fabric = Fabric(devices=3)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, then = (torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma) for gamma in (0.5, 0.9))
    both = torch.optim.lr_scheduler.SequentialLR(optimizer, [first, then], milestones=[2])
    model, optimizer, schedule = fabric.setup(model, optimizer, scheduler=both)
    assert schedule is both
    train, rates = fabric.setup_dataloaders(DataLoader(data(24), batch_size=2)), []
    for batch in train:
        turn(fabric, model, optimizer, batch)
        schedule.step()
        if fabric.sync_gradients:
            rates.append(schedule.get_last_lr()[0])
    assert rates == pytest.approx([0.05, 0.1, 0.09, 0.081])
    assert [*fabric.unisono._registered] == ["schedule-0"]


def without_fabric(fabric, model, optimizer, train):
    for x, y in train:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def accumulated(fabric, model, optimizer, train):
    for i, (x, y) in enumerate(train):
        fabric.backward(F.cross_entropy(model(x), y))
        if i % 5 == 4:
            optimizer.step()


def no_sync(fabric, model, optimizer, train):
    fabric.no_backward_sync(model)


def rate_by_turn(fabric, model, optimizer, train):
    for i, batch in enumerate(train):
        optimizer.param_groups[0]["lr"] = 0.1 / (i + 1)
        turn(fabric, model, optimizer, batch)


def reduced_loss(fabric, model, optimizer, train):
    for batch in train:
        turn(fabric, model, optimizer, batch)
        fabric.all_reduce(torch.tensor(1.0))


def broadcast_early(fabric, model, optimizer, train):
    for batch in train:
        fabric.broadcast(1)
        turn(fabric, model, optimizer, batch)


def save_in_the_middle(fabric, model, optimizer, train):
    for x, y in train:
        fabric.backward(F.cross_entropy(model(x), y))
        if fabric.sync_gradients:
            fabric.save("nowhere", {"model": model})
        optimizer.step()


def seed_late(fabric, model, optimizer, train):
    fabric.seed_everything(4)


def second_optimizer(fabric, model, optimizer, train):
    fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))


def two_alike(fabric, model, optimizer, train):
    schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) for _ in range(2)]
    for _ in train:
        assert schedules


def stream(fabric, model, optimizer, train):
    class Endless(IterableDataset):
        def __iter__(self):
            yield 1

    fabric.setup_dataloaders(DataLoader(Endless()))


def own_sampler(fabric, model, optimizer, train):
    fabric.setup_dataloaders(DataLoader(data()), use_distributed_sampler=False)


def odd_weights(fabric, model, optimizer, train):
    sampler = WeightedRandomSampler([1.0] * 24, 23)
    next(iter(fabric.setup_dataloaders(DataLoader(data(24), batch_size=2, sampler=sampler))))


def run_code(fabric, model, optimizer, train):
    fabric.load("nowhere", weights_only=False)


@pytest.mark.parametrize(
    ("habit", "error", "words"),
    [
        (without_fabric, StepError, r"fabric\.backward\(loss\)"),
        (accumulated, StepError, r"accumulate_grad_batches"),
        (no_sync, ConfigError, r"accumulate_grad_batches"),
        (rate_by_turn, StepError, r"fabric\.completed_steps"),
        (reduced_loss, PlaceError, r"fabric\.last_loss"),
        (broadcast_early, PlaceError, r"if fabric\.sync_gradients"),
        (save_in_the_middle, StepError, "call it after the update"),
        (seed_late, ConfigError, r"before fabric\.setup\(\)"),
        (second_optimizer, ConfigError, "a group of parameters for each"),
        (two_alike, ConfigError, "SequentialLR or ChainedScheduler"),
        (stream, ConfigError, r"unisono\.Stream"),
        (own_sampler, ConfigError, "WeightedRandomSampler"),
        (odd_weights, ConfigError, "num_samples"),
        (run_code, ConfigError, "could run code"),
    ],
)
def test_habits_that_are_refused(habit, error, words):
    """What would not be exact is refused where it happens, with what to write instead."""
    fabric = Fabric(devices=3)
    with pytest.raises(error, match=words):
        habit(fabric, *parts(fabric))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"precision": "16-mixed"}, "bf16-mixed"),
        ({"precision": "64-true"}, "bf16-mixed"),
        ({"strategy": "fsdp"}, r"unisono\.Run\(strategy='fsdp'\)"),
        ({"accelerator": "tpu"}, "'cuda'"),
        ({"plugins": [object()]}, "leave them out"),
        ({"devices": 0}, "at least 1"),
        ({"accumulate_grad_batches": 0}, "accumulate_grad_batches"),
    ],
)
def test_settings_that_are_refused(settings, words):
    """So are settings, before anything is built."""
    with pytest.raises(ConfigError, match=words):
        Fabric(**settings)


def test_ends_that_accumulation_does_not_fill():
    """Fabric would carry gradients into the next epoch; the message says which samples make whole steps."""
    fabric = Fabric(devices=3, accumulate_grad_batches=2)
    _, _, train = parts(fabric, samples=30)
    with pytest.raises(ConfigError, match=r"range\(24\)"):
        next(iter(train))
    model, optimizer, _ = parts(fabric := Fabric(devices=3, accumulate_grad_batches=2))
    train = fabric.setup_dataloaders(DataLoader(Subset(data(30), range(24)), batch_size=2))
    for i, (x, y) in enumerate(train):
        fabric.backward(F.cross_entropy(model(x), y) / 2)
        if i % 2:
            optimizer.step()
    assert fabric.completed_steps == 2


def test_devices_are_counted():
    """In Fabric's words."""
    assert [Fabric(devices=how).world_size for how in (2, "2", [0, 1], "0,1", "auto")] == [2, 2, 2, 2, 1]
    assert Fabric(devices=2, num_nodes=3).world_size == 6
    assert math.isnan(Fabric().last_loss)
