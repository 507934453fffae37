"""Callbacks are called in order, on the right ranks, with their state kept; failures say where."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import unisono
from ranks import run_threads
from train.callbacks.small import data, everywhere, fit
from unisono.callbacks import Callback
from unisono.collectives.loopback import run_ranks
from unisono.errors import ConfigError, PlaceError, RankDivergence


def test_a_change_of_the_world_is_told_after_its_step():
    """The hook gets the world before and the present one, once, before the step's end."""
    told = []

    class Watcher(Callback):
        def on_step_start(self, loop):
            if loop.step == 3:
                loop.run.world = replace(loop.run.world, launcher="another")

        def on_world_change(self, loop, old, new):
            told.append((loop.step, old.launcher, new.launcher))

        def on_step_end(self, loop):
            told.append(loop.step)

    fit([Watcher()], epochs=1, test=False)
    assert told == [1, 2, (3, "none", "another"), 3, 4, 5]


class Recorder(Callback):
    """Writes down every call."""

    def __init__(self, name="Recorder", calls=None):
        self.name = name
        self.calls = [] if calls is None else calls

    def note(self, hook, loop):
        self.calls.append(f"{self.name}.{hook.removeprefix('on_')} {loop.step}")


for _hook in [name for name in vars(Callback) if name.startswith("on_") and name not in ("on_log", "on_world_change")]:
    setattr(Recorder, _hook, lambda self, loop, hook=_hook: self.note(hook, loop))


class LeaderRecorder(Recorder):
    runs_on = "leader"


class Counter(Callback):
    """Keeps a number."""

    def __init__(self, name=""):
        self.name = name
        self.count = 0

    def on_step_end(self, loop):
        self.count += 1
        loop.log(count=self.count)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def test_every_hook_in_its_place():
    """Start, epochs, steps, evaluations and end, for ten steps of which five make an epoch; alike on all ranks."""

    def program(transport):
        recorder = Recorder("d")
        fit([recorder], transport=transport)
        return recorder.calls

    def steps(first, last):
        return [f"d.step_{half} {step}" for step in range(first, last + 1) for half in ("start", "end")]

    expected = ["d.run_start 0", "d.epoch_start 1", *steps(1, 5)]
    expected += ["d.evaluation_start 5", "d.evaluation_end 5", "d.epoch_end 5", "d.epoch_start 6", *steps(6, 10)]
    expected += ["d.evaluation_start 10", "d.evaluation_end 10", "d.epoch_end 10", "d.run_end 10"]
    assert everywhere(program) == expected


def test_in_the_order_given():
    """The first in the list is called first, in every hook."""
    calls = []
    fit([Recorder("b", calls), Recorder("a", calls)], epochs=1)
    assert calls[0::2] == [call.replace("a.", "b.") for call in calls[1::2]]
    assert [call[0] for call in calls[:4]] == ["b", "a", "b", "a"]


def test_the_leaders_run_on_the_leader():
    """A callback that says so is called on rank 0 alone."""

    def program(transport):
        recorder = LeaderRecorder()
        fit([recorder], transport=transport, epochs=1)
        return len(recorder.calls)

    counts = run_threads(program, 3)
    assert counts[0] > 10
    assert counts[1:] == [0, 0]


def test_callbacks_do_not_change_the_training():
    """With and without callbacks: one fingerprint."""
    assert fit([Recorder(), Counter()])[0]["fingerprint"] == fit()[0]["fingerprint"]


def test_state_travels_with_the_checkpoint(tmp_path):
    """Interrupted after step 7 and gone on: the state is that of an uninterrupted run, and so is what was logged."""
    whole, parts = Counter(), Counter()
    fit([whole], out=tmp_path / "whole")
    fit([Counter()], out=tmp_path / "parts", max_steps=7)
    fit([parts], out=tmp_path / "parts")
    assert parts.count == whole.count == 10
    logged = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "parts")]
    wanted = [json.loads(line) for line in logged[0].splitlines()]
    assert [line["step"] for line in wanted] == [2, 4, 5, 6, 8, 10]
    assert wanted[-1]["values"].keys() == {"count", "train/loss", "test_loss", "test_accuracy"}
    assert wanted[1] == {
        "step": 4,
        "epoch": 0,
        "values": {"count": 4.0, "train/loss": wanted[1]["values"]["train/loss"]},
    }
    by_step = {line["step"]: line for line in map(json.loads, logged[1].splitlines())}
    assert [by_step[line["step"]] for line in wanted] == wanted


@pytest.mark.parametrize(
    ("callbacks", "error", "words"),
    [
        ([Counter(), Counter()], ConfigError, "two callbacks are named 'Counter'"),
        ([object()], ConfigError, "inherit unisono.Callback, got object"),
    ],
)
def test_wrong_callbacks_are_refused_at_start(callbacks, error, words):
    """Said when the trainer is made."""
    with pytest.raises(error, match=words):
        fit(callbacks)
    fit([Counter("one"), Counter("two")], epochs=1, test=False)


class Misspelt(Callback):
    def on_steps_end(self, loop):
        raise AssertionError


def test_a_misspelt_hook_is_told_of():
    """It would never be called; the nearest one is named."""
    with pytest.warns(UserWarning, match=r"Misspelt.on_steps_end is no hook.*did you mean 'on_step_end'"):
        fit([Misspelt()], epochs=1, test=False)


def test_one_that_cannot_be_distributed_is_refused_at_start():
    """It works alone, and names itself on two ranks."""

    class Alone(Recorder):
        runs_on = "alone"

    fit([Alone()], epochs=1)
    with pytest.raises(PlaceError, match=r"callback 'Recorder' \(Alone\) says that it cannot work with several ranks"):
        run_ranks(lambda transport: fit([Alone()], transport=transport), 2)


class Raises(Callback):
    def __init__(self, rank):
        self.rank = rank

    def on_step_end(self, loop):
        if loop.run.world.rank == self.rank and loop.step == 3:
            raise ZeroDivisionError("divided by hand")


def test_a_failure_says_where():
    """Raised on one rank: the very exception, with callback, hook, step and rank."""
    with pytest.raises(ZeroDivisionError, match="divided by hand") as caught:
        run_ranks(lambda transport: fit([Raises(1)], transport=transport), 3)
    assert "in callback Raises.on_step_end, step 3, on rank 1 of 3" in caught.value.__notes__[0]


class LogsOtherNames(Callback):
    def on_step_end(self, loop):
        loop.log(**{f"speed{loop.run.world.rank}" if loop.step >= 3 else "speed": 1.0})


def test_other_names_stop_all_ranks():
    """The error names both sets, alike on all ranks."""

    def program(transport):
        with pytest.raises(RankDivergence) as caught:
            fit([LogsOtherNames()], transport=transport)
        return str(caught.value)

    texts = run_ranks(program, 2)
    assert texts[0] == texts[1]
    assert "rank 0 has {speed0, train/loss}, rank 1 has {speed1, train/loss}" in texts[0]


class MutatesTheBatch(Callback):
    def on_step_start(self, loop):
        loop.indices[0] = 7


def test_the_batch_is_read_only():
    """Writing into a batch's sample numbers is an error that names the callback."""
    with pytest.raises(ValueError, match="read-only") as caught:
        fit([MutatesTheBatch()])
    assert "in callback MutatesTheBatch.on_step_start, step 1" in caught.value.__notes__[0]


class LeaderMeets(Callback):
    runs_on = "leader"

    def on_step_end(self, loop):
        loop.run.transport.barrier()


def test_a_collective_on_the_leader_only_is_refused():
    """It is named, instead of a wait without end."""
    with pytest.raises(PlaceError, match=r"barrier was called where callback LeaderMeets\.on_step_end runs on rank 0"):
        run_ranks(lambda transport: fit([LeaderMeets()], transport=transport), 2)


class ChangesWeights(Callback):
    """Flips one bit of one weight on one rank."""

    def on_step_end(self, loop):
        if loop.run.world.rank == 1 and loop.step == self.at:
            with torch.no_grad():
                loop.model[1].bias.view(torch.int32)[2] ^= 1

    def __init__(self, at):
        self.at = at


@pytest.mark.parametrize("at", [3, 10])
def test_a_flipped_bit_stops_the_run(at):
    """Rank, first parameter and step, on all ranks, also after the very last step; without the flip nothing is said."""

    def program(transport):
        with pytest.raises(RankDivergence) as caught:
            fit([ChangesWeights(at)], transport=transport, test=False)
        return str(caught.value)

    texts = run_ranks(program, 2)
    assert texts[0] == texts[1]
    assert f"step {min(at + 1, 10)}: rank 1 holds other weights" in texts[0]
    assert "first in '1.bias' (1 of " in texts[0]
    run_ranks(lambda transport: fit([ChangesWeights(99)], transport=transport, test=False), 2)


class StopsHere(Callback):
    def on_step_end(self, loop):
        if loop.run.world.rank == loop.run.world.world_size - 1 and loop.step == 3:
            loop.stop("enough")


@pytest.mark.parametrize("world_size", [1, 3])
def test_one_ranks_stop_stops_all(world_size, tmp_path):
    """The run ends at the next step that logs, with checkpoint and result; the reason is recorded."""
    results = run_ranks(lambda transport: fit([StopsHere()], transport=transport, out=tmp_path)[0], world_size)
    assert results[0]["steps"] == 4
    assert results[0]["stopped_by"] == "enough"
    assert json.loads((tmp_path / "result.json").read_text()) == results[0]
    assert [path.name[:13] for path in (tmp_path / "checkpoints").glob("step-*")] == ["step-00000004"]
    assert {result["fingerprint"] for result in results} == {results[0]["fingerprint"]}


def test_a_trainer_can_fit_twice():
    """Epochs count from the run's start; the callbacks go on, and the bits are those of one fit."""
    whole = fit(epochs=3, test=False)[0]["fingerprint"]
    counter = Counter()
    with unisono.Run(seed=0, replicas=4) as run:
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        trainer = unisono.Trainer(run, model, optimizer, loss=nn.CrossEntropyLoss(), callbacks=[counter])
        trainer.fit(data(), epochs=1, batch_size=12, show_progress=False)
        assert counter.count == 5
        result = trainer.fit(data(), epochs=3, batch_size=12, show_progress=False)
    assert counter.count == 15
    assert result["fingerprint"] == whole
