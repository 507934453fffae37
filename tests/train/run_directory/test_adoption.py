"""What lies in a run directory is compared with the run before any of it is taken over."""

import json
import shutil

import pytest
import torch

from unisono.checkpoint.format import State
from unisono.checkpoint.store import list_steps
from unisono.collectives.loopback import LoopbackTransport
from unisono.errors import CheckpointError, ConfigError, ScoreMismatch
from unisono.observe.ledger import Entry
from unisono.train.run_directory.adoption import check_score
from unisono.train.run_directory.record import RunRecord

SCORE = {"replicas": 4, "threads": 1, "seed": 1}
ENVIRONMENT = {"torch": "2", "threads": 1}


def entry(step):
    return Entry(step=step, epoch=0, num_samples=1, samples="s", loss="0x0p+0", gradient="g", weights="w", lr="0x1p+0")


def state(step):
    return State(tensors={"model": {"w": torch.full((3,), float(step))}, "optimizer": {}}, values={"step": step})


def launch(path, score=SCORE, steps=(), environment=ENVIRONMENT):
    """Open the directory, run `steps` and save after each; return the step gone on from."""
    record = RunRecord(path, LoopbackTransport())
    try:
        record.check_environment(environment, allow_drift=False)
        found, _ = record.resume(score)
        for step in steps:
            record.append(lambda step=step: entry(step))
            record.checkpoints.save(step, lambda step=step: state(step), ledger_head=record.ledgers.flush())
        return found
    finally:
        record.close()


@pytest.fixture
def run(tmp_path):
    """A run directory with checkpoints of steps 1 and 2."""
    launch(tmp_path / "run", steps=(1, 2))
    return tmp_path / "run"


def test_a_lost_score_is_written_anew_from_the_checkpoints(run):
    """Without score.json the checkpoints say what the run is: the same program goes on, another one is refused."""
    written = (run / "score.json").read_bytes()
    (run / "score.json").unlink()
    with (
        pytest.warns(UserWarning, match=r"score\.json was missing"),
        pytest.raises(ScoreMismatch, match="seed: 1 -> 2"),
    ):
        launch(run, SCORE | {"seed": 2})
    (run / "score.json").write_bytes(b"\0" * 20)  # as a loss of power leaves it
    with pytest.warns(UserWarning, match=r"score\.json was missing or empty"):
        assert launch(run) == 2
    assert (run / "score.json").read_bytes() == written


def test_the_run_of_another_model_is_said_to_be_one(run):
    """No setting brings it back; weights that are others by the seed alone are no other model."""
    model = {"class": "Sequential", "initial_weights": "1"}
    for name, told in (("class", "of another model, perhaps"), ("initial_weights", "repeat its settings")):
        with pytest.raises(ScoreMismatch, match=told):
            check_score(run, {"model": model}, {"model": {**model, name: "Other"}})


def test_settings_are_read_from_the_checkpoints_too(run):
    """What a program leaves open (replicas, threads) comes from the run, also where score.json is lost."""
    (run / "score.json").unlink()
    record = RunRecord(run, LoopbackTransport())
    with pytest.warns(UserWarning, match=r"score\.json was missing"):
        assert record.recorded("replicas", "threads") == [4, 1]
    record.close()


def test_a_lost_environment_hides_no_drift(run):
    """Without environment.json the checkpoints say where the run was begun."""
    (run / "environment.json").unlink()
    with pytest.warns(UserWarning, match=r"environment\.json was missing"), pytest.raises(ConfigError, match="threads"):
        launch(run, environment=ENVIRONMENT | {"threads": 2})


def test_a_checkpoint_of_another_score_is_refused(run, tmp_path):
    """Another run's checkpoints, or score.json and run.json put there by hand, are never gone on with."""
    launch(tmp_path / "other", SCORE | {"seed": 2}, steps=(1, 2, 3))
    for name in ("score.json", "run.json"):
        shutil.copy(tmp_path / "other" / name, run / name)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        launch(run, SCORE | {"seed": 2})
    shutil.copy(next((tmp_path / "other").glob("run.json")), run / "run.json")
    newest = list_steps(tmp_path / "other" / "checkpoints")[0][1]
    shutil.copytree(newest, run / "checkpoints" / newest.name)
    (run / "score.json").write_text(json.dumps(SCORE))
    with pytest.raises(ScoreMismatch, match=r"step-00000003\..* is of another run .*\n +seed: 2 -> 1"):
        launch(run)


def test_whose_directory_it_is_must_be_known(run, tmp_path):
    """Without run.json, checkpoints of two runs are refused; of one run they name it."""
    launch(tmp_path / "other", steps=(1, 2, 3))
    (run / "run.json").unlink()
    newest = list_steps(tmp_path / "other" / "checkpoints")[0][1]
    shutil.copytree(newest, run / "checkpoints" / newest.name)
    with pytest.raises(ConfigError, match=r"run\.json is missing, and the checkpoints there are of 2 runs"):
        launch(run)
    shutil.rmtree(run / "checkpoints" / newest.name)
    with pytest.warns(UserWarning, match=r"run\.json was missing"):
        assert launch(run) == 2


@pytest.mark.parametrize("text", ["[]", "7", "{", '{"run": 7}', "{}", '{"run": ""}', "[" * 100_000])
def test_a_damaged_run_file_is_one_message(run, text):
    """Whatever stands in run.json, it is named, with a way out, and nothing is written."""
    (run / "run.json").write_text(text)
    before = {path: path.read_bytes() for path in run.rglob("*.json*")}
    with pytest.raises(ConfigError, match=r"run\.json .* Hint: "):
        launch(run)
    assert {path: path.read_bytes() for path in run.rglob("*.json*")} == before


def test_a_ledger_of_another_history_is_refused(run):
    """The checkpoint holds the ledger's head: a ledger with a changed line, the last one too, is not gone on with."""
    ledger = run / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"step": 2, "epoch": 0', '"step": 2, "epoch": 1'))
    with pytest.raises(CheckpointError, match="line 2 is not the line that was there when step 2 was saved"):
        launch(run)
    ledger.rename(run / "ledger.changed")  # the way out
    with pytest.warns(UserWarning, match="2 of the steps 1-2 are missing"):
        assert launch(run) == 2


def test_a_ledger_that_cannot_be_read(run):
    """A directory in the ledger's place is one message."""
    (run / "ledger.jsonl").unlink()
    (run / "ledger.jsonl").mkdir()
    with pytest.raises(CheckpointError, match=r"ledger\.jsonl"):
        launch(run)


def test_launches_are_counted_and_what_they_spent_is_kept(run):
    """Each launch finds what the ones before have spent, as the checkpoint that it goes on from tells."""
    record = RunRecord(run, LoopbackTransport())
    record.resume(SCORE)
    assert (record.launches, record.spent) == (2, {})
    record.append(lambda: entry(3))
    record.checkpoints.save(
        3, lambda: state(3), spent={"launches": 2, "train_s": 1.5}, ledger_head=record.ledgers.flush()
    )
    record.close()
    again = RunRecord(run, LoopbackTransport())
    again.resume(SCORE)
    assert (again.launches, again.spent) == (3, {"launches": 2, "train_s": 1.5})
    again.close()
