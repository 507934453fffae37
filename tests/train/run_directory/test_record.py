"""The run directory: written by the leader, told to all ranks, never half-written."""

import contextlib
import json
import shutil

import pytest
import torch

from unisono.checkpoint.format import State
from unisono.collectives.loopback import LoopbackTransport, run_ranks
from unisono.errors import (
    ConfigError,
    EnvironmentDrift,
    LeaderFailed,
    RankDivergence,
    ScoreMismatch,
    UnisonoError,
)
from unisono.observe.ledger import Entry
from unisono.observe.phases import PhaseClock
from unisono.train.run_directory.record import RunRecord

ENVIRONMENT = {"torch": "2", "threads": 1, "python": "3.11"}


def entry(step):
    return Entry(step=step, epoch=0, num_samples=1, samples="s", loss="0x0p+0", gradient="g", weights="w", lr="0x1p+0")


def state(step):
    return State(tensors={"model": {"w": torch.full((3,), float(step))}, "optimizer": {}}, values={"step": step})


def alone(path):
    return RunRecord(path, LoopbackTransport())


def test_keeps_nothing_without_a_path():
    """Without a directory every call is harmless and nothing is found."""
    record = alone(None)
    record.check_environment(ENVIRONMENT, allow_drift=False)
    assert record.recorded("replicas", "threads") == [None, None]
    assert record.resume({"replicas": 2}) == (0, None)
    record.append(lambda: pytest.fail("made an entry for nobody"))
    assert record.checkpoints is None and record.ledgers.flush() == ""
    record.write_result({})
    record.close()


def test_resume(tmp_path):
    """The next launch gets score, step and state back; the ledger keeps only what the checkpoint knows."""
    record = alone(tmp_path / "a" / "b")
    assert record.resume({"replicas": 3}) == (0, None)
    for step in (1, 2, 3):
        record.append(lambda step=step: entry(step))
        if step == 2:
            record.checkpoints.save(2, lambda: state(2), ledger_head=record.ledgers.flush())
    record.close()
    record.close()
    again = alone(tmp_path / "a" / "b")
    assert again.recorded("replicas") == [3]
    step, found = again.resume({"replicas": 3})
    again.open_phases(PhaseClock())
    again.close()
    head = json.loads((tmp_path / "a" / "b" / "phases" / "rank-0.jsonl").read_text().splitlines()[0])
    assert head["reached"] == 3  # one line has been cut off
    assert step == 2
    assert found.tensors["model"]["w"].tolist() == [2.0] * 3
    assert found.values == {"step": 2}
    lines = (tmp_path / "a" / "b" / "ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_a_ledger_that_broke_off_is_told(tmp_path, capsys):
    """A resume says that it writes a cut last line again; one that finds whole lines says nothing."""
    record = alone(tmp_path)
    record.resume({})
    for step in (1, 2, 3):
        record.append(lambda step=step: entry(step))
        if step == 2:
            record.checkpoints.save(2, lambda: state(2), ledger_head=record.ledgers.flush())
    record.close()
    for torn, told in ((b"", ""), (b'{"step": 4', "held a ledger that broke off within line 4; it is written again")):
        with (tmp_path / "ledger.jsonl").open("ab") as file:
            file.write(torn)
        again = alone(tmp_path)
        again.resume({})
        again.append(lambda: entry(3))
        again.close()
        said = capsys.readouterr().err
        assert (told in said, bool(said)) == (True, bool(told)), said
    (tmp_path / "metrics.jsonl").write_text("rubbish\n")
    with contextlib.closing(alone(tmp_path)) as again:
        again.resume({})
    assert "held a metrics.jsonl that broke off within line 1; it is left out, the others" in capsys.readouterr().err


def test_all_ranks_hear_the_leader(tmp_path):
    """Every rank gets the leader's step and state, though only the leader writes."""
    first = alone(tmp_path)
    first.resume({"replicas": 4})
    for step in (1, 2):
        first.append(lambda step=step: entry(step))
    first.checkpoints.save(2, lambda: state(2), ledger_head=first.ledgers.flush())
    first.close()

    def program(transport):
        record = RunRecord(tmp_path, transport)
        (replicas,) = record.recorded("replicas")
        step, found = record.resume({"replicas": 4})
        record.append(lambda: entry(3))
        record.checkpoints.save(3, lambda: state(3), ledger_head=record.ledgers.flush())
        record.write_result({"by": transport.rank})
        record.close()
        return replicas, step, found.tensors["model"]["w"].tolist()

    assert run_ranks(program, 3) == [(4, 2, [2.0] * 3)] * 3
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 3
    assert json.loads((tmp_path / "result.json").read_text()) == {"by": 0}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_all_ranks_stop_with_the_leader(tmp_path):
    """Where the leader stops, all ranks stop with its explanation; the leader with the error's own class."""
    first = alone(tmp_path)
    first.resume({"replicas": 4, "seed": 1, "data": {"n": 5}})
    first.close()
    classes = []

    def program(transport):
        record = RunRecord(tmp_path, transport)
        with pytest.raises(UnisonoError, match="seed: 1 -> 2") as caught:
            record.resume({"replicas": 4, "seed": 2, "data": {"n": 6}})
        assert "data.n: 5 -> 6" in str(caught.value)
        classes.append(caught.type)

    run_ranks(program, 3)
    assert classes == [ScoreMismatch, LeaderFailed, LeaderFailed]


def launch(path, change, *, step=None, allow_drift=False):
    """Open the directory in another environment and do a step, or none."""
    record = alone(path)
    try:
        record.check_environment(ENVIRONMENT | change, allow_drift=allow_drift)
        record.resume({})
        if step is not None:
            record.append(lambda: entry(step))
            record.checkpoints.save(step, lambda: state(step), ledger_head=record.ledgers.flush())
    finally:
        record.close()
    return json.loads((path / "environment.json").read_text())


def test_environment(tmp_path):
    """The first launch's environment is the run's; numeric drift is refused, other changes are not drift."""
    launch(tmp_path, {}, step=1)
    launch(tmp_path, {"python": "3.12"})
    with pytest.raises(EnvironmentDrift, match="threads: 1 -> 2"):
        launch(tmp_path, {"threads": 2})
    launch(tmp_path, {"threads": 2}, step=2, allow_drift=True)
    recorded = launch(tmp_path, {"torch": "3", "threads": 2}, step=3, allow_drift=True)
    assert recorded["drifted"] == [["after step 1: threads: 1 -> 2"], ["after step 2: torch: '2' -> '3'"]]
    assert (recorded["threads"], recorded["torch"]) == (2, "3")
    newest = max((tmp_path / "checkpoints").iterdir())
    assert json.loads((newest / "manifest.json").read_text())["environment"] == recorded


def test_what_computes_nothing_changes_no_environment(tmp_path):
    """Another environment, or one of which more is known, is the run's from the first step that it computes."""
    first = launch(tmp_path, {}, step=1)
    assert launch(tmp_path, {"threads": 2}, allow_drift=True) == first
    assert launch(tmp_path, {"flags": {"tf32": False}}) == first
    assert launch(tmp_path, {"flags": {"tf32": False}}, step=2) == first | {"flags": {"tf32": False}}
    with pytest.raises(EnvironmentDrift, match="tf32"):
        launch(tmp_path, {"flags": {"tf32": True}})


@pytest.mark.parametrize("name", ["score.json", "environment.json"])
def test_a_file_that_is_not_ours(tmp_path, name):
    """A file that is not JSON is named, and not overwritten."""
    (tmp_path / name).write_text("{ cut")
    record = alone(tmp_path)
    with pytest.raises(ConfigError, match=name):
        record.check_environment(ENVIRONMENT, allow_drift=False) if name[0] == "e" else record.resume({})
    assert (tmp_path / name).read_text() == "{ cut"


def test_private(tmp_path):
    """A new directory is its owner's alone; an existing one keeps its permissions."""
    alone(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    (tmp_path / "old").mkdir(mode=0o750)
    alone(tmp_path / "old")
    assert (tmp_path / "old").stat().st_mode & 0o777 == 0o750


def test_each_host_keeps_the_run(tmp_path):
    """With directories of their own both keepers hold the whole run, and any one of them is enough to go on."""

    def play(transport, first_step, at):
        record = RunRecord(tmp_path / f"{transport.rank}" / "run", transport)
        step, found = record.resume({"replicas": 4, "seed": 1})
        assert step == first_step
        assert found is None or found.tensors["model"]["w"].tolist() == [float(step)] * 3
        for number in range(step + 1, at + 1):
            record.append(lambda number=number: entry(number))
        record.checkpoints.save(at, lambda: state(at), ledger_head=record.ledgers.flush())
        record.checkpoints.settle()
        record.write_result({"steps": at})
        record.close()

    def files(rank, name):
        return (tmp_path / str(rank) / "run" / name).read_text()

    run_ranks(lambda transport: play(transport, 0, 2), 2)
    assert files(0, "ledger.jsonl") == files(1, "ledger.jsonl")
    assert files(0, "run.json") == files(1, "run.json")
    # One directory is lost, then the other falls behind: the furthest is taken, and its ledger.
    shutil.rmtree(tmp_path / "0" / "run")
    run_ranks(lambda transport: play(transport, 2, 4), 2)
    assert files(0, "ledger.jsonl") == files(1, "ledger.jsonl")
    assert len(files(0, "ledger.jsonl").splitlines()) == 4
    for path in (tmp_path / "1" / "run" / "checkpoints").glob("step-00000004*"):
        shutil.rmtree(path)
    run_ranks(lambda transport: play(transport, 4, 5), 2)
    assert json.loads(files(1, "result.json")) == {"steps": 5}
    # Damage in all of one directory's checkpoints does not matter while another is good.
    for path in (tmp_path / "0" / "run" / "checkpoints").glob("step-*/model.safetensors"):
        path.write_bytes(b"")
    with pytest.warns(UserWarning, match="checkpoint skipped"):
        run_ranks(lambda transport: play(transport, 5, 6), 2)


def test_hosts_with_different_runs(tmp_path):
    """Directories of two runs are not mixed: all ranks refuse."""
    for name in ("0", "1"):
        first = alone(tmp_path / name)
        first.resume({"replicas": 4})
        first.close()

    def play(transport):
        with pytest.raises(ConfigError, match="hold different runs"):
            RunRecord(tmp_path / f"{transport.rank}", transport)

    run_ranks(play, 2)


def test_ranks_with_different_scores(tmp_path):
    """A rank that would run another score is named, on all ranks, before anything is written."""

    def play(transport):
        record = RunRecord(tmp_path, transport)
        with pytest.raises(RankDivergence, match=r"run different scores: seed: \d -> \d"):
            record.resume({"replicas": 4, "seed": transport.rank})
        record.close()

    run_ranks(play, 2)
    assert not (tmp_path / "score.json").exists()
