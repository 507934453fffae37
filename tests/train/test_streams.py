"""Streams train to the same ledger on any number of workers, killed and resumed on others."""

import contextlib
import json
import random
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from ranks import run_threads
from unisono.data.sources import stream_loader
from unisono.errors import ConfigError, DataError, RankDivergence, StepError


class Killed(BaseException):
    """What ends a run in the middle of a step."""


def die(micro):
    raise Killed


def items():
    for number in range(22):
        yield {"number": number, "noise": torch.rand(1)}


def pair(item):
    return torch.cat([item["noise"], torch.rand(1) * 0.1 + item["number"] / 10]), item["number"] % 3


class Job:
    """A tiny training on a stream, in directories of its own."""

    def __init__(self, folder):
        self.folder = folder

    def train(self, out, workers, source=items, *, window=5, stop_after=None, epochs=3, max_steps=None,
              read="all", batch_size=6, **settings):  # fmt: skip
        """Return ledger, fingerprint and epochs; after `stop_after` steps the next one is killed, on all ranks."""

        def program(transport):
            how = {"seed": 0, "replicas": 5, "checkpoint_every": 2, **settings}
            run = unisono.Run(out=self.folder / out, transport=transport, **how)
            model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.2), nn.Linear(4, 3))
            run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            chosen = source[transport.rank] if isinstance(source, list) else source
            stream = unisono.Stream(chosen, window=window, read=read)
            loader = run.loader(stream, batch_size=batch_size, transform=pair)
            for batch in run.steps(loader, epochs=epochs, max_steps=max_steps):
                if batch.step == stop_after:
                    with contextlib.suppress(Killed):
                        run.step(batch, die)
                    break
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            return run.fingerprint(), run.result().get("epochs")

        results = run_threads(program, workers)
        assert all(result == results[0] for result in results)
        return (self.folder / out / "ledger.jsonl").read_text(), *results[0]


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def test_any_number_of_workers(job):
    """One ledger, each pass an epoch, the last batch short; other orders are other runs."""
    expected = job.train("one", 1)
    lines = [json.loads(line) for line in expected[0].splitlines()]
    assert [(line["epoch"], line["num_samples"]) for line in lines] == [
        (epoch, size) for epoch in range(3) for size in (6, 6, 6, 4)
    ]
    assert len({line["samples"] for line in lines}) == 12
    assert expected[2] == 3
    for workers in (2, 3):
        assert job.train(f"{workers}", workers) == expected
    assert job.train("plain", 1, window=0)[0] != expected[0]
    assert job.train("short", 2, max_steps=5)[0].splitlines() == expected[0].splitlines()[:5]


@pytest.mark.parametrize("stop_after", [7, *(pytest.param(step, marks=pytest.mark.slow) for step in (2, 3, 5, 6))])
def test_killed_and_resumed_on_others(job, stop_after):
    """In the middle of a step, on 3 workers, then on 1, then on 2: as if nothing had been."""
    expected = job.train("calm", 1)
    job.train("killed", 3, stop_after=stop_after)
    job.train("killed", 1, stop_after=stop_after + 3)
    assert job.train("killed", 2) == expected


class Carrying:
    """Keeps a state: a generator of its own, which goes on from pass to pass, and its place in the pass."""

    def __init__(self):
        self.generator, self.at, self.drawn = random.Random(3), 0, 0

    def state_dict(self):
        return {"at": self.at, "drawn": self.drawn}

    def load_state_dict(self, state):
        self.generator, self.at, self.drawn = random.Random(3), state["at"], state["drawn"]
        for _ in range(self.drawn):
            self.generator.randrange(3)

    def __iter__(self):
        while self.at < 22:
            self.at, self.drawn = self.at + 1, self.drawn + 1
            yield {"number": self.generator.randrange(3), "noise": torch.rand(1)}
        self.at = 0


@pytest.mark.parametrize("window", [0, 5])
def test_what_a_source_carries_from_pass_to_pass(job, window, monkeypatch):
    """Resumed at a pass's end, and just behind it, it goes over into the next as it did; the control begins anew."""
    expected = job.train("calm", 1, Carrying(), window=window)
    for most in (4, 5, 8, 10):
        job.train("parts", 1, Carrying(), window=window, max_steps=most)
    assert job.train("parts", 1, Carrying(), window=window) == expected
    monkeypatch.setattr(stream_loader, "begin_pass", lambda *_, **__: None)
    job.train("anew", 1, Carrying(), window=window, max_steps=4)
    assert job.train("anew", 1, Carrying(), window=window) != expected


def test_left_after_a_step_and_gone_on_with(job, capsys):
    """A loop that is left by `max_steps`, and one that finds nothing to do; what is read again is told."""
    expected = job.train("calm", 1)
    for most in (3, 4, 5, 12):
        found = job.train("parts", 2, max_steps=most)
        assert found[0].splitlines() == expected[0].splitlines()[:most]
    assert job.train("parts", 1) == expected
    told = capsys.readouterr().err
    assert re.findall(r"parts finds its place in the stream: (\d+) items were read again in \d", told) == ["18", "6"]


def test_a_stream_without_an_end(job):
    """`max_steps` alone ends it; where nothing does, that is said before the first step."""

    def forever():
        while True:
            yield from items()

    expected = job.train("one", 1, forever, epochs=None, max_steps=9)
    assert len(expected[0].splitlines()) == 9
    assert job.train("two", 2, forever, epochs=None, max_steps=9) == expected
    with pytest.raises(ConfigError, match="expected epochs= or max_steps=, got neither"):
        job.train("three", 1, forever, epochs=None)


def test_loops_one_after_another_are_one():
    """Each finds its place again, within a window and at a pass's end, also behind a `break`."""

    def train(*limits):
        with unisono.Run(seed=0, replicas=2) as run:
            model = nn.Linear(2, 3)
            run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            loader = run.loader(unisono.Stream(items, window=5), batch_size=6, transform=pair)
            for limit in limits:
                for batch in run.steps(loader, epochs=3):
                    run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
                    if batch.step == limit:
                        break
            return run.fingerprint(), run.result()["steps"]

    assert train(3, 4, 7, None) == train(8, None) == train(None)


def test_a_stream_that_has_changed_is_refused(job):
    """At the start, before a step; the control goes on."""
    source = {"kind": 1}

    def lines():
        yield from (dict(item, number=item["number"] * source["kind"]) for item in items())

    job.train("run", 1, lines, max_steps=6)
    source["kind"] = 2
    with pytest.raises(DataError, match="the stream has changed: it holds other items among the first 12 of pass 1"):
        job.train("run", 2, lines)
    source["kind"] = 1
    job.train("run", 2, lines)


def test_the_leader_reads_alone(job):
    """The ledger of every rank reading, also killed and gone on with either way; nobody else touches the source."""
    expected = job.train("all", 1)
    assert job.train("one", 1, read="leader") == expected

    def alone():
        raise AssertionError

    alone.__qualname__ = items.__qualname__
    assert job.train("alone", 3, [items, alone, alone], read="leader") == expected
    with pytest.raises(AssertionError):
        job.train("control", 2, [items, alone])
    job.train("killed", 3, read="leader", stop_after=7)
    job.train("killed", 1, stop_after=10)
    assert job.train("killed", 2, read="leader") == expected


def test_a_leader_hands_over_no_other_types(job):
    """What would come out as something else is refused, with the way out."""

    class Number(int):
        pass

    with pytest.raises(DataError, match=r"hands over numbers.*got a Number.*read='all'"):
        job.train("a", 1, lambda: iter([{"number": Number(1), "noise": torch.rand(1)}]), read="leader")
    with pytest.raises(ConfigError, match="expected read as 'all' or 'leader', got 'some'"):
        unisono.Stream([1], read="some")


def test_a_batch_that_grows(job):
    """The pass goes on with more items a step, on any number of workers and after a kill."""
    schedule = unisono.BatchSchedule({0: 6, 2: 10})
    expected = job.train("one", 1, batch_size=schedule)
    assert [json.loads(line)["num_samples"] for line in expected[0].splitlines()] == [6, 6, 10, 10, 10, 2, 10, 10, 2]
    assert job.train("two", 3, batch_size=schedule, read="leader") == expected
    job.train("killed", 2, batch_size=schedule, stop_after=3)
    assert job.train("killed", 1, batch_size=schedule) == expected


def fit_stream(folder, transport, *, max_steps=9, read="all", callbacks=()):
    """Fit on a stream; return ledger and metrics."""
    with unisono.Run(seed=0, replicas=5, out=folder, transport=transport, checkpoint_every=2) as run:
        model = nn.Linear(2, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = unisono.Trainer(run, model, optimizer, loss=nn.CrossEntropyLoss(), callbacks=callbacks)
        test = unisono.ArrayDataset(torch.linspace(0, 1, 14).view(7, 2), torch.arange(7) % 3)
        trainer.fit(
            unisono.Stream(items, window=5, read=read), batch_size=6, max_steps=max_steps, test_set=test,
            eval_every=4, log_every=2, transform=pair, show_progress=max_steps == 9,
        )  # fmt: skip
        return (folder / "ledger.jsonl").read_text(), (folder / "metrics.jsonl").read_text(), run.result()["metrics"]


def test_a_trainer_fits_a_stream(tmp_path, capsys):
    """So many steps, evaluated and logged by steps; equal on any number of workers, and when gone on with."""
    expected = run_threads(lambda transport: fit_stream(tmp_path / "one", transport), 1)[0]
    assert re.search(r"pass 3  step 9/9  loss", capsys.readouterr().err)
    evaluated = [line["step"] for line in map(json.loads, expected[1].splitlines()) if "test_loss" in line["values"]]
    assert evaluated == [4, 8, 9]
    assert run_threads(lambda transport: fit_stream(tmp_path / "three", transport, read="leader"), 3) == [expected] * 3
    run_threads(lambda transport: fit_stream(tmp_path / "parts", transport, max_steps=8), 2)
    assert run_threads(lambda transport: fit_stream(tmp_path / "parts", transport), 1) == [expected]
    with pytest.raises(ConfigError, match=r"SWA waits for epochs \(on_epoch_end\)"):
        fit_stream(tmp_path / "swa", "auto", callbacks=[unisono.callbacks.SWA()])


def test_ranks_that_read_different_items_are_found_out(job):
    """Split by rank, or ended early: named in the step."""
    split = [lambda rank=rank: (item for item in items() if item["number"] % 2 == rank) for rank in range(2)]
    with pytest.raises(RankDivergence, match=r"rank 1 has read other items for step 1 than rank 0.*split_by_node"):
        job.train("split", 2, split)

    def up_to(most):
        return lambda: (item for item in items() if item["number"] < most)

    with pytest.raises(RankDivergence, match="rank 1 has read 9 items in place of 12 for step 2"):
        job.train("early", 2, [up_to(22), up_to(9)])


def test_what_is_refused(job):
    """Settings that need a length, and places where nobody reads in step."""
    with pytest.raises(ConfigError, match="expected an interval in steps for a stream"):
        job.train("a", 1, checkpoint_every="1 epochs")
    with pytest.raises(DataError, match="expected a stream with items, got none in pass 0"):
        job.train("b", 2, list)
    with pytest.raises(StepError):
        run = unisono.Run(seed=0, replicas=1)
        model = nn.Linear(1, 1)
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in run.steps(run.loader(unisono.Stream([1.0, 2.0]), batch_size=1), epochs=1):
            pass


def test_the_loader_refuses_what_needs_a_length():
    """len(), iteration, loader processes, plans; a strategy whose ranks go their own ways; a trainer."""
    stream = unisono.Stream([1.0, 2.0])
    with unisono.Run(seed=0, replicas=1) as run:
        for wrong in ({"num_workers": 1}, {"shuffle": False}, {"plan": unisono.Weighted([1])}):
            with pytest.raises(ConfigError, match="a stream is read in its own order"):
                run.loader(stream, batch_size=1, **wrong)
        loader = run.loader(stream, batch_size=1)
        with pytest.raises(TypeError, match="a stream has no length, by which epochs"):
            len(loader)
        with pytest.raises(ConfigError, match="is not iterated by itself"):
            iter(loader)
        with pytest.raises(ConfigError, match="stream"):
            run.loader(stream, batch_size=1)
        with pytest.raises(ConfigError, match="a stream is to train on"):
            unisono.Mixture([(stream, 1)])
    with unisono.Run(seed=0, replicas=1) as run:
        model = nn.Linear(1, 1)
        trainer = unisono.Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1), loss=F.mse_loss)
        for wrong in ({"epochs": 1}, {}, {"epochs": 1, "max_steps": 2}):
            with pytest.raises(ConfigError, match=r"does not tell beforehand .*fit\(stream, max_steps=\.\.\.\)"):
                trainer.fit(unisono.Stream([1.0]), batch_size=1, **wrong)
    with (
        unisono.Run(seed=0, replicas=1, strategy="allreduce") as run,
        pytest.raises(ConfigError, match="which the strategy 'allreduce' does not promise"),
    ):
        run.loader(stream, batch_size=1)
