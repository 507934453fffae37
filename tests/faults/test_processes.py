"""Rows of the fault matrix that concern processes: death, silence, requests to stop. Numbers are the matrix's rows."""

import re
import signal
import time

import job
import pytest
from evidence import finish, is_gone, kill, record

SLOWED = "wait!@0:0"  # every step of rank 0 takes 50 ms longer, so that a fault finds the run going


def test_row_2_killed_rank_0(launches, reference):
    """Rank 0 killed in the midst of a step: replaced, the same bits, nothing left over."""
    result = launches.run("reduce@9:0")
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("was killed by SIGKILL") == 1
    assert "rank 0 of 2 was killed" in result.stderr
    assert "no out-of-memory kill" in result.stderr
    assert launches.result["resumed_from_step"] in (4, 8)  # that of step 8 may have been on its way
    assert launches.leftovers() == []
    launches.judge(2, "SIGKILL rank 0 in reduce", reference)


def test_rows_8_46_stop_and_resume(launches, reference):
    """SIGTERM in the midst of a run: one agreed step, saved, code 75; it goes on with another number of workers."""
    launcher = launches.start(SLOWED)
    launches.wait_for_step(6)
    launcher.terminate()
    stopped = finish(launcher)
    assert stopped.returncode == 75, stopped.stderr
    assert re.search(r"stopped after step \d+, and saved", stopped.stderr)
    assert launches.result["finished"] is False
    assert 6 <= launches.result["steps"] < job.STEPS
    before = launches.result["steps"]
    assert job.train(str(launches.out), []) == launches.result["fingerprint"]  # alone, in this process
    assert launches.result["resumed_from_step"] == before
    launches.judge(46, "SIGTERM, then on one worker", reference)


def test_the_comparison_sees_what_restarts_change(launches, reference, monkeypatch):
    """Control: a program with a stream of its own, which no checkpoint knows, must be told apart."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    job.train(str(launches.out), ["noise@0:0"])
    assert launches.is_equal_to(reference) != "equal"


@pytest.mark.slow
def test_rows_1_2_killed_workers(launches, reference):
    """Both ranks killed, one after the other: each is replaced, and the bits are the same."""
    result = launches.run("forward@5:1", "reduce@9:0")
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("was killed by SIGKILL") == 2
    assert "rank 1 of 2 was killed" in result.stderr
    assert "rank 0 of 2 was killed" in result.stderr
    assert launches.leftovers() == []
    launches.judge(1, "SIGKILL in forward and reduce", reference)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills",
    [
        ("data@4:0", "forward@8:0", "backward@12:0", "reduce@16:0"),
        ("save@0:0", "update@8:0", "record@12:0", "between@16:0"),  # saving is another thread's work, without a step
    ],
    ids=",".join,
)
def test_row_1_every_phase(launches, reference, kills):
    """A worker killed in each phase of a step, and while a checkpoint is committed, is replaced: the same bits."""
    result = launches.run(*kills, restarts=len(kills))
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("was killed by SIGKILL") == len(kills)
    assert {path.name for path in launches.folder.glob("mark-*")} == {
        f"mark-{kill.replace('@', '-').replace(':', '-')}" for kill in kills
    }
    launches.judge(1, f"SIGKILL in {', '.join(kills)}", reference)


@pytest.mark.slow
def test_rows_3_5_everything_killed(launches, reference):
    """All workers killed at once, then launcher and workers: the same bits, and the same command resumes."""
    launcher = launches.start(SLOWED, options=("--max-restarts", "1"))
    for reading in launches.wait_for_step(6):
        kill(reading.pid)
    launches.wait_for_step(9)
    pids = [reading.pid for reading in launches.readings()]
    launcher.kill()
    for pid in pids:
        kill(pid)
    assert all(is_gone(pid) for pid in pids)
    assert launches.run().returncode == 0
    assert launches.leftovers() == []
    launches.judge(3, "all workers, then launcher too", reference)


@pytest.mark.slow
def test_row_4_killed_launcher(launches, reference):
    """A killed launcher takes its workers and its private directory along; the same command at once goes on."""
    launcher = launches.start(SLOWED)
    pids = [reading.pid for reading in launches.wait_for_step(6)]
    launcher.kill()
    again = launches.start()
    assert all(is_gone(pid) for pid in pids)
    result = finish(again)
    assert result.returncode == 0, result.stderr
    assert launches.result["resumed_from_step"] >= 4
    assert launches.leftovers() == []
    launches.judge(4, "SIGKILL the launcher, relaunch", reference)


@pytest.mark.slow
def test_row_7_crash_loop(launches):
    """A worker that always dies at one step: the launch stops, and names step, replica and samples."""
    result = launches.run("forward!@6:0", workers=1, restarts=1)
    assert result.returncode == 137
    seen = re.search(r"in step 6, replica 0 \(samples [\d, ]+\)", result.stderr)
    record(7, "always SIGKILL at step 6", expected="named", seen="named" if seen else result.stderr)


@pytest.mark.slow
def test_row_9_a_slot_for_good(launches, reference):
    """A slot that fails again and again is given up, and the run ends on the others: the same bits."""
    result = launches.run("between!@6:1")
    assert result.returncode == 0, result.stderr
    # How many restarts come before depends on which checkpoints were committed: progress makes a restart free.
    assert re.search(r"Slot 1 keeps failing and is given up\. Restart \d with 1 worker ", result.stderr), result.stderr
    assert launches.result["world_size"] == 1
    launches.judge(9, "rank 1 always dies", reference)


@pytest.mark.slow
def test_rows_10_11_stopped_worker(launches, reference):
    """A stopped worker is noticed and told to go on; no restart is needed."""
    result = launches.run("stop@6:1", options=("--heartbeat", "4"))
    assert result.returncode == 0, result.stderr
    assert "it has been stopped (state T); it is told to go on" in result.stderr
    assert "Restart" not in result.stderr
    launches.judge(11, "SIGSTOP", reference)


@pytest.mark.slow
def test_row_12_interpreter_deadlock(launches, reference):
    """A worker whose threads cannot get the interpreter's lock is noticed, shown and replaced."""
    result = launches.run("gil@6:1", options=("--heartbeat", "4"))
    assert result.returncode == 0, result.stderr
    assert re.search(r"rank 1 has shown no sign of life for \d+ s: .*interpreter's lock.*it is killed", result.stderr)
    assert "job.py" in result.stderr
    launches.judge(12, "deadlock on the interpreter's lock", reference)


@pytest.mark.slow
def test_row_13_native_faults(launches, reference):
    """Faults in native code and a silent exit are named, each in a report of its own, and the worker is replaced."""
    result = launches.run("segfault@5:1", "abort@9:1", "exit3@13:1")
    assert result.returncode == 0, result.stderr
    reports = [line for line in result.stderr.splitlines() if "rank 1 of 2" in line]
    assert len(reports) == 3
    for report, words in zip(reports, ("SIGSEGV", "SIGABRT", "code 3"), strict=True):
        assert words in report
    assert result.stderr.count("Fatal Python error") == 2
    launches.judge(13, "segfault, abort, exit3", reference)


@pytest.mark.slow
def test_row_17_killed_while_loading(launches, reference):
    """A worker killed while it loads a checkpoint: loading has no effect, so it is simply done again."""
    result = launches.run("forward@6:0", "load@0:1")
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("was killed by SIGKILL") == 2
    launches.judge(17, "SIGKILL while loading", reference)


@pytest.mark.slow
def test_row_38_a_rank_that_does_not_come(launches):
    """A rank that hangs in the program's own code: after a while it is said in plain words who waits for whom."""
    launcher = launches.start("hang@6:1", options=("--hang-report", "2"))
    wanted = re.compile(
        r"rank 0: waits for the other ranks in [\w.]+, step 6(?s:.*)"
        r"rank 1: step 6, doing between steps, at \S+job\.py:\d+ in (?s:.*)The others wait for rank 1\."
    )
    err = ""
    while not wanted.search(err):  # a busy machine may have reports of its slow start before
        line = launcher.stderr.readline()
        assert line, err
        err += line
    launcher.kill()
    record(38, "a rank hangs in user code", expected="named", seen="named")


@pytest.mark.slow
def test_row_38_a_rank_that_leaves(launches):
    """A worker that ends well but too early: no endless restarts, and the message points at it."""
    result = launches.run("leave!@6:1", restarts=1)
    assert result.returncode == 1
    assert "Ranks that had ended normally: 1" in result.stderr
    assert "1 restarts in a row made no progress" in result.stderr
    record(38, "a rank leaves early", expected="named", seen="named")


@pytest.mark.slow
def test_row_42_an_error_that_comes_again(launches):
    """The same exception at the same step ends the launch after one more try, with its traceback."""
    result = launches.run("raise!@6:1")
    assert result.returncode == 1
    assert "ValueError: a bad sample" in result.stderr
    assert "No restart: ValueError has come twice in step 6" in result.stderr
    record(42, "an exception that comes again", expected="stopped", seen="stopped")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["launcher", "worker"])
def test_row_46_asked_to_stop(launches, reference, target):
    """SIGTERM to the launcher or to one worker alone: all ranks stop after one agreed step, with code 75."""
    launcher = launches.start(SLOWED)
    pids = [reading.pid for reading in launches.wait_for_step(6)]
    kill(launcher.pid if target == "launcher" else pids[1], signal.SIGTERM)
    stopped = finish(launcher)
    assert stopped.returncode == 75, stopped.stderr
    assert launches.run().returncode == 0
    launches.judge(46, f"SIGTERM to the {target}", reference)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["server", "worker"])
def test_row_46_asked_to_stop_without_steps_in_common(launches, target):
    """Where workers are at different steps (``ps_async``): all stop after the first that none has passed."""
    launches.env["JOB_STRATEGY"] = "ps_async"
    launcher = launches.start("wait!@0:2", workers=3)
    pids = [reading.pid for reading in launches.wait_for_step(6, workers=3)]
    kill(pids[0] if target == "server" else pids[1], signal.SIGTERM)
    stopped = finish(launcher)
    assert stopped.returncode == 75, stopped.stderr
    before = launches.result["steps"]
    assert f"stopped after step {before}, and saved" in stopped.stderr
    assert before < job.STEPS
    assert launches.run(workers=3).returncode == 0
    assert (launches.result["steps"], launches.result["resumed_from_step"]) == (job.STEPS, before)
    record(46, f"SIGTERM to the {target} of ps_async", expected="agreed", seen="agreed")


@pytest.mark.slow
def test_row_46_too_little_grace(launches, reference):
    """A worker that cannot come to the end of its step in time is killed; the last checkpoint still holds."""
    launcher = launches.start("hang@6:1", options=("--stop-grace", "1"))
    launches.wait_for_step(6)
    launcher.terminate()
    assert finish(launcher).returncode == 143
    assert launches.run("hang@6:1").returncode == 0  # its mark is set: it comes no more
    launches.judge(46, "SIGTERM, grace too short", reference)


@pytest.mark.slow
def test_row_47_ctrl_c_twice(launches, reference):
    """A second Ctrl-C stops at once, also a worker that never comes to the end of its step."""
    launcher = launches.start("hang@6:1")
    pids = [reading.pid for reading in launches.wait_for_step(6)]
    launcher.send_signal(signal.SIGINT)
    time.sleep(0.5)  # a person's pause
    assert launcher.poll() is None
    start = time.monotonic()
    launcher.send_signal(signal.SIGINT)
    assert finish(launcher).returncode == 130
    assert time.monotonic() - start < 100  # the worker would not end for 1000 s
    assert all(is_gone(pid) for pid in pids)
    assert launches.run().returncode == 0
    launches.judge(47, "Ctrl-C twice", reference)


@pytest.mark.slow
def test_row_50_slow_rank(launches, reference):
    """A rank that falls seconds behind changes nothing, and costs no restart."""
    result = launches.run("sleep@6:1")
    assert result.returncode == 0
    assert "Restart" not in result.stderr
    launches.judge(50, "5 s behind", reference)


@pytest.mark.slow
def test_row_30_two_runs_one_directory(launches, reference):
    """A second launch refuses a directory in use, naming the holder, with code 2; the first is not disturbed."""
    first = launches.start(SLOWED, "sleep@6:0", "sleep@9:0", "sleep@12:0")
    holder = launches.wait_for_step(2)[0].pid
    second = finish(launches.start(workers=1))
    assert second.returncode == 2, second.stderr
    assert f"is in use by process {holder} on " in second.stderr
    assert finish(first).returncode == 0
    launches.judge(30, "two launches, one directory", reference)
