"""Streams train to the same ledger on any number of workers, killed and resumed on others."""

import contextlib
import json
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from ranks import run_threads
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

    def train(self, out, workers, source=items, *, window=5, stop_after=None, epochs=3, max_steps=None, **settings):
        """Return ledger, fingerprint and epochs; after `stop_after` steps the next one is killed, on all ranks."""

        def program(transport):
            how = {"seed": 0, "replicas": 5, "checkpoint_every": 2, **settings}
            run = unisono.Run(out=self.folder / out, transport=transport, **how)
            model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.2), nn.Linear(4, 3))
            run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            chosen = source[transport.rank] if isinstance(source, list) else source
            loader = run.loader(unisono.Stream(chosen, window=window), batch_size=6, transform=pair)
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


def test_left_after_a_step_and_gone_on_with(job, capsys):
    """A loop that is left by `max_steps`, and one that finds nothing to do; what is read again is told."""
    expected = job.train("calm", 1)
    for most in (3, 4, 5, 12):
        found = job.train("parts", 2, max_steps=most)
        assert found[0].splitlines() == expected[0].splitlines()[:most]
    assert job.train("parts", 1) == expected
    told = capsys.readouterr().err
    assert re.findall(r"parts finds its place in the stream: (\d+) items were read again in \d", told) == ["18", "6"]


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
        with pytest.raises(TypeError, match="a stream has no length, by which Trainer"):
            len(loader)
        with pytest.raises(ConfigError, match="is not iterated by itself"):
            iter(loader)
        with pytest.raises(ConfigError, match="stream"):
            run.loader(stream, batch_size=1)
        with pytest.raises(ConfigError, match=r"a stream is for run\.loader alone"):
            unisono.Mixture([(stream, 1)])
    with unisono.Run(seed=0, replicas=1) as run:
        model = nn.Linear(1, 1)
        trainer = unisono.Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1), loss=F.mse_loss)
        with pytest.raises(TypeError, match=r"a stream has no length, by which Trainer\.fit"):
            trainer.fit(stream, epochs=1, batch_size=1)
    with (
        unisono.Run(seed=0, replicas=1, strategy="allreduce") as run,
        pytest.raises(ConfigError, match="which the strategy 'allreduce' does not promise"),
    ):
        run.loader(stream, batch_size=1)
