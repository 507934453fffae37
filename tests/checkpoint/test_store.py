"""A checkpoint on disk is the old one or the new one, never a third, and nothing unverified is trusted."""

import json
import random
import resource
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from unisono.checkpoint.format import State
from unisono.checkpoint.policy import CheckpointPolicy
from unisono.checkpoint.store import list_steps, newest_valid, read, write
from unisono.errors import CheckpointError

FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors", "state.json")


def state_of(step: int) -> State:
    generator = torch.Generator().manual_seed(step)
    return State(
        tensors={
            "model": {"w": torch.randn(5, 3, generator=generator), "b": torch.full((2,), step, dtype=torch.int64)},
            "optimizer": {"w/momentum_buffer": torch.randn(5, 3, generator=generator)},
        },
        values={"step": step, "list": [1, 2.5, None]},
    )


def same(left: State, right: State) -> bool:
    return left.values == right.values and all(
        left.tensors[stem].keys() == part.keys() and all(torch.equal(left.tensors[stem][k], t) for k, t in part.items())
        for stem, part in right.tensors.items()
    )


def steps_in(directory: Path) -> list[int]:
    return [step for step, _ in list_steps(directory)]


def trusted(path: Path) -> bool:
    try:
        read(path)
    except CheckpointError:
        return False
    return True


@pytest.fixture
def two(tmp_path):
    """A directory with the checkpoints of steps 3 and 42."""
    directory = tmp_path / "checkpoints"
    write(directory, 3, state_of(3))
    write(directory, 42, state_of(42))
    return directory


def test_what_is_written_is_read(tmp_path):
    """Step and state come back as they were, from a directory that is made when missing."""
    path = write(tmp_path / "a" / "checkpoints", 7, state_of(7))
    manifest, state = read(path)
    assert manifest.step == 7
    assert same(state, state_of(7))
    assert not same(state, state_of(8))  # the control
    assert sorted(file.name for file in path.iterdir()) == sorted(FILES)


def test_tensors_of_any_layout_are_written(tmp_path):
    """Transposed, empty, scalar, boolean and half-precision tensors keep values, shape and dtype."""
    tensors = {
        "t": torch.arange(6.0).view(2, 3).t(),
        "e": torch.empty(0, 3),
        "s": torch.tensor(2.5, dtype=torch.float64),
        "b": torch.tensor([True, False]),
        "h": torch.ones(3, dtype=torch.bfloat16),
    }
    _, state = read(write(tmp_path, 1, State(tensors={"model": tensors}, values={})))
    for name, tensor in tensors.items():
        assert torch.equal(state.tensors["model"][name], tensor)
        assert state.tensors["model"][name].dtype == tensor.dtype


@pytest.mark.parametrize(("keep", "left"), [(1, [50]), (2, [50, 42]), (3, [50, 42, 3]), (9, [50, 42, 3])])
def test_only_the_newest_are_kept(two, keep, left):
    """After a write, `keep` checkpoints are left, newest first."""
    write(two, 50, state_of(50), policy=CheckpointPolicy(keep=keep))
    assert steps_in(two) == left


def test_a_damaged_newer_checkpoint_does_not_push_out_the_one_just_written(two):
    """After a fall-back to an older step the new checkpoint survives, whatever lies above it."""
    newest = list_steps(two)[0][1]
    (newest / "state.json").write_text("{}")
    path = write(two, 4, state_of(4), policy=CheckpointPolicy(keep=1))
    assert path.is_dir()
    assert newest_valid(two)[0] == path


def test_writing_a_step_again_keeps_the_new_one(tmp_path):
    """A damaged checkpoint of the same step does not outlive the valid one, whichever random name is larger."""
    for attempt in range(8):
        directory = tmp_path / str(attempt)
        (write(directory, 5, state_of(5)) / "state.json").unlink()
        path = write(directory, 5, state_of(5), policy=CheckpointPolicy(keep=1))
        assert path.is_dir()
        assert newest_valid(directory)[0] == path


def test_keeping_none_is_refused_or_keeps_one(tmp_path):
    """At least one checkpoint is kept: the one just written is never removed."""
    try:
        path = write(tmp_path, 5, state_of(5), policy=CheckpointPolicy(keep=0))
    except ValueError:
        return
    assert path.is_dir()


def test_long_runs_sort_by_number(tmp_path):
    """Step 100,000,000 is newer than step 99,999,999 although its name has one more digit."""
    for step in (99_999_999, 100_000_000):
        write(tmp_path, step, state_of(1))
    assert steps_in(tmp_path) == [100_000_000, 99_999_999]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kind", ["empty", "one byte", "half", "all but one", "one more", "missing", "zeroed"])
def test_every_damaged_file_is_detected(two, file, kind):
    """A file that is cut, longer, gone or zeroed is noticed and named, and the older checkpoint is used."""
    old, new = (path for _, path in reversed(list_steps(two)))
    data = (new / file).read_bytes()
    half = len(data) // 2
    damaged = {
        "empty": b"",
        "one byte": data[:1],
        "half": data[:half],
        "all but one": data[:-1],
        "one more": data + b"\0",
        "zeroed": data[:half] + bytes(len(data) - half),
        "missing": None,
    }[kind]
    if damaged is None:
        (new / file).unlink()
    else:
        (new / file).write_bytes(damaged)
    with pytest.raises(CheckpointError) as caught:
        read(new)
    assert str(new) in str(caught.value)
    path, complaints = newest_valid(two)
    assert path == old
    assert len(complaints) == 1
    assert file in complaints[0] or file == "manifest.json"


@pytest.mark.parametrize("file", [file for file in FILES if file != "manifest.json"])
def test_flipped_bits_are_detected(two, file):
    """Each of 200 single flipped bits is noticed."""
    path = list_steps(two)[0][1]
    data = (path / file).read_bytes()
    chance = random.Random(file)
    for _ in range(200):
        damaged = bytearray(data)
        damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        (path / file).write_bytes(damaged)
        assert not trusted(path)
    (path / file).write_bytes(data)
    assert trusted(path)


def test_flipped_bits_of_the_manifest_are_detected(two):
    """No single flipped bit of the manifest changes what is read: noticed, or without any effect."""
    path = list_steps(two)[0][1]
    data = (path / "manifest.json").read_bytes()
    wrong = []
    head = 8 * data.index(b'"files"')  # format and step: every bit; hashes and sizes: a sample
    chosen = [*range(head), *random.Random(0).sample(range(head, 8 * len(data)), 500)]
    for place in chosen:
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        (path / "manifest.json").write_bytes(damaged)
        try:
            manifest, state = read(path)
        except CheckpointError:
            continue
        if manifest.step != 42 or not same(state, state_of(42)):
            line = bytes(damaged).decode("latin1").splitlines()[data[: place // 8].count(b"\n")]
            wrong.append(f"{line.strip()!r} was read as step {manifest.step}")
    assert wrong == []


def test_files_of_two_checkpoints_do_not_mix(two):
    """A file of another step, or a whole directory under another step's name, is not trusted as this step."""
    old, new = (path for _, path in reversed(list_steps(two)))
    shutil.copy(old / "model.safetensors", new / "model.safetensors")
    assert not trusted(new)
    shutil.copytree(old, two / "step-00000099.00000000")
    with pytest.raises(CheckpointError, match="not this directory's"):
        read(two / "step-00000099.00000000")


def test_extra_files_and_directories_are_ignored(two):
    """Stray files beside and inside the checkpoints do no harm."""
    newest = list_steps(two)[0][1]
    (newest / "notes.txt").write_text("mine")
    (two / "LATEST").write_text("step-99999999")
    (two / "step-00000050.tmp").mkdir()
    (two / "step-60").mkdir()
    assert newest_valid(two) == (newest, [])


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "..", ".", "", "a/../state.json", "sub/file"])
def test_a_manifest_cannot_point_outside(two, name):
    """A manifest that names anything but a plain file of its directory is refused, even where the hash fits."""
    path = list_steps(two)[0][1]
    (two / "secret").write_bytes(b"x")
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["files"][name] = {
        "bytes": 1,
        "sha256": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881",
    }
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError):
        read(path)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "null",
        "{}",
        '{"format_version": 2, "step": 1, "files": {}}',
        '{"format_version": 1, "step": 1, "files": []}',
        '{"format_version": 1, "step": "x", "files": {}}',
        '{"format_version": 1, "step": 1, "files": {"state.json": 5}}',
        "[" * 100_000,
        "\xff",
    ],
    ids=["list", "null", "empty", "version", "files", "step", "entry", "deep", "bytes"],
)
def test_hostile_manifests_are_refused(two, text):
    """Whatever stands in a manifest, the answer is a checkpoint error, and the older checkpoint is used."""
    old, new = (path for _, path in reversed(list_steps(two)))
    (new / "manifest.json").write_bytes(text.encode("latin1"))
    with pytest.raises(CheckpointError):
        read(new)
    assert newest_valid(two)[0] == old


def test_left_overs_of_a_crash_are_ignored_and_removed(two):
    """A half-written directory is never read, and the next write clears it away."""
    left_over = two / ".step-00000099.deadbeef.tmp"
    shutil.copytree(list_steps(two)[0][1], left_over)
    assert newest_valid(two)[0] == list_steps(two)[0][1]
    write(two, 50, state_of(50))
    assert not left_over.exists()
    assert [path for path in two.iterdir() if path.name.startswith(".")] == []


def test_without_checkpoints_there_is_nothing_to_complain_about(tmp_path):
    """A missing or empty directory is a fresh start."""
    assert newest_valid(tmp_path / "none") == (None, [])
    assert newest_valid(tmp_path) == (None, [])


def test_when_none_can_be_trusted_it_says_so(two):
    """If every checkpoint is damaged, each is named, with a way out: never a silent restart from zero."""
    for _, path in list_steps(two):
        (path / "state.json").unlink()
    with pytest.raises(CheckpointError, match="none of the 2 checkpoints") as caught:
        newest_valid(two)
    assert str(caught.value).count("state.json") >= 2
    assert "Hint" in str(caught.value)


def test_a_directory_that_cannot_be_made_is_one_clear_error(tmp_path):
    """Where a file stands in the way the error names the directory and the step."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"checkpoint of step 5 into .*file"):
        write(tmp_path / "file" / "checkpoints", 5, state_of(5))


@pytest.mark.parametrize("limit", [0, 1, 100, 300])
def test_a_full_disk_leaves_the_old_checkpoints_intact(two, limit):
    """When a file cannot be written to its end, an error says so and the older checkpoints are as they were."""
    before = {path: path.read_bytes() for path in two.rglob("*") if path.is_file()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))  # a real failure of write(), for root too
    try:
        with pytest.raises(CheckpointError, match="could not write the checkpoint of step 50"):
            write(two, 50, state_of(50))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path: path.read_bytes() for path in two.rglob("*") if path.is_file()} == before
    assert newest_valid(two) == (list_steps(two)[0][1], [])
    write(two, 50, state_of(50))
    assert steps_in(two) == [50, 42]


# One process that imports torch once, and one forked child for each crash point. Each child dies at the N-th event:
# before a system call on the directory (audit events, fsync), after it, or at fsync with half of the data there.
CRASH = """
import os, shutil, sys, json, hashlib
from pathlib import Path
import torch
from safetensors.torch import save
sys.path.insert(0, sys.argv[2])
from test_store import newest_valid, read, same, state_of, steps_in, write
from unisono.errors import CheckpointError

root, template = Path(sys.argv[1]), Path(sys.argv[1]) / "template"
write(template, 1, state_of(1))
write(template, 2, state_of(2))

def unsafe(directory, step, state):
    "A writer that trusts its luck: manifest first, straight under the final name, old ones removed before."
    path = directory / f"step-{step:08d}.00000000"
    files = {f"{stem}.safetensors": save(tensors) for stem, tensors in state.tensors.items()}
    files["state.json"] = json.dumps(state.values).encode()
    sums = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    for old in directory.glob("step-*"):
        shutil.rmtree(old)
    path.mkdir()
    (path / "manifest.json").write_text(json.dumps({"format_version": 1, "step": step, "files": sums}))
    for name, data in files.items():
        (path / name).write_bytes(data)

def child(writer, directory, mode, stop):
    count, real_fsync, real_rename = 0, os.fsync, os.rename
    def event():
        nonlocal count
        count += 1
        if count == stop:
            os._exit(9)
    def hook(name, args):
        watched = name in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")
        if watched and any(str(directory) in str(arg) or isinstance(arg, str) and ".json" in arg for arg in args):
            event()
    def fsync(fd):
        nonlocal count
        if mode == "before":
            event()
        if mode == "torn" and not os.path.isdir(f"/proc/self/fd/{fd}"):
            count += 1
            if count == stop:
                os.ftruncate(fd, os.fstat(fd).st_size // 2)
                os._exit(9)
        real_fsync(fd)
        if mode == "after":
            event()
    def rename(old, new, **where):
        real_rename(old, new, **where)
        if mode == "after":
            event()
    os.fsync, os.rename = fsync, rename
    if mode == "before":
        sys.addaudithook(hook)
    writer(directory, 3, state_of(3))
    os._exit(0)

def check(directory):
    "Return what is wrong with the directory after the crash."
    try:
        path, complaints = newest_valid(directory)
    except CheckpointError as error:
        return f"nothing can be trusted: {error}"
    if path is None or complaints:
        return f"found {path}, complaints {complaints}"
    manifest, state = read(path)
    step = manifest.step
    if step not in (2, 3) or not same(state, state_of(step)):
        return f"a third state: {step}"
    write(directory, 4, state_of(4))
    if steps_in(directory)[0] != 4 or len(steps_in(directory)) != 2 or list(directory.glob(".*")):
        return f"left over: {sorted(path.name for path in directory.iterdir())}"
    return None

for name, writer in (("safe", write), ("unsafe", unsafe)):
    points, violations = 0, []
    for mode in ("before", "after", "torn"):
        stop, done = 0, False
        while not done:
            stop += 1
            directory = root / f"{name}-{mode}-{stop}"
            shutil.copytree(template, directory)
            sys.stdout.flush()
            pid = os.fork()
            if not pid:
                child(writer, directory, mode, stop)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            done = code == 0
            points += not done
            if code not in (0, 9):
                violations.append(f"{mode} {stop}: the writer ended with {code}")
            elif problem := check(directory):
                violations.append(f"{mode} {stop}: {problem}")
    print(json.dumps({"writer": name, "points": points, "violations": violations}))
"""


@pytest.mark.slow
def test_a_crash_at_any_moment_leaves_the_old_or_the_new_state(tmp_path):
    """Killed before, after or inside any write, a directory verifies without complaint; an unsafe writer is caught."""
    script = tmp_path / "crash.py"
    script.write_text(textwrap.dedent(CRASH))
    (tmp_path / "runs").mkdir()
    command = [sys.executable, "-W", "ignore", str(script), str(tmp_path / "runs"), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    safe, unsafe = map(json.loads, done.stdout.splitlines())
    print(
        f"crash points: {safe['points']}; an unsafe writer fails at {len(unsafe['violations'])} of {unsafe['points']}"
    )
    assert safe["violations"] == []
    assert safe["points"] >= 20
    assert len(unsafe["violations"]) >= 4
