"""Submitting to Slurm and following a job, with tools that answer as Slurm does; a real one is in tests/cluster."""

import pytest

from unisono.errors import LaunchError
from unisono.launchers.engines.following import PATIENCE
from unisono.launchers.engines.slurm_client import follow, submit


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Make programs of this name that are found first."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    def make(name, body):
        file = tmp_path / name
        file.write_text(f"#!/bin/bash\n{body}\n")
        file.chmod(0o755)

    return make


def answers(tmp_path, *texts):
    """Return a scontrol that gives these answers one after the other, the last one for ever."""
    for number, text in enumerate(texts):
        (tmp_path / f"answer-{number}").write_text(text + "\n")
    return (
        f"cd {tmp_path}; n=$(cat count 2>/dev/null || echo 0); echo $((n + 1)) > count\n"
        f"[ $n -lt {len(texts)} ] || n={len(texts) - 1}\n"
        "if grep -q ^error answer-$n; then cat answer-$n >&2; exit 1; fi; cat answer-$n"
    )


def watch(job_id="5"):
    told, written = [], []
    code = follow(job_id, tell=told.append, write=written.append, interval_s=0.01)
    return code, told, b"".join(written)


def test_a_job_is_submitted(tools, tmp_path):
    """The script goes to sbatch's standard input, and the number comes back."""
    tools("sbatch", f'cat > {tmp_path}/sent; echo "$*" > {tmp_path}/words; echo "12;east"')
    assert submit("#!/bin/bash\n") == "12"
    assert (tmp_path / "sent").read_text() == "#!/bin/bash\n"
    assert (tmp_path / "words").read_text() == "--parsable\n"


def test_a_refused_job_says_why(tools):
    """Slurm's own reason is in the error."""
    tools("sbatch", 'echo "sbatch: error: invalid partition specified: gpu" >&2; exit 1')
    with pytest.raises(LaunchError, match="invalid partition specified: gpu"):
        submit("")


def test_no_slurm_here(monkeypatch, tmp_path):
    """Said with the remedy, before anything is sent."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match=r"sbatch on PATH, got none. Hint: .*--dry-run"):
        submit("")
    with pytest.raises(LaunchError, match="scontrol on PATH, got none"):
        watch()


def test_a_requeued_job_is_followed_to_its_end(tools, tmp_path):
    """Each change of state once, the output whole, through a requeue; the code is the last life's."""
    log = tmp_path / "log"
    log.write_text("step 1\nstep 2\n")
    lines = [
        "JobId=5 JobState=PENDING Reason=Priority ExitCode=0:0 StdOut=/never/made",
        f"JobId=5 JobState=RUNNING NodeList=n1 ExitCode=0:0 StdOut={log}",
        f"JobId=5 JobState=RUNNING NodeList=n1 ExitCode=0:0 StdOut={log}",
        f"JobId=5 JobState=PENDING Reason=BeginTime Restarts=1 ExitCode=0:0 StdOut={log}",
        f"JobId=5 JobState=RUNNING NodeList=n2 Restarts=1 ExitCode=0:0 StdOut={log}",
        f"JobId=5 JobState=FAILED NodeList=n2 Restarts=1 ExitCode=3:0 StdOut={log}",
    ]
    tools("scontrol", answers(tmp_path, *lines))
    code, told, written = watch()
    assert code == 3
    assert told == [
        "job 5: pending (Priority)",
        "job 5: running on n1",
        "job 5: pending (BeginTime), requeued 1 time",
        "job 5: running on n2, requeued 1 time",
        "job 5: failed, exit code 3, requeued 1 time",
    ]
    assert written == b"step 1\nstep 2\n"


def test_the_worst_task_of_an_array_counts_also_when_slurm_has_forgotten_it(tools, tmp_path):
    """Slurm forgets ended tasks after a while."""
    tools(
        "scontrol",
        answers(
            tmp_path,
            "JobId=6 ArrayJobId=5 ArrayTaskId=0 JobState=FAILED ExitCode=7:0\n"
            "JobId=5 ArrayJobId=5 ArrayTaskId=1 JobState=RUNNING NodeList=n1 ExitCode=0:0",
            "JobId=5 ArrayJobId=5 ArrayTaskId=1 JobState=COMPLETED ExitCode=0:0",
        ),
    )
    assert watch()[0] == 7


def test_a_controller_that_is_away_for_a_moment(tools, tmp_path):
    """It is asked again; a job that it does not know is not."""
    gone = "error: Unable to contact slurm controller"
    tools("scontrol", answers(tmp_path, gone, gone, "JobId=5 JobState=COMPLETED ExitCode=0:0"))
    assert watch()[0] == 0
    (tmp_path / "count").unlink()
    tools("scontrol", answers(tmp_path, gone))
    with pytest.raises(LaunchError, match="Unable to contact slurm controller"):
        watch()
    assert int((tmp_path / "count").read_text()) == PATIENCE
    (tmp_path / "count").unlink()
    tools("scontrol", answers(tmp_path, "error: Invalid job id specified"))
    with pytest.raises(LaunchError, match=r"Invalid job id.*sacct -j 5"):
        watch()
    assert (tmp_path / "count").read_text() == "1\n"
