"""The batch script for Slurm, and what Slurm's answers mean."""

import subprocess
from dataclasses import replace

import pytest

from unisono.errors import ConfigError
from unisono.launchers.engines.slurm import SlurmJob, news, parse_job_id, parse_states, render

JOB = SlurmJob(command=("/env/bin/python", "-P", "train.py"), name="digits", logs="/shared/logs", chdir="/shared/work")

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=3
#SBATCH --gpus-per-node=4
#SBATCH --chdir=/shared/work
#SBATCH --output=/shared/logs/digits-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=USR1@120
#SBATCH --time=1-00:00:00
#SBATCH --partition=gpu
#SBATCH --requeue

job=$SLURM_JOB_ID
export UNISONO_STOPPED=/shared/logs/"stopped-$job"
rm -f -- "$UNISONO_STOPPED"
export OMP_NUM_THREADS=3
export UNISONO_SECRET_FILE=/shared/logs/"secret-$job"
rm -f -- "$UNISONO_SECRET_FILE"
(umask 077; set -C; head -c 24 /dev/urandom | base64 > "$UNISONO_SECRET_FILE")
trap 'rm -f -- "$UNISONO_SECRET_FILE"' EXIT
export NCCL_DEBUG='WARN; echo no'
module load cuda

srun --ntasks=8 --ntasks-per-node=4 --cpus-per-task=3 --kill-on-bad-exit=1 --label \\
    /env/bin/python -P train.py --name 'two words' '$HOME'
code=$?
told=$(scontrol -o show job "$job" 2>/dev/null)
if [ -e "$UNISONO_STOPPED" ]; then
    why="stopped and saved"
elif [ $code -ne 0 ] && [[ $told =~ PreemptTime=[0-9] ]]; then
    why="pre-empted"
else
    exit $code
fi
rm -f -- "$UNISONO_STOPPED"
if [ "${SLURM_RESTART_COUNT:-0}" -ge 7 ]; then
    echo "unisono: $why; requeued 7 times already. Submit it again to go on." >&2
elif ! command -v scontrol >/dev/null; then
    echo "unisono: $why; expected scontrol on $HOSTNAME to requeue job $job, got none. \
Hint: submit it again to go on, or let the setup lines find scontrol." >&2
elif [[ $told == *JobState=CANCELLED* ]]; then
    echo "unisono: $why; the job was cancelled." >&2
else
    echo "unisono: $why; job $job goes back into the queue." >&2
    scontrol requeue "$job"
fi
exit 75
"""


def test_the_whole_script():
    """To the letter: resources, the warning before the end, quoting, the ranks, and the way back into the queue."""
    job = replace(
        JOB,
        command=(*JOB.command, "--name", "two words", "$HOME"),
        nodes=2,
        workers_per_node=4,
        threads=3,
        gpus_per_node=4,
        options={"time": "1-00:00:00", "partition": "gpu"},
        env={"NCCL_DEBUG": "WARN; echo no"},
        setup=("module load cuda",),
        warn_s=120,
        max_requeues=7,
    )
    assert render(job) == SCRIPT


def test_without_requeues():
    """Slurm is told not to start the job again either."""
    text = render(replace(JOB, max_requeues=0))
    assert "#SBATCH --no-requeue\n" in text
    assert "--requeue\n" not in text.replace("--no-requeue", "")
    assert "--gpus" not in text


def test_an_array():
    """Each task has its output and its own name for requeueing; {task} becomes its index, also inside a word."""
    text = render(replace(JOB, command=("python", "a b.py", "--seed={task}", "{task}", "x{task}y z"), array="0-3%2"))
    assert "#SBATCH --array=0-3%2\n" in text
    assert "--output=/shared/logs/digits-%A_%a.log\n" in text
    assert "job=${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}\n" in text
    line = next(line for line in text.splitlines() if "a b.py" in line)
    told = subprocess.run(
        ["bash", "-c", f"SLURM_ARRAY_TASK_ID=7; printf '%s|' {line.strip()}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told == "python|a b.py|--seed=7|7|x7y z|"


def play(
    tmp_path,
    *,
    code=0,
    stopped=False,
    said="JobState=RUNNING PreemptTime=None",
    restarts="",
    has_scontrol=True,
    **settings,
):
    """Run the batch script with a srun and a scontrol that write down how they were called."""
    tools = tmp_path / "tools"
    tools.mkdir()
    calls = tmp_path / "calls"
    mark = 'echo 9 > "$UNISONO_STOPPED"\n' if stopped else ""
    (tools / "srun").write_text(f'#!/bin/bash\necho "srun $*" >> {calls}\n{mark}exit {code}\n')
    if has_scontrol:
        (tools / "scontrol").write_text(f'#!/bin/bash\necho "scontrol $*" >> {calls}\necho JobId=5 {said}\n')
    (tools / "rm").symlink_to("/bin/rm")
    for tool in tools.iterdir():
        if not tool.is_symlink():
            tool.chmod(0o755)
    text = render(replace(JOB, logs=str(tmp_path), **settings))
    env = {"PATH": str(tools), "SLURM_JOB_ID": "5", "HOSTNAME": "node1", "SLURM_RESTART_COUNT": restarts}
    done = subprocess.run(["/bin/bash"], input=text, capture_output=True, text=True, env=env, check=False)
    return done, calls.read_text()


def test_a_job_that_has_stopped_and_saved_requeues_itself(tmp_path):
    """The mark decides; it is gone afterwards, and the code says that it is not done."""
    done, calls = play(tmp_path, stopped=True)
    assert done.returncode == 75
    assert "scontrol requeue 5" in calls
    assert not list(tmp_path.glob("stopped-*"))


@pytest.mark.parametrize(("code", "requeues"), [(143, True), (0, False)])
def test_a_job_that_was_preempted_before_it_could_stop_requeues_itself(tmp_path, code, requeues):
    """It died of Slurm's signal while it was starting, say; a job that was done nevertheless is done."""
    done, calls = play(tmp_path, code=code, said="JobState=RUNNING PreemptTime=2026-11-21T10:00:00")
    assert done.returncode == (75 if requeues else 0)
    assert ("scontrol requeue 5" in calls) is requeues


@pytest.mark.parametrize("code", [0, 1, 75, 137])
def test_a_job_that_has_ended_in_another_way_does_not(tmp_path, code):
    """Done or failed: srun's code is the job's, and a mark from an earlier life does not count."""
    (tmp_path / "stopped-5").write_text("old")
    done, calls = play(tmp_path, code=code)
    assert done.returncode == code
    assert "requeue" not in calls


@pytest.mark.parametrize(
    ("circumstances", "why"),
    [
        ({"said": "JobState=CANCELLED"}, "the job was cancelled"),
        ({"has_scontrol": False}, "expected scontrol on node1"),
        ({"restarts": "100"}, "requeued 100 times already"),
        ({"max_requeues": 0}, "requeued 0 times already"),
    ],
    ids=str,
)
def test_a_job_that_must_not_go_back_says_why(tmp_path, circumstances, why):
    """Cancelled, no scontrol on the node, requeued often enough: code 75 all the same, for it has saved."""
    done, calls = play(tmp_path, stopped=True, **circumstances)
    assert done.returncode == 75
    assert why in done.stderr
    assert "requeue" not in calls


@pytest.mark.parametrize(
    "settings",
    [
        {"nodes": 0},
        {"workers_per_node": 0},
        {"gpus_per_node": 1, "workers_per_node": 2},
        {"name": "a b"},
        {"name": "-x"},
        {"array": "0-3\n#SBATCH --uid=root"},
        {"options": {"comment": "two words"}},
        {"options": {"a b": "c"}},
        {"logs": "/a b"},
        {"env": {"A B": ""}},
        {"command": ("python", "{task}")},
    ],
    ids=str,
)
def test_what_cannot_be_sent_is_refused(settings):
    """Nothing that sbatch would read in another way than it was meant."""
    with pytest.raises(ConfigError, match="expected"):
        replace(JOB, **settings)


RUNNING = (
    "JobId=12 JobName=digits UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901759 Nice=0 Account=(null) "
    "QOS=(null) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0 "
    "RunTime=00:00:01 Partition=main AllocNode:Sid=here:77 ReqNodeList=(null) ExcNodeList=(null) NodeList=node[1-2] "
    "BatchHost=node1 NumNodes=1 NumCPUs=3 NumTasks=3 TRES=cpu=3,node=1 Socks/Node=* Command=/a dir/x.sh WorkDir=/work "
    "StdErr=/logs/digits-12.log StdIn=/dev/null StdOut=/logs/digits-12.log Power="
)


def test_a_running_job():
    """State, nodes, restarts and output are found among the rest."""
    (task,) = parse_states(RUNNING + "\n")
    assert (task.job_id, task.state, task.nodes, task.restarts, task.log) == (
        "12", "RUNNING", "node[1-2]", 2, "/logs/digits-12.log",
    )  # fmt: skip
    assert (task.reason, task.has_ended) == ("", False)


@pytest.mark.parametrize(
    ("state", "exit_code", "code"),
    [
        ("COMPLETED", "0:0", 0),
        ("FAILED", "3:0", 3),
        ("FAILED", "0:9", 137),
        ("CANCELLED", "0:15", 143),
        ("TIMEOUT", "0:15", 124),
        ("NODE_FAIL", "1:0", 1),
        ("PREEMPTED", "0:0", 1),
        ("OUT_OF_MEMORY", "0:125", 253),
    ],
)
def test_exit_codes(state, exit_code, code):
    """0 only where all went well; the time limit is 124."""
    (task,) = parse_states(f"JobId=1 JobState={state} ExitCode={exit_code}")
    assert task.has_ended
    assert task.exit_code == code


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("time", ["90", "90:30", "12:00:00", "1-0", "1-12:30", "1-00:00:00", "UNLIMITED"], ["soon", "1h", "1-", ""]),
        ("mem", ["0", "500", "64G", "64g"], ["64GB", "much", "1.5G", "-1"]),
        ("array", ["3", "0-3", "0-15:4", "1,3,7-9%2"], ["0..3", "a", "3-", "0-3%0", "0-3%"]),
    ],
)  # fmt: skip
def test_slips_that_slurm_would_find_late(name, right, wrong):
    """Found before anything is sent, --dry-run too, with the forms that there are."""
    for value in right:
        given = {"array": value} if name == "array" else {"options": {name: value}}
        assert f"#SBATCH --{name}={value}\n" in render(replace(JOB, **given))
    for value in wrong:
        given = {"array": value} if name == "array" else {"options": {name: value}}
        with pytest.raises(ConfigError, match=f"expected the value of --{name} as .* such as|--time as minutes"):
            replace(JOB, **given)


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED", "NEW"])
def test_states_that_are_not_the_end(state):
    """A requeued job is on its way back, whatever it is called meanwhile."""
    assert not parse_states(f"JobId=1 JobState={state}")[0].has_ended


def test_tasks_of_an_array():
    """Those that wait together are one entry."""
    text = (
        "JobId=12 ArrayJobId=12 ArrayTaskId=2-3%1 JobState=PENDING Reason=JobArrayTaskLimit ExitCode=0:0\n"
        "JobId=14 ArrayJobId=12 ArrayTaskId=1 JobState=FAILED Reason=NonZeroExitCode ExitCode=2:0\n"
    )
    assert [(task.job_id, task.exit_code) for task in parse_states(text)] == [("12_[2-3%1]", 1), ("12_1", 2)]


def test_what_is_no_answer_is_refused():
    """Neither a job's number nor its state is guessed."""
    assert (parse_job_id("12\n"), parse_job_id("12;east"), parse_job_id("a notice\n12\n")) == ("12", "12", "12")
    for text in ("", "Submitted batch job", "12 13"):
        with pytest.raises(ConfigError, match="job's number"):
            parse_job_id(text)
    with pytest.raises(ConfigError, match="JobState"):
        parse_states("slurm_load_jobs error")


def test_news():
    """One line for each change, none where nothing changed."""
    waiting = parse_states("JobId=1 JobState=PENDING Reason=Priority ExitCode=0:0")
    running = parse_states("JobId=1 JobState=RUNNING Reason=None NodeList=n1 Restarts=1 ExitCode=0:0")
    ended = parse_states("JobId=1 JobState=FAILED Reason=NonZeroExitCode NodeList=n1 Restarts=1 ExitCode=3:0")
    assert news({}, waiting) == ["job 1: pending (Priority)"]
    assert news({"1": waiting[0]}, running) == ["job 1: running on n1, requeued 1 time"]
    assert news({"1": running[0]}, running) == []
    assert news({"1": running[0]}, ended) == ["job 1: failed, exit code 3, requeued 1 time"]
