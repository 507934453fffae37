"""Every verb ends with the same exit codes and one message."""

import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from unisono import errors
from unisono.cli.main import main, unisono
from unisono.cli.output.outcome import FAILED, USAGE_ERROR, Terminated, conclude, nothing_kept, perform, tidy
from unisono.experiments import job
from unisono.launchers.local import deliver


def raising(error):
    def action():
        raise error

    return action


def test_success_is_zero_and_silent(capsys):
    """No message and code 0, unless the action has a code of its own."""
    assert perform("train", lambda: None) == 0
    assert perform("verify", lambda: FAILED) == FAILED == 1
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("wrong"), USAGE_ERROR),
        (errors.ScoreMismatch("other"), 2),
        (errors.EnvironmentDrift("moved"), 2),
        (errors.DataError("torn"), 2),
        (errors.LaunchError("no room"), 1),
        (errors.CheckpointError("full"), 1),
        (errors.WorldError("half"), 1),
        (errors.WorkerFailed("rank 1", rank=1, exit_code=137), 137),
        (errors.WorkerFailed("rank 0", rank=0, exit_code=2), 2),
    ],
)
def test_our_errors_are_one_message_and_a_code(capsys, error, code):
    """Wrong settings and data are 2, a worker's failure is its own code, anything else of ours 1."""
    assert perform("train", raising(error)) == code
    assert capsys.readouterr() == ("", f"unisono train: {error}\n")


def test_an_interrupt_is_130(capsys, monkeypatch):
    """Ctrl-C is no error to be explained; but a verb with several runs says what is kept, and how to go on."""
    monkeypatch.setattr("sys.argv", ["unisono", "diff", "a", "b"])
    assert perform("diff", raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr() == ("", "unisono diff: interrupted. Again: unisono diff a b\n")
    assert perform("run", raising(KeyboardInterrupt()), str) == 130  # its launcher has said it
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.argv", ["/somewhere/unisono", "verify", "my script.py"])
    told = "unisono verify: interrupted. Nothing is kept of the runs. Again: unisono verify 'my script.py'\n"
    for stop in (KeyboardInterrupt(), errors.RunStopped(7)):
        assert perform("verify", raising(stop), nothing_kept("the runs")) == 130
        assert capsys.readouterr() == ("", told)


def test_a_run_that_has_saved_is_75():
    """Where runs are kept, a stop between two steps is no interrupt."""
    for settings in ({}, {"interrupted": str, "keeps_runs": True}):
        with pytest.raises(errors.RunStopped):
            perform("train", raising(errors.RunStopped(7)), **settings)


def test_a_bug_is_not_hidden():
    """An error that is not ours keeps its traceback."""
    with pytest.raises(ZeroDivisionError):
        perform("train", raising(ZeroDivisionError()))


def test_a_reader_that_goes_away_is_141_without_a_word():
    """Where the pipe is closed, the verb ends quietly with the code of SIGPIPE, also at interpreter exit."""
    code = (
        "import sys; from unisono.cli.output.outcome import perform; "
        "sys.exit(perform('x', lambda: [print('line ' * 100) for _ in range(1000)] and None))"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait() == 141


ROWS = {
    "0": [(lambda: None, 0)],
    "1": [(lambda: conclude(False, True), 1), (raising(errors.LaunchError("no room")), 1)],
    "2": [
        (lambda: unisono(["diff", "--colour"], standalone_mode=False), 2),
        (lambda: unisono(["watch", "nowhere", "--once"], standalone_mode=False), 2),
        (raising(errors.ConfigError("wrong")), 2),
        (raising(errors.DataError("torn")), 2),
    ],
    "75": [(raising(errors.RunStopped(7)), 75)],
    "128 + n": [(raising(errors.WorkerFailed("rank 1", rank=1, exit_code=137)), 137)],
    "129, 130, 143": [(lambda: deliver(signal.SIGHUP, signal.SIG_DFL), 129), (raising(KeyboardInterrupt()), 130),
                      (raising(Terminated(143)), 143), (lambda: deliver(signal.SIGTERM, signal.SIG_DFL), 143)],
    "141": [(raising(BrokenPipeError()), 141)],
    "others": [(raising(errors.WorkerFailed("rank 0", rank=0, exit_code=7)), 7)],
}  # fmt: skip


def test_the_table_of_exit_codes(monkeypatch, capsys):
    """Every row of the page's table, and no code besides."""
    monkeypatch.setattr("os.dup2", lambda *_: None)
    page = (Path(__file__).parents[3] / "docs" / "commands" / "index.md").read_text()
    rows = page.partition("| exit code | meaning |\n|---|---|\n")[2].partition("\n\n")[0]
    assert [row.split("|")[1].strip() for row in rows.splitlines()] == list(ROWS)
    for cases in ROWS.values():
        for action, code in cases:
            try:
                found = perform("train", action)
            except click.ClickException as error:
                found = error.exit_code
            except SystemExit as end:
                found = end.code
            assert found == code


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("train digits", "train: interrupted. Nothing is kept; --out DIR keeps runs. Again: "),
        ("train digits --out fresh", "train: interrupted. fresh holds no checkpoint yet. Again, from the beginning: "),
        ("train digits --out old", "train: interrupted. old holds the checkpoint of step 120. Go on with: "),
        ("train digits --out whole", "train: interrupted. whole holds the complete run of 7 steps."),
        ("verify digits -w 1,2", "verify: interrupted. Nothing is kept of the runs so far. Again: "),
        (
            "bench strategies digits --strategies ddp",
            "bench strategies: interrupted. Nothing is kept of the measurement. Again: ",
        ),
        ("bench tune digits", "bench tune: interrupted. Nothing is kept of the measurement. Again: "),
        ("bench scaling digits", "bench scaling: interrupted. Nothing is kept of the measurement. Again: "),
    ],
)
def test_ctrl_c_says_what_is_kept(tmp_path, monkeypatch, capsys, arguments, told):
    """In every verb with several runs, at a moment when none can stop between two steps: code 130, and the command."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    for name in ("step-00000009.0a1b2c3d", "step-00000120.ffffffff", "step-00000300.0a1b2c3d.draft", "latest"):
        (tmp_path / "old" / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "whole" / "checkpoints" / "step-00000007.0a1b2c3d").mkdir(parents=True)
    (tmp_path / "whole" / "result.json").write_text('{"finished": true, "steps": 7}')
    (tmp_path / "old" / "result.json").write_text('{"finished": true, "steps": 7}')  # of fewer epochs
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job, "start", interrupted)
    monkeypatch.setattr("sys.argv", ["unisono", *arguments.split()])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    again = "" if told.endswith(".") else f"unisono {arguments}"
    assert capsys.readouterr().err.splitlines()[-1] == f"unisono {told}{again}"


def test_ctrl_c_in_chaos(tmp_path):
    """The same of real processes; what --out keeps is named."""
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from unisono.cli.main import main; main()"
    for out in ([], ["--out", "kept"]):
        chaos = subprocess.Popen(
            [sys.executable, "-c", code, "chaos", "digits", *out],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert "undisturbed" in chaos.stderr.readline()
        chaos.send_signal(signal.SIGINT)
        printed, told = chaos.communicate(timeout=60)
        assert (chaos.returncode, printed) == (130, "")
        kept = "kept holds both runs as far as they came. Hint: remove it, then again: " if out else (
            "Nothing is kept of the two runs. Again: ")  # fmt: skip
        assert told == f"unisono chaos: interrupted. {kept}unisono chaos digits{' --out kept' * bool(out)}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_message_cannot_flood_or_steer_the_terminal(capsys):
    """Control characters are spelled out, and a line that is longer than anybody reads keeps both its ends."""
    assert tidy("a\x1b[31m\0b\n\tc µ") == "a\\x1b[31m\\x00b\n\tc µ"
    assert perform("train", raising(errors.ConfigError(f"got {'x' * 100_000}. Hint: less"))) == 2
    told = capsys.readouterr().err
    assert len(told) < 2500
    assert told.startswith("unisono train: got xxx")
    assert told.endswith(". Hint: less\n")


def test_ctrl_c_while_a_class_is_made():
    """Until Python 3.12 it comes as a `RuntimeError`; the control: any other one is none of ours."""

    class Interrupts:
        def __set_name__(self, owner, name):
            raise KeyboardInterrupt

    def load():
        type("World", (), {"part": Interrupts()})

    assert perform("diff", load) == 130
    with pytest.raises(RuntimeError, match="of its own"):
        perform("diff", raising(RuntimeError("of its own")))
