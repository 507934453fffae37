"""Rows 19 to 23: damaged, lost, swapped and foreign files are noticed and named, and the older checkpoint is used."""

import json
import os
import random
import shutil
import stat

import pytest
from states import judge, state_of

from unisono.checkpoint.manifest import Facts
from unisono.checkpoint.store import list_steps, newest_valid, read, write
from unisono.errors import CheckpointError

FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors", "state.json")
RUN = "a" * 32


@pytest.fixture
def two(tmp_path):
    """A directory with the checkpoints of steps 3 and 42 of one run; returns it, the older and the newer."""
    directory = tmp_path / "checkpoints"
    for step in (3, 42):
        write(directory, step, state_of(step), facts=Facts(run=RUN))
    return directory, list_steps(directory)[1][1], list_steps(directory)[0][1]


def check_fallback(two):
    """The newer is refused by loader, reader and judge; the older is found, with one complaint that names the newer."""
    directory, old, new = two
    with pytest.raises(CheckpointError):
        read(new, RUN)
    path, complaints = newest_valid(directory, RUN)
    assert path == old
    assert len(complaints) == 1
    assert str(new) in complaints[0]
    return complaints[0]


def flips(data, number, chance):
    for _ in range(number):
        damaged = bytearray(data)
        damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        yield bytes(damaged)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("number", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_flipped_bits(two, file, number):
    """Row 20: every single flipped bit in every file is detected, by loader and judge, or changes nothing."""
    directory, _, new = two
    data = (new / file).read_bytes()
    before = judge(directory)[42]
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    missed = 0
    for damaged in flips(data, number, random.Random(seed)):
        (new / file).write_bytes(damaged)
        try:
            manifest, _ = read(new, RUN)
        except CheckpointError:
            assert isinstance(judge(directory)[42], str) or file == "manifest.json"
            continue
        missed += 1  # white space in the manifest, or the case of an escaped letter
        assert file == "manifest.json"
        assert json.loads(damaged) == json.loads(data)
        assert manifest.step == 42
        assert judge(directory)[42] == before
    assert missed < number / 4
    (new / file).write_bytes(data)
    assert newest_valid(directory, RUN) == (new, [])


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kept", ["0", "1", "half", "all but one"])
def test_truncated(two, file, kept):
    """Row 19: a file cut to 0, 1, half or n-1 bytes is detected and named."""
    _, _, new = two
    size = (new / file).stat().st_size
    os.truncate(new / file, {"0": 0, "1": 1, "half": size // 2, "all but one": size - 1}[kept])
    assert file in check_fallback(two)
    assert isinstance(judge(two[0])[42], str)


@pytest.mark.parametrize("file", FILES)
def test_a_zeroed_page(two, file):
    """Row 21: zeros in the middle of a file are detected."""
    _, _, new = two
    data = bytearray((new / file).read_bytes())
    data[len(data) // 2 :][:4096] = bytes(len(data[len(data) // 2 :][:4096]))
    data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
    (new / file).write_bytes(data)
    assert file in check_fallback(two)


@pytest.mark.parametrize("file", [*FILES, "LATEST"])
def test_lost(two, file):
    """Row 22: a lost file of a checkpoint is named; a lost or lying LATEST is harmless; stray files are ignored."""
    directory, _, new = two
    (new / "stray").write_text("x")
    (directory / "stray").mkdir()
    if file == "LATEST":
        for text in (None, "step-00000003.00000000\n", "../../etc"):
            (directory / file).unlink() if text is None else (directory / file).write_text(text)
            assert newest_valid(directory, RUN) == (new, [])
        return
    (new / file).unlink()
    assert file in check_fallback(two)


@pytest.mark.parametrize("file", FILES)
def test_swapped(two, file):
    """Row 23: a file of another step in its place is detected, the manifest included."""
    _, old, new = two
    shutil.copy(old / file, new / file)
    assert file in check_fallback(two)


def test_another_run(two, tmp_path):
    """Row 23: a whole checkpoint of another run is not this run's, is said to be so, and is never removed."""
    directory, _, new = two
    other = write(tmp_path / "other", 50, state_of(50), facts=Facts(run="b" * 32))
    shutil.copytree(other, directory / other.name)
    path, complaints = newest_valid(directory, RUN)
    assert path == new
    assert len(complaints) == 1
    assert "belongs to another run" in complaints[0]
    write(directory, 60, state_of(60), facts=Facts(run=RUN))
    write(directory, 70, state_of(70), facts=Facts(run=RUN))
    assert [step for step, _ in list_steps(directory)] == [70, 60, 50]


@pytest.mark.parametrize("kind", ["link", "directory", "pipe", "missing"])
def test_no_regular_file(two, kind, tmp_path):
    """A link, a directory or a pipe in a file's place is refused, and reading never blocks."""
    _, _, new = two
    file = new / "state.json"
    shutil.copy(file, tmp_path / "elsewhere")
    file.unlink()
    if kind == "link":
        file.symlink_to(tmp_path / "elsewhere")
    elif kind == "directory":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    assert "state.json" in check_fallback(two)


def test_private(two):
    """Checkpoints are their owner's alone: directories 0700, files 0600."""
    directory, _, new = two
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(new.stat().st_mode) == 0o700
    assert {stat.S_IMODE((new / file).stat().st_mode) for file in FILES} == {0o600}


def test_the_judge_agrees_with_the_loader(two):
    """The control: what is whole is whole for both, tensor by tensor."""
    verdicts = judge(two[0])
    assert set(verdicts) == {3, 42}
    assert set(verdicts[42]) == {"model/w", "model/b", "optimizer/w/momentum_buffer"}
    assert verdicts[3] != verdicts[42]
