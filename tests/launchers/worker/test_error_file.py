"""torchrun's error file: what it says is the root cause where the worker itself says less."""

import json

import pytest

from unisono.launchers.supervision.failure import FailureReport, WorkerExit, describe, find_root
from unisono.launchers.worker.error_file import error_file, with_recorded


def exited(rank, code, time_s=1.0):
    return WorkerExit(rank=rank, code=code, time_s=time_s)


def report_of(error, rank=0, code=1):
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - as the worker's own first code does
        return FailureReport.from_exception(caught, rank, code)


def recorded(directory, rank, content):
    error_file(str(directory), rank).write_text(content if isinstance(content, str) else json.dumps(content))


def text_of(directory, exits, reports=None):
    root = find_root(exits, with_recorded(str(directory), exits, reports or {}))
    return root.rank, root.exit_code, describe(root, 2, [], [])


def theirs(message, stack="Traceback ...\nValueError: boom"):
    return {"message": {"message": message, "extraInfo": {"py_callstack": stack, "timestamp": "1"}}}


def test_a_plain_exit_code_is_explained(tmp_path):
    """A worker that left no report: the file's words and stack, the worker's own code."""
    recorded(tmp_path, 1, theirs("ValueError: boom"))
    rank, code, text = text_of(tmp_path, [exited(1, 3)])
    assert (rank, code) == (1, 3)
    assert text == "rank 1 of 2 failed with ValueError: boom\n\nTraceback ...\nValueError: boom"
    rank, code, text = text_of(tmp_path, [exited(1, -6)])
    assert (code, "ValueError: boom" in text) == (134, True)


def test_sys_exit_is_explained_and_an_exception_needs_no_file(tmp_path):
    """``except: sys.exit(1)`` hides the reason, which was recorded; an exception's own report has more."""
    recorded(tmp_path, 0, theirs("ValueError: boom"))
    assert "ValueError: boom" in text_of(tmp_path, [exited(0, 1)], {0: report_of(SystemExit(1))})[2]
    assert "KeyError" in text_of(tmp_path, [exited(0, 1)], {0: report_of(KeyError("x"))})[2]


def test_a_file_of_a_worker_that_ended_well_is_no_failure(tmp_path):
    """The program has caught its own error."""
    recorded(tmp_path, 0, theirs("ValueError: boom"))
    assert find_root([exited(0, 0)], with_recorded(str(tmp_path), [exited(0, 0)], {})) is None


def test_who_blames_a_peer_is_not_the_root(tmp_path):
    """Rank 0 was first and says that its peer went away; rank 1 says why."""
    recorded(tmp_path, 0, theirs("RuntimeError: Connection closed by peer [127.0.0.1]:1"))
    recorded(tmp_path, 1, theirs("ValueError: boom"))
    assert text_of(tmp_path, [exited(0, 1, 1.0), exited(1, 1, 2.0)])[0] == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"message": "out of luck"}, "failed with an error of its own: out of luck"),
        ("not JSON at all", "failed with an error of its own: not JSON at all"),
        ([1, 2], "failed with an error of its own: [1, 2]"),
        ({"message": {"extraInfo": 5}}, "failed with an error of its own: "),
        ("[" * 100_000, "failed with an error of its own: [[["),
        ("", "exited with code 1"),
    ],
)
def test_whatever_a_program_writes_is_shown(tmp_path, content, words):
    """Handlers may write what they like; an empty file says nothing."""
    recorded(tmp_path, 0, content)
    assert words in text_of(tmp_path, [exited(0, 1)])[2]


def test_no_link_is_followed_and_no_pipe_waited_for(tmp_path):
    """The file may be anything that the worker could make."""
    (tmp_path / "secret").write_text(json.dumps(theirs("ValueError: secret")))
    error_file(str(tmp_path), 0).symlink_to(tmp_path / "secret")
    assert "secret" not in text_of(tmp_path, [exited(0, 1)])[2]


def test_record_of_torch_is_honoured(place):
    """A script as torchrun's documentation asks for, which hides its error: message, stack and code are shown."""
    result = place.run(
        """
        import os, sys, time
        from torch.distributed.elastic.multiprocessing.errors import record
        @record
        def main():
            raise ValueError("the true reason")
        try:
            main()
        except ValueError:
            sys.exit(3)
        """,
        "-n1",
    )
    assert result.returncode == 3
    assert result.stderr.startswith("unisono run: rank 0 of 1 failed with ValueError: the true reason\n")
    assert result.stderr.count("Traceback (most recent call last)") == 1
