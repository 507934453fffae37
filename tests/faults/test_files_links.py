"""Row 57: what a neighbour has put into a run directory is neither followed nor waited for, nor silently believed."""

import os
import warnings

import pytest
import torch
from states import state_of

from unisono.checkpoint.interchange import load_weights
from unisono.checkpoint.store import list_steps, newest_valid, verify, write
from unisono.collectives.loopback import LoopbackTransport
from unisono.errors import CheckpointError, ConfigError
from unisono.observe.ledger import Detail, Entry, Ledger, read_lines
from unisono.observe.phases import PhaseClock
from unisono.report.run_view import read_run
from unisono.system.files import replace_file
from unisono.train.run_directory.record import RunRecord

FILES = [
    "ledger.jsonl", "ledger.tmp", "detail.jsonl", "detail.tmp", "run.lock", "run.json", "score.json", "result.json",
    "environment.json", "phases/rank-0.jsonl", "checkpoints/LATEST",
    ".score.json.PID.tmp", ".run.json.PID.tmp", ".result.json.PID.tmp", ".probe-PID", "checkpoints/.LATEST.PID.tmp",
    "checkpoints/.x.tmp",
]  # fmt: skip
FOLDERS = ["checkpoints", "phases", "logs", "checkpoints/step-00000009.00000000", "checkpoints/.x.tmp"]


pytestmark = pytest.mark.usefixtures("nothing_blocks")


@pytest.fixture
def home(tmp_path):
    """A file and a folder that no run may touch, beside a run directory."""
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("mine")
    (tmp_path / "run" / "phases").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints").mkdir()
    return tmp_path


def train(path):
    """Do what a run does to its directory: begin, take steps, save, end."""
    record = RunRecord(path, LoopbackTransport(), detail=True)
    try:
        record.check_environment({"torch": "2"}, allow_drift=False)
        first, _ = record.resume({"seed": 0, "data": {}, "replicas": 1})
        phases = PhaseClock()
        record.open_phases(phases)
        for step in (first + 1, first + 2):
            record.append(lambda step=step: Entry(step, 0, 1, "s", "0x0p+0", "g", "w", "0x1p+0"))
            record.ledgers.append_detail(lambda step=step: Detail(step, [0], [], {}, {}))
        record.checkpoints.save(first + 2, lambda: state_of(first + 2), ledger_head=record.ledgers.flush())
        record.checkpoints.settle()
        record.write_result({"steps": first + 2})
    finally:
        record.close()
    return first + 2


def untouched(home):
    """What must be as it was, links and all."""
    assert (home / "precious").read_text() == "mine"
    assert [path.name for path in (home / "elsewhere").iterdir()] == ["file"]
    assert (home / "elsewhere" / "file").read_text() == "mine"


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_none(home, name, kind):
    """A link to a file elsewhere, or a pipe, under any name a run uses: one message, or a run that ends well."""
    path = home / "run" / name.replace("PID", str(os.getpid()))  # as 0.1.0 named them
    if kind == "link":
        path.symlink_to(home / "precious")
    else:
        os.mkfifo(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # step phases that cannot be written cost no run
            train(home / "run")
    except (CheckpointError, ConfigError) as error:
        assert str(path) in str(error)
        assert "Hint: " in str(error)
        assert "\n" not in str(error)
    untouched(home)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_is_none(home, name):
    """A link to a folder elsewhere is not entered, in the place of a folder of ours or beside our checkpoints."""
    path = home / "run" / name
    if path.is_dir():
        path.rmdir()
    path.symlink_to(home / "elsewhere")
    try:
        train(home / "run")
    except (CheckpointError, ConfigError) as error:
        assert str(path) in str(error)
        assert "Hint: " in str(error)
    else:
        assert name not in ("checkpoints", "phases", "logs")
    untouched(home)


def test_the_control(home):
    """Without any of that the same calls train, save and go on; writing as a program would plainly do is followed."""
    assert train(home / "run") == 2
    assert train(home / "run") == 4
    assert [line["step"] for line in read_lines(home / "run" / "ledger.jsonl")] == [1, 2, 3, 4]
    (home / "run" / "ledger.tmp").symlink_to(home / "precious")
    with (home / "run" / "ledger.tmp").open("w") as file:
        file.write("theirs")
    with pytest.raises(AssertionError):
        untouched(home)


def test_two_ledgers_of_one_name(home):
    """A ledger that is a directory is one message."""
    (home / "run" / "ledger.jsonl").mkdir()
    with pytest.raises(CheckpointError, match=rf"expected a file at {home}/run/ledger.jsonl, found a directory\. Hint"):
        train(home / "run")


@pytest.mark.parametrize("name", ["ledger.jsonl", "metrics.jsonl", "score.json", "result.json", "phases/rank-0.jsonl"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_who_only_reads_is_not_led_away(home, name, kind):
    """A report of a stranger's directory shows none of our files, and waits for none of his pipes."""
    train(home / "run")
    read_run(home / "run")  # the control
    path = home / "run" / name
    path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to(home / "precious")
    else:
        os.mkfifo(path)
    with pytest.raises((CheckpointError, ConfigError), match=f"{path}.*, found a (symbolic link|pipe)"):
        read_run(home / "run")


@pytest.mark.parametrize("read", [list_steps, newest_valid, lambda path: load_weights(torch.nn.Linear(1, 1), path)])
def test_checkpoints_that_lead_elsewhere(home, read):
    """The checkpoint verbs and `load_weights` do not enter another directory under the name of ours."""
    write(home / "others", 3, state_of(3))
    (home / "run" / "checkpoints").rmdir()
    (home / "run" / "checkpoints").symlink_to(home / "others")
    with pytest.raises(CheckpointError, match=r"run/checkpoints, found a symbolic link"):
        read(home / "run" / "checkpoints")
    step = list_steps(home / "others")[0][1]
    (home / "run" / step.name).symlink_to(step)
    with pytest.raises(CheckpointError, match=rf"{step.name}.*symbolic link"):
        verify(home / "run" / step.name)
    (home / "best").symlink_to(step)
    assert verify(home / "best").step == 3  # the control: a link of one's own, under a name of one's own


def test_weights_by_a_link_of_ones_own(home):
    """Caches of models are made of links: one file that the caller names may be one; a pipe is refused."""
    model = torch.nn.Linear(2, 1)
    torch.save(model.state_dict(), home / "blob.pt")
    (home / "weights.pt").symlink_to(home / "blob.pt")
    load_weights(torch.nn.Linear(2, 1), home / "weights.pt")
    os.mkfifo(home / "pipe.pt")
    with pytest.raises(CheckpointError, match=r"expected a file at .*pipe.pt, found a pipe"):
        load_weights(torch.nn.Linear(2, 1), home / "pipe.pt")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file to another user")
@pytest.mark.parametrize("name", ["run.json", "score.json", "ledger.jsonl", "run.lock", "checkpoints/step"])
def test_a_strangers_file_in_our_directory(home, name):
    """Where a group may write, what another user has put there is refused by name; ours is not."""
    train(home / "run")
    path = next((home / "run").glob(name + "*"))
    os.chown(path, 65534, 65534)
    with pytest.raises((CheckpointError, ConfigError), match=f"{path}.*user 65534"):
        train(home / "run")
    os.chown(path, 0, 0)
    assert train(home / "run") == 4


def test_what_killed_writers_have_left_is_cleared_away(home):
    """Half-written files under temporary names go with the next launch; a user's own files stay."""
    train(home / "run")
    before = sorted(path.name for path in (home / "run").iterdir())
    for name in (f".score.json.{bytes(8).hex()}.tmp", f".ledger.jsonl.{bytes(8).hex()}.tmp", f".seen-{bytes(16).hex()}",
                 f".probe-{bytes(8).hex()}"):  # fmt: skip
        (home / "run" / name).write_text("half")
    for name in (".notes.tmp", "plan.txt", ".seen-by-me"):
        (home / "run" / name).write_text("a user's")
    train(home / "run")
    assert sorted(path.name for path in (home / "run").iterdir()) == sorted(
        [*before, ".notes.tmp", "plan.txt", ".seen-by-me"]
    )


def test_a_program_may_replace_through_a_path(home):
    """`replace_file` and a ledger of its own path are as careful: the last name is replaced or refused."""
    (home / "run" / "x").symlink_to(home / "precious")
    replace_file(home / "run" / "x", b"1")
    (home / "run" / "y.jsonl").symlink_to(home / "precious")
    with pytest.raises(CheckpointError, match="found a symbolic link"):
        Ledger(home / "run" / "y.jsonl", 0)
    untouched(home)
