"""Who failed first."""

import argparse
import contextlib
import errno
import functools
import io
from dataclasses import replace

import pytest
import torch

from unisono.errors import CheckpointError, ConfigError, DataError, PeerLost, PlaceError
from unisono.launchers.spec import LaunchSpec, ScriptTarget
from unisono.launchers.supervision.failure import FailureReport, WorkerExit, describe, find_root, load_reports
from unisono.system.heartbeat import HeartbeatPage, Reading


def report_of(raiser, rank=0, exit_code=1):
    try:
        raiser()
    except BaseException as error:  # noqa: BLE001 - as the worker's own first code does
        return FailureReport.from_exception(error, rank, exit_code)
    raise AssertionError("nothing was raised")


def raising(error, cause=None):
    def raiser():
        raise error from cause

    return raiser


def exits(**codes):
    """Exits in the order given, one second apart."""
    return [WorkerExit(rank=int(name[1:]), code=code, time_s=float(i)) for i, (name, code) in enumerate(codes.items())]


def secondary(rank, time_s):
    return FailureReport(
        rank=rank,
        type_name="RuntimeError",
        message="Connection closed by peer",
        traceback="trace",
        location="",
        is_unisono=False,
        is_secondary=True,
        is_config=False,
        is_final=False,
        exit_code=1,
        time_s=time_s,
    )


def test_the_place_is_one_to_look_at():
    """The innermost line outside unisono, torch and Python's library: not what passes it on."""

    def refused_on_the_way_out():
        with contextlib.ExitStack() as stack:
            stack.callback(LaunchSpec, target=ScriptTarget(path="a.py"), workers=0)

    def refused_arguments():
        with contextlib.redirect_stderr(io.StringIO()):
            argparse.ArgumentParser().parse_args(["--unknown"])

    def refused_in_torch():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1)
        optimizer.register_step_pre_hook(functools.partial(LaunchSpec, "a.py"))
        optimizer.step()

    for raiser in (refused_on_the_way_out, refused_arguments, refused_in_torch):
        file, _, line = report_of(raiser).location.rpartition(":")
        first = raiser.__code__.co_firstlineno
        assert (file, int(line) in range(first, first + 4)) == (__file__, True)
    assert report_of(raising(ValueError())).location.startswith(__file__)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("boom"), False),
        (ValueError("connection closed by peer, says my data"), False),
        (RuntimeError("CUDA out of memory"), False),
        (RuntimeError("[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"), True),
        (RuntimeError("Timed out waiting 1000ms for recv operation to complete"), True),
        (PeerLost("rank 2 went away"), True),
        (ConnectionResetError("Connection reset by peer"), True),
        (BrokenPipeError(32, "Broken pipe"), True),
    ],
    ids=str,
)
def test_secondary(error, expected):
    """What the loss of a peer looks like is told from a failure of one's own."""
    assert report_of(raising(error)).is_secondary is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EROFS, "Read-only file system"), True),
        (OSError(errno.EIO, "Input/output error"), False),
        (CheckpointError("none of the 2 checkpoints can be trusted", is_final=True), True),
        (CheckpointError("the checkpoint is not committed"), False),
        (ConfigError("expected 1"), True),
        (ValueError("boom"), False),
    ],
    ids=str,
)
def test_what_a_restart_cannot_mend(error, expected):
    """A full disk and damage to all checkpoints come again; another error of a disk may not."""
    assert report_of(raising(error)).is_final is expected


def test_what_is_a_mistake_in_the_program():
    """A name that is missing, a wrong type, and what says its fix; not files, the network, memory."""
    noted = RuntimeError("shapes cannot be multiplied")
    noted.add_note("Hint: nn.Linear(3, 2).")
    mistakes = [NameError("modle"), TypeError("int"), ImportError("torhc"), PlaceError("only. Hint: do it."), noted]
    others = [
        RuntimeError("CUDA error"),
        OSError("no file"),
        CheckpointError("Hint: x"),
        torch.OutOfMemoryError("Hint:"),
    ]
    assert [report_of(raising(error)).is_mistake for error in [*mistakes, *others]] == [True] * 5 + [False] * 4


def test_secondary_behind_another_error():
    """An error raised because of a lost peer blames the peer too."""
    cause = RuntimeError("Connection reset by peer")
    assert report_of(raising(ValueError("could not reduce"), cause)).is_secondary


def test_report_round_trip(tmp_path):
    """A saved report is read back as it was, and a missing one is nobody's failure."""
    report = report_of(raising(ValueError("b\u00f6se\nzweite Zeile \udc80")), rank=1)
    report.save(str(tmp_path))
    assert load_reports(str(tmp_path), range(3)) == {1: report}
    assert [path.name for path in tmp_path.iterdir()] == ["error-1.json"]


def test_frames_of_torch_are_counted(monkeypatch):
    """The program's own lines are shown, torch's counted; all of them where torch's own variable asks for them."""

    def raiser():
        torch.nn.Linear(2, 2)(torch.ones(3, 3))

    text = report_of(raiser).traceback
    assert "torch.ones(3, 3)" in text and "  ... 3 frames in torch\nRuntimeError: mat1" in text
    assert "module.py" not in text
    monkeypatch.setenv("TORCH_SHOW_CPP_STACKTRACES", "1")
    assert "module.py" in report_of(raiser).traceback


def test_broken_text():
    """An exception that cannot say what it is still makes a report."""

    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no")

    assert report_of(raising(Mute())).type_name == "Mute"


def test_root_is_the_earliest_primary():
    """A later failure of one's own beats an earlier one that blames a peer."""
    root = find_root(exits(r0=1, r2=-9, r1=0), {0: secondary(0, -1.0)})
    assert (root.rank, root.exit_code) == (2, 137)


def test_root_of_a_rank_still_running():
    """A rank that has reported but not ended yet can be the root."""
    root = find_root(exits(r0=1), {0: secondary(0, 5.0), 1: report_of(raising(ValueError("boom")), rank=1)})
    assert root.rank == 1


def test_all_that_failed_alike_are_said_once():
    """The same mistake on all ranks: one text, of the lowest rank; another line or another error is not alike."""

    def failing(rank, text="size 3 of rank 0, 9b151c1a7aad1d3d"):
        return report_of(raising(ValueError(text)), rank=rank)

    reports = {2: failing(2), 0: failing(0), 1: failing(1, "size 3 of rank 1, eabe24e995817477")}
    root = find_root(exits(r2=1), reports)
    assert (root.rank, root.alike) == (0, (0, 1, 2))
    assert describe(root, 3, {}, []).startswith(
        "all 3 ranks failed alike with ValueError: size 3 of rank 0, 9b151c1a7aad1d3d\n\nTrace"
    )
    assert describe(root, 4, {}, [3]).startswith("ranks 0, 1, 2 of 4 failed with ValueError")
    assert describe(find_root([], {0: reports[0], 1: reports[1]}), 2, {}, []).startswith("both ranks failed alike")
    for other in (failing(1, "no"), report_of(raising(KeyError("size 3 of rank 0, 9b151c1a7aad1d3d")), rank=1)):
        assert find_root([], {0: replace(reports[0], time_s=0.0), 1: other}).alike == ()


def test_what_others_are_about_to_say_is_waited_for(tmp_path, monkeypatch):
    """All ranks fail within a moment of each other; who blames a peer, or is another's failure, is not waited for."""
    monkeypatch.setattr("unisono.launchers.supervision.failure._ALIKE_WAIT_S", (60.0, 0.0))
    later = [report_of(raising(ValueError("boom")), rank=rank) for rank in (1, 2)]
    monkeypatch.setattr("time.sleep", lambda seconds: later.pop().save(str(tmp_path)))
    report_of(raising(ValueError("boom"))).save(str(tmp_path))
    assert sorted(load_reports(str(tmp_path), range(3))) == [0, 1, 2] and not later
    secondary(1, 0.0).save(str(tmp_path))
    assert len(load_reports(str(tmp_path), range(4))) == 3
    heartbeat = HeartbeatPage.create(tmp_path / "heartbeat-0")
    report_of(raising(ValueError("boom")), rank=1).save(str(tmp_path))
    heartbeat.done(1)
    assert len(load_reports(str(tmp_path), range(4))) == 3  # after the first step: at most a tenth of a second


def test_root_without_primary():
    """When all blame a peer, the earliest is shown with a hint about those that said nothing."""
    root = find_root(exits(r0=1, r1=0), {0: secondary(0, 5.0), 2: secondary(2, 4.0)})
    assert root.rank == 2
    text = describe(root, 4, ended={1: Reading()}, running=[3])
    assert "ended normally: 1; still running: 3" in text
    assert "left its loop" in text
    text = describe(root, 4, ended={}, running=[3])
    assert "Still running: 3. Hint: look for a rank that skips" in text
    assert "left its loop" not in text


def test_who_has_left_comes_first():
    """A rank that ended while another one waited for it: after which step, where that one was, and what to write."""
    root = find_root(exits(r0=1, r1=0), {0: replace(secondary(0, 5.0), location="train.py:17")})
    told = {1: Reading(pid=7, done=10, last=320), 2: Reading(pid=8, done=12, last=320)}
    first, *rest = describe(root, 3, ended=told, running=[], step=11).splitlines()
    assert first.startswith("rank 1 left its loop after step 10, while rank 0 was in step 11 at train.py:17. Hint: all")
    assert rest[0].startswith("rank 0 of 3 failed with")
    first = describe(root, 2, ended={1: Reading(pid=7, done=320, last=320)}, running=[], step=320).splitlines()[0]
    assert first.startswith("rank 1 ended normally after step 320, while rank 0 waited for it at train.py:17. Hint: ev")
    early = describe(root, 2, ended={1: Reading(pid=7, done=10, last=320)}, running=[], step=10).splitlines()[0]
    assert early.startswith("rank 1 ended normally after step 10, while rank 0 waited")  # both had left the loop


def test_no_failure():
    """Good exits have no root cause."""
    assert find_root(exits(r0=0, r1=0), {}) is None


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "rank 1 of 2 was killed by SIGKILL (exit code 137), as is known"),
        (-11, "was killed by SIGSEGV (exit code 139): a fault in native code"),
        (
            -6,
            "its stack is in the worker's output. Hint: where that speaks of gloo, the ranks passed tensors",
        ),
        (-15, "was killed by SIGTERM (exit code 143)."),
        (-40, "(exit code 168)"),
        (3, "exited with code 3 and left no report"),
    ],
)
def test_exit_texts(code, words):
    """A death without report is named by signal or code."""
    root = find_root([WorkerExit(rank=1, code=code, time_s=0.0)], {})
    assert words in describe(root, 2, [], [], "as is known")


def test_report_texts():
    """Our own errors need no traceback, others have one, and sys.exit is named as such."""

    def text(error, code=1):
        return describe(find_root([], {0: report_of(raising(error), exit_code=code)}), 1, [], [])

    ours = text(DataError("file is short"))
    assert "DataError: file is short (" in ours and "test_failure.py:" in ours and "Traceback" not in ours
    assert text(ValueError("boom")).count("Traceback (most recent call last)") == 1
    assert "called sys.exit(4)" in text(SystemExit(4), 4)
