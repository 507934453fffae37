"""Row 26: whatever a power cut leaves, of a save or of a whole run, the old state or the new one is found."""

import json
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from unittest import mock

import pytest
from powercut import KINDS, Disk, leave
from states import judge, state_of

from unisono.checkpoint.policy import CheckpointPolicy
from unisono.checkpoint.store import newest_valid, write
from unisono.collectives.loopback import LoopbackTransport
from unisono.errors import CheckpointError, UnisonoError
from unisono.observe.ledger import Entry
from unisono.observe.phases import PhaseClock
from unisono.train.run_directory.record import RunRecord

STEPS, EVERY = 4, 2
SCORE, ENVIRONMENT = {"seed": 0, "replicas": 1}, {"torch": "2", "drifted": []}


def careless(directory, step, state):
    """Write as `write` does, but rename first and sync nothing."""
    made = write(directory.parent / "aside", step, state)
    (directory / made.name).mkdir()
    for file in sorted(made.iterdir()):
        (directory / made.name / file.name).write_bytes(file.read_bytes())


def violations_of(root, save, broken=lambda path: False, stride=1):
    """Return how many states after a cut were looked at, and what was wrong."""
    directory = root / "checkpoints"
    for step in (1, 2):
        write(directory, step, state_of(step))
    expected = judge(directory)
    disk = Disk(directory)
    with disk.recording(broken):
        save(directory, 3, state_of(3))
    expected |= {3: judge(directory)[3]}
    assert len(expected) == 3
    wrong, looked = [], 0
    for index, (what, tree) in enumerate(disk.history[::stride]):
        for kind in KINDS:
            left = root / "left"
            shutil.rmtree(left, ignore_errors=True)
            leave(tree, left, kind)
            looked += 1
            problem = problem_of(left, expected)
            if problem:
                wrong.append(f"{index} after {what!r}, {kind}: {problem}")
    for kind in KINDS:  # the save has returned
        shutil.rmtree(root / "left", ignore_errors=True)
        leave(disk.history[-1][1], root / "left", kind)
        if problem := problem_of(root / "left", expected, oldest=3):
            wrong.append(f"at the end, {kind}: {problem}")
    return looked, wrong


def problem_of(directory, expected, oldest=2):
    whole = [step for step, verdict in judge(directory).items() if verdict == expected.get(step)]
    if not whole or max(whole) < oldest:
        return f"whole are {whole}"
    try:
        path, complaints = newest_valid(directory)
    except CheckpointError as error:
        return str(error)
    if complaints or path is None or not path.name.startswith(f"step-{max(whole):08d}"):
        return f"the loader finds {path}, complaints {complaints}"
    return None


def test_a_power_cut_after_some_operations(tmp_path):
    """A sample of the sweep below."""
    looked, wrong = violations_of(tmp_path, write, stride=5)
    assert wrong == []
    assert looked >= 20


@pytest.mark.slow
def test_a_power_cut_after_every_operation(tmp_path):
    """Every prefix of the write log, in four ways of losing what was not synced."""
    looked, wrong = violations_of(tmp_path, write)
    print(f"{looked} states")
    assert wrong == []
    assert looked >= 100


@pytest.mark.parametrize("ending", [".safetensors", "manifest.json", ".tmp"])
def test_a_forgotten_sync_is_caught(tmp_path, ending):
    """The control: without the sync of a shard, of the manifest or of the directory, some cut leaves a damaged one."""
    _, wrong = violations_of(tmp_path, write, lambda path: path.endswith(ending))
    assert wrong


def test_a_writer_that_syncs_nothing_is_caught(tmp_path):
    """The control: names in place before their bytes."""
    with pytest.raises(AssertionError) as caught:
        _, wrong = violations_of(tmp_path, careless)
        assert wrong == [], wrong
    assert "after" in str(caught.value)


def train(path, promised=lambda step: None):
    """Train in a run directory what is not trained there yet; returns the step it went on from.

    Whenever the run has been promised something (a save has been called saved, a result kept), `promised` is called.
    """
    record = RunRecord(path, LoopbackTransport(), CheckpointPolicy(in_background=False))
    try:
        record.check_environment(ENVIRONMENT, allow_drift=False)
        first, state = record.resume(SCORE)
        assert state is None or state.values == state_of(first).values
        record.open_phases(PhaseClock())
        for step in range(first + 1, STEPS + 1):
            record.append(lambda step=step: Entry(step, 0, 1, "s", float(step).hex(), "g", "w", "0x1p+0"))
            if step % EVERY == 0:
                record.checkpoints.save(step, lambda step=step: state_of(step), ledger_head=record.ledgers.flush())
                promised(step)
        if first < STEPS:
            record.write_result({"steps": STEPS})
            promised(STEPS + 1)
    finally:
        record.close()
    return first


def left_by(path):
    """What a complete run must be known by, whatever came between; metrics of time and numbers of launches are not."""
    files = {name: (path / name).read_bytes() for name in ("ledger.jsonl", "score.json", "environment.json")}
    files |= {file.name: b"kept" for file in path.glob("ledger.damaged*")}
    result = json.loads((path / "result.json").read_text())["steps"] if (path / "result.json").exists() else None
    return files, result, {step: verdict for step, verdict in judge(path / "checkpoints").items() if step == STEPS}


@pytest.fixture
def memory(tmp_path):
    """A folder in memory where there is one: its file system forgets nothing, and need not be waited for."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        yield Path(place)


def run_violations(root, broken=lambda path: False, stride=1, most=1000, begun=False):
    """Cut the power of a launch, from the end to the beginning, and train to the end in what is left.

    `begun`: of one that goes on after another, which was killed when its first save was done.

    Returns:
        How many states were looked at, and what was wrong; no more states after `most` of the latter.
    """
    train(root / "reference" / "run")
    expected = left_by(root / "reference" / "run")
    looked, wrong = 0, []
    (root / "disk").mkdir(parents=True)
    promises = []
    if begun:
        with pytest.raises(InterruptedError):
            train(root / "disk" / "runs" / "a", lambda step: (_ for _ in ()).throw(InterruptedError))
        promises.append((0, EVERY))
    disk = Disk(root / "disk")
    with disk.recording(broken):
        train(root / "disk" / "runs" / "a", lambda step: promises.append((len(disk.history) - 1, step)))
    assert left_by(root / "disk" / "runs" / "a") == expected
    for index, (what, tree) in list(enumerate(disk.history))[::-stride]:
        kept = max((step for at, step in promises if at <= index), default=0)
        for kind in KINDS if len(wrong) < most else ():
            shutil.rmtree(root / "left", ignore_errors=True)
            leave(tree, root / "left", kind)
            looked += 1
            if problem := problem_of_run(root / "left" / "runs" / "a", kept, expected):
                wrong.append(f"{index} after {what!r}, {kind}: {problem}")
    return looked, wrong


def problem_of_run(path, kept, expected):
    """Say what is wrong after a cut where steps up to `kept` were promised, one more than all with their result."""
    has_result = (path / "result.json").exists()
    try:
        with warnings.catch_warnings(), mock.patch.object(os, "fsync", lambda _: None):  # no power is cut here
            warnings.simplefilter("error")  # that something was lost would be a third state
            first = train(path)
    except (UnisonoError, UserWarning) as error:
        return f"{type(error).__name__}: {error}"
    if first < min(kept, STEPS) or (kept > STEPS and not has_result):
        return f"went on from step {first} {'with' if has_result else 'without'} a result, promised were {kept}"
    found = left_by(path)
    if found[0] != expected[0] or found[2] != expected[2]:
        return f"another run: {found}"
    return None


def test_a_power_cut_of_a_run_after_some_operations(memory):
    """A sample of the sweep below: from an empty disk to the result, names of directories included."""
    looked, wrong = run_violations(memory, stride=9)
    assert wrong == []
    assert looked >= 30


@pytest.mark.slow
@pytest.mark.parametrize("begun", [False, True])
def test_a_power_cut_of_a_run_after_every_operation(memory, begun):
    """After every operation of a run: what was called saved is there, and training ends as if nothing had been."""
    looked, wrong = run_violations(memory, begun=begun)
    print(f"{looked} states")
    assert wrong == []
    assert looked >= 150


@pytest.mark.parametrize("forgotten", [".", "runs", "runs/a", "runs/a/checkpoints", "runs/a/ledger.jsonl"])
def test_a_forgotten_sync_of_a_run_is_caught(memory, forgotten):
    """The control: where one directory of the way, or the ledger, is never synced, something promised is lost."""
    _, wrong = run_violations(memory, lambda path: path == forgotten, stride=3, most=1)
    assert wrong
