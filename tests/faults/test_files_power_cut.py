"""Row 26: whatever a power cut in the middle of a save leaves, the loader finds the old state or the new one."""

import shutil

import pytest
from powercut import KINDS, Disk, leave
from states import judge, state_of

from unisono.checkpoint.store import newest_valid, write
from unisono.errors import CheckpointError


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
