"""The promise itself: the same bits on any number of processes, also when interrupted and resumed on another."""

import itertools

import pytest

import jobs
from forks import run_forked
from ranks import once, run_processes, run_threads

PROCESSES = [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 4, 8))]
EIGHT = [name for name, job in jobs.JOBS.items() if job.replicas == 8]
FIVE = [name for name, job in jobs.JOBS.items() if job.replicas == 5]
LEGS = [(4, 4), (1, 8), (3, 13), (2, None)]
"""Ranks, and the step after which they stop; checkpoints are at every third step, epochs are of eleven."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The digits, in a file that all ranks read."""
    return jobs.save_digits(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def processes(data):
    """Give every rank's report of all jobs, from one launch of each world size; forked where it is the default one."""
    return once(lambda size: (run_forked if size == 3 else run_processes)(jobs.train_all, size, data))


@pytest.fixture(scope="module")
def threads(data):
    """Give every rank's report of all jobs, from loopback ranks in this process."""
    return once(lambda world_size: run_threads(jobs.train_all, world_size, data))


@pytest.fixture(scope="module")
def alone(threads):
    """Give the report of all jobs of a rank alone."""
    return lambda: threads(1)[0]


def check(reports, expected, name):
    """Every rank has what a rank alone has, and the leader's ledger is the same text."""
    expected, world_size = expected[name], len(reports)
    assert expected["own_fingerprint"] == expected["fingerprint"]
    assert len(expected["ledger"].splitlines()) == expected["steps"] == -(-jobs.JOBS[name].num_samples // 96)
    assert [report[name]["fingerprint"] for report in reports] == [expected["fingerprint"]] * world_size
    assert [report[name]["own_fingerprint"] for report in reports] == [expected["fingerprint"]] * world_size
    assert reports[0][name]["ledger"] == expected["ledger"]
    assert [report[name]["metrics"] for report in reports] == [expected["metrics"]] * world_size


@pytest.mark.parametrize("world_size", PROCESSES)
@pytest.mark.parametrize("name", EIGHT)
def test_eight_replicas_on_processes(processes, alone, name, world_size):
    """Fingerprint, ledger and metrics are those of one rank, on every rank."""
    assert len(processes(world_size)) == world_size
    check(processes(world_size), alone(), name)


@pytest.mark.parametrize("world_size", PROCESSES[:-1])
@pytest.mark.parametrize("name", FIVE)
def test_five_replicas_on_processes(processes, alone, name, world_size):
    """The same where neither the ranks divide the replicas, nor those the batch."""
    assert len(processes(world_size)) == world_size
    check(processes(world_size), alone(), name)


@pytest.mark.parametrize("name", EIGHT + FIVE)
def test_in_one_process(threads, alone, name):
    """The same with all ranks in this process."""
    check(threads(5), alone(), name)


def test_the_jobs_learn_and_differ(alone):
    """Negative control: no two jobs have one fingerprint, ledger or set of metrics, and losses fall."""
    reports = alone()
    for part in ("fingerprint", "ledger"):
        assert len({report[part] for report in reports.values()}) == len(jobs.JOBS)
    assert {metric for report in reports.values() for metric in report["metrics"]} == {"test_loss", "test_accuracy"}
    assert float.fromhex(reports["batchnorm-adamw-8"]["metrics"]["test_accuracy"]) > 0.5


@pytest.mark.parametrize("how", ["rank", "seed", "no steps"])
def test_the_comparison_can_fail(data, how, monkeypatch):
    """Negative control: a forward that knows its rank, another seed, an idle optimizer: each has other bits."""
    monkeypatch.setattr("unisono.strategies.witness.first_loss.FirstLoss.compare", lambda *_: None)
    honest = {report["fingerprint"] for size in (1, 2) for report in run_threads(jobs.cheat, size, data)}
    assert len(honest) == 1
    cheated = run_threads(jobs.cheat, 2, data, how)
    assert cheated[0]["fingerprint"] not in honest


@pytest.fixture(scope="module")
def uninterrupted(data, tmp_path_factory):
    """Report and ledger of the job run in one go, by one rank of this process."""
    out = tmp_path_factory.mktemp("whole")
    return run_threads(jobs.play_leg, 1, data, str(out), None)[0], (out / "ledger.jsonl").read_text()


def check_legs(folder, data, uninterrupted, run):
    """Run the legs, each from the last checkpoint of the one before; the end is the uninterrupted run's."""
    expected, ledger = uninterrupted
    assert expected["done"] == list(range(1, 23))
    played = [run(jobs.play_leg, ranks, data, str(folder), stop_after) for ranks, stop_after in LEGS]
    ends = [4, 8, 13, 22]
    starts = [1, 4, 7, 13]  # after the checkpoints of steps 3, 6, 12; steps past them are done again
    for leg, start, end in zip(played, starts, ends, strict=True):
        assert [rank["done"] for rank in leg] == [list(range(start, end + 1))] * len(leg)
    assert (folder / "ledger.jsonl").read_text() == ledger
    for rank in played[-1]:
        assert {**rank, "done": None} == {**expected, "done": None}
    assert all(leg[0]["fingerprint"] != expected["fingerprint"] for leg in played[:-1])


@pytest.mark.slow
def test_resumed_on_other_numbers_of_processes(tmp_path, data, uninterrupted):
    """Stopped between checkpoints and resumed on 4, 1, 3, 2 processes: weights, moments, ledger as if never stopped."""
    check_legs(tmp_path, data, uninterrupted, run_processes)


def test_resumed_on_other_numbers_of_loopback_ranks(tmp_path, data, uninterrupted):
    """The same in one process."""
    check_legs(tmp_path, data, uninterrupted, run_threads)


def test_how_often_checkpoints_are_written_does_not_matter(tmp_path, data, uninterrupted):
    """Checkpoints at every step or at the ends of epochs leave the bits alone."""
    expected, ledger = uninterrupted
    for every in (1, None):
        out = tmp_path / str(every)
        (played,) = run_threads(jobs.play_leg, 1, data, str(out), None, every)
        assert played == expected
        assert (out / "ledger.jsonl").read_text() == ledger


def test_every_stop_and_every_world(tmp_path, data, uninterrupted):
    """Wherever a run stops, and on whatever number it goes on, it ends in the same bits."""
    expected, ledger = uninterrupted
    for stop, (first, second) in zip((1, 10, 11, 12, 21), itertools.cycle([(2, 5), (8, 1), (3, 4)]), strict=False):
        out = tmp_path / str(stop)
        run_threads(jobs.play_leg, first, data, str(out), stop)
        assert run_threads(jobs.play_leg, second, data, str(out), None)[0]["fingerprint"] == expected["fingerprint"], (
            stop
        )
        assert (out / "ledger.jsonl").read_text() == ledger
