"""A Slurm job as text: the batch script that is sent, and what Slurm's answers mean (pure).

In: a `SlurmJob`. Out: the text for ``sbatch``, whose tasks are the ranks themselves (``srun ... unisono join``). Ranks
that were asked to stop leave a mark when all is saved; the batch script then puts its own job back into the queue, so
that it goes on where it stopped, whoever asked: the time limit, a job of higher priority, an operator. So does a job
that was pre-empted before it could stop.

Sources: https://slurm.schedmd.com/sbatch.html and scontrol.html there.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unisono.errors import ConfigError
from unisono.launchers.engines.job import NodesJob
from unisono.options.fields import option
from unisono.options.quantities import RESTARTS, WARNING
from unisono.store.secret import FILE_VARIABLE

TASK_FIELD = "{task}"
"""What stands for the index of an array's task in the script's arguments."""
MARK_VARIABLE = "UNISONO_STOPPED"
"""Names the file that a stopped and saved run leaves for who has started it."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_VALUE = re.compile(r"[\w.:@%+,=/\[\]*()|&!-]+")
# Those whose slips would be found only when the job is sent, if at all: a wrong array is one task.
_FORMS = {
    "time": (
        re.compile(r"\d+(:\d\d?){0,2}|\d+-\d\d?(:\d\d?){0,2}|UNLIMITED|INFINITE", re.IGNORECASE),
        "minutes (90), hours:minutes:seconds (12:00:00) or days-hours:minutes:seconds (1-00:00:00)",
    ),
    "mem": (re.compile(r"\d+[KMGT]?", re.IGNORECASE), "a size such as 64G; 0 for all of the machine"),
    "array": (
        re.compile(r"\d+(-\d+(:[1-9]\d*)?)?(,\d+(-\d+(:[1-9]\d*)?)?)*(%[1-9]\d*)?"),
        "indices such as 0-3, 0-15:4 or 1,3,7, perhaps with %2 for two at a time",
    ),
}
_ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"}
    | {"OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"}
)
_TIMED_OUT = 124


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmJob(NodesJob):
    """One batch job, or an array of them; the fields that users set say what they are."""

    #: What each rank runs, as words; ``{task}`` in a word becomes the index of the array's task.
    command: tuple[str, ...]
    chdir: str  #: Working directory of all ranks, absolute.
    time: str | None = option(
        None, "Time limit, such as 1-00:00:00; the run saves before it and goes on.", word="LIMIT"
    )
    partition: str | None = option(None, "Slurm's partition.")
    account: str | None = option(None, "Slurm's account.")
    qos: str | None = option(None, "Slurm's quality of service.")
    mem: str | None = option(None, "Memory on each machine, such as 64G.", word="SIZE")
    options: Mapping[str, str] = option(
        text="Any other option of sbatch (constraint=h100); may be given several times.", make=dict, key="option",
        word="NAME=VALUE",
    )  # fmt: skip
    array: str | None = option(None, "A job array, such as 0-3%2; {task} in ARGS becomes the index.", word="INDICES")
    setup: tuple[str, ...] = option(
        (), "Line of shell before the ranks start (module load ...).", word="LINE", repeats=True
    )
    name: str = option(text="Name of the job.", usual="the script's")
    #: Absolute, on a file system that all nodes share.
    logs: str = option(text="Where output goes; shared.", usual="logs", word="DIR", is_path=True)
    warn_s: int = option(
        60, "Seconds before the time limit at which the run stops and saves.", of=WARNING, key="warn", word="S"
    )
    max_requeues: int = option(100, "So often a stopped and saved job goes back into the queue; 0: never.", of=RESTARTS)

    def __post_init__(self) -> None:
        NodesJob.__post_init__(self)
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"expected a job name of letters, digits, '.', '_' and '-', got {self.name!r}.")
        _check_values({**self.directives, **({} if self.array is None else {"array": self.array})})
        _check_values({"logs": self.logs, "chdir": self.chdir})
        if self.array is None and any(TASK_FIELD in word for word in self.command):
            raise ConfigError(f"expected --array with {TASK_FIELD} in the arguments, got none. Hint: --array 0-3.")

    @property
    def directives(self) -> dict[str, str]:
        """The options of ``sbatch`` that users name."""
        named = {name: getattr(self, name) for name in ("time", "partition", "account", "qos", "mem")}
        return {**{name: value for name, value in named.items() if value is not None}, **self.options}

    @property
    def log(self) -> str:
        """The output file, in Slurm's notation."""
        return f"{self.logs}/{self.name}-{'%j' if self.array is None else '%A_%a'}.log"


def _check_values(options: Mapping[str, str]) -> None:
    for name, value in options.items():
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            raise ConfigError(f"expected --option NAME=VALUE with the name of one of sbatch's options, got {name!r}.")
        form, words = _FORMS.get(name, (_VALUE, "characters that sbatch takes as they are"))
        if not form.fullmatch(value):
            hint = " Hint: no spaces, quotes or line breaks." if form is _VALUE else ""
            raise ConfigError(f"expected the value of --{name} as {words}, got {value!r}.{hint}")


def render(job: SlurmJob) -> str:
    """Return the batch script."""
    workers = job.nodes * job.workers_per_node
    own = {
        "job-name": job.name,
        "nodes": job.nodes,
        "ntasks-per-node": job.workers_per_node,
        "cpus-per-task": job.threads,
        **({"gpus-per-node": job.gpus_per_node} if job.gpus_per_node else {}),
        **({"array": job.array} if job.array is not None else {}),
        "chdir": job.chdir,
        "output": job.log,
        "open-mode": "append",  # a requeued job writes to the same file
        "signal": f"USR1@{job.warn_s}",
    }
    directives = {**own, **job.directives}
    lines = ["#!/bin/bash", *(f"#SBATCH --{name}={value}" for name, value in directives.items())]
    lines += ["#SBATCH --requeue" if job.max_requeues else "#SBATCH --no-requeue", ""]
    # The last task of an array has the number of the whole array: by that alone, all would be requeued.
    own_id = "$SLURM_JOB_ID" if job.array is None else "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
    lines += [f"job={own_id}", f'export {MARK_VARIABLE}={shlex.quote(job.logs)}/"stopped-$job"']
    lines += [f'rm -f -- "${MARK_VARIABLE}"', f"export OMP_NUM_THREADS={job.threads}"]
    # Made where the job runs: neither Slurm's records nor any command line ever hold it.
    lines += [f'export {FILE_VARIABLE}={shlex.quote(job.logs)}/"secret-$job"', f'rm -f -- "${FILE_VARIABLE}"']
    lines += [f'(umask 077; set -C; head -c 24 /dev/urandom | base64 > "${FILE_VARIABLE}")']
    lines += [f"""trap 'rm -f -- "${FILE_VARIABLE}"' EXIT"""]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in job.env.items()]
    lines += [*job.setup, ""]
    # srun takes --cpus-per-task from sbatch no more since 22.05.
    step = f"srun --ntasks={workers} --ntasks-per-node={job.workers_per_node} --cpus-per-task={job.threads}"
    lines += [f"{step} --kill-on-bad-exit=1 --label \\", f"    {' '.join(map(_quoted, job.command))}", "code=$?"]
    return "\n".join(lines) + "\n" + _ending(job)


def _quoted(word: str) -> str:
    return '"$SLURM_ARRAY_TASK_ID"'.join(
        shlex.quote(part) if part or TASK_FIELD not in word else "" for part in word.split(TASK_FIELD)
    )


def _ending(job: SlurmJob) -> str:
    return f"""\
told=$(scontrol -o show job "$job" 2>/dev/null)
if [ -e "${MARK_VARIABLE}" ]; then
    why="stopped and saved"
elif [ $code -ne 0 ] && [[ $told =~ PreemptTime=[0-9] ]]; then
    why="pre-empted"
else
    exit $code
fi
rm -f -- "${MARK_VARIABLE}"
if [ "${{SLURM_RESTART_COUNT:-0}}" -ge {job.max_requeues} ]; then
    echo "unisono: $why; requeued {job.max_requeues} times already. Submit it again to go on." >&2
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


@dataclass(frozen=True, slots=True)
class TaskState:
    """What ``scontrol show job`` says of a job, or of one task of an array."""

    job_id: str  #: ``12``, ``12_3``, or ``12_[4-7]`` for tasks that wait together.
    state: str  #: Slurm's word, such as ``PENDING``.
    reason: str  #: Why it waits, or empty.
    nodes: str  #: Slurm's node list, or empty.
    restarts: int  #: How often it has been requeued.
    code: int  #: Exit code of the batch script.
    signum: int  #: Signal that ended it, or 0.
    log: str  #: Output file, or empty while unknown.

    @property
    def has_ended(self) -> bool:
        """Whether the job will not run any more."""
        return self.state in _ENDED

    @property
    def exit_code(self) -> int:
        """0 where all went well; 124 for the time limit, 128 + n for signal n, else the batch script's code, or 1."""
        if self.state == "COMPLETED":
            return 0
        if self.state == "TIMEOUT":
            return _TIMED_OUT
        return self.code or (128 + self.signum if self.signum else 1)


def parse_states(text: str) -> list[TaskState]:
    """Return what ``scontrol -o show job`` says, one entry a line."""
    found = []
    for line in filter(str.strip, text.splitlines()):
        # Values may hold spaces (a comment, a path); names are single words that begin with a capital.
        fields = dict(re.findall(r"(\w[\w:/]*)=(.*?)(?=\s+[A-Z][\w:/]*=|\s*$)", line))
        if not {"JobId", "JobState"} <= fields.keys():
            raise ConfigError(f"expected JobId= and JobState= from scontrol, got {line[:200]!r}.")
        job_id = fields["JobId"]
        if "ArrayJobId" in fields and "ArrayTaskId" in fields:
            tasks = fields["ArrayTaskId"]
            job_id = f"{fields['ArrayJobId']}_{tasks if tasks.isdecimal() else f'[{tasks}]'}"
        code, _, signum = fields.get("ExitCode", "0:0").partition(":")
        found.append(
            TaskState(
                job_id=job_id,
                state=fields["JobState"],
                reason=_known(fields.get("Reason", "")),
                nodes=_known(fields.get("NodeList", "")),
                restarts=int(fields.get("Restarts", 0)),
                code=int(code),
                signum=int(signum or 0),
                log=_known(fields.get("StdOut", "")),
            )
        )
    return found


def parse_job_id(text: str) -> str:
    """Return the number that ``sbatch --parsable`` has printed: ``12``, or ``12;cluster``."""
    last = text.strip().splitlines()[-1:] or [""]
    match = re.fullmatch(r"(\d+)(;.*)?", last[0])
    if not match:
        raise ConfigError(f"expected a job's number from sbatch --parsable, got {text.strip()!r}.")
    return match.group(1)


def news(before: Mapping[str, TaskState], now: Sequence[TaskState]) -> list[str]:
    """Return one line for each job that is not as it was."""
    lines = []
    for task in now:
        old = before.get(task.job_id)
        if old is not None and (old.state, old.restarts, old.nodes) == (task.state, task.restarts, task.nodes):
            continue
        detail = f" on {task.nodes}" if task.nodes else f" ({task.reason})" if task.reason else ""
        if task.has_ended:
            detail = f", exit code {task.exit_code}"
        times = f", requeued {task.restarts} time{'s' if task.restarts > 1 else ''}" if task.restarts else ""
        lines.append(f"job {task.job_id}: {task.state.lower()}{detail}{times}")
    return lines


def _known(value: str) -> str:
    return "" if value in ("None", "(null)", "N/A") else value
