"""``unisono launch``: what would be sent, and what is said where the engine is missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from unisono.cli.launch import ENGINES
from unisono.cli.main import unisono

NEEDED = {"slurm": [], "mpi": ["-n", "2"], "ray": ["-n", "2"], "kubernetes": ["--image", "registry.example/it:1"]}

TO_END = "kubectl -n team delete job.batch/train service/train secret/train networkpolicy.networking.k8s.io/train"


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    return "train.py"


def invoke(*arguments):
    return CliRunner().invoke(unisono, ["launch", *arguments])


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_explains_itself(engine):
    """Usage, a dry run, and what the exit codes mean; nothing heavy is loaded for it."""
    result = invoke(engine, "--help")
    assert result.exit_code == 0
    assert "--dry-run" in result.output
    assert "Exit code: 0" in result.output
    assert engine in invoke("--help").output
    code = (
        f"import sys, unisono.cli.launch.{engine}; sys.exit(any(m in sys.modules for m in ('torch', 'ray', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_engine_is_wrong_usage():
    """Code 2."""
    result = invoke("slum", "train.py")
    assert result.exit_code == 2
    assert "No such engine 'slum'. Hint: did you mean 'slurm'?" in result.output
    assert "Engines: slurm, mpi, ray, kubernetes." in invoke("zzz", "train.py").output


@pytest.mark.parametrize(
    ("engine", "shown"),
    [
        ("slurm", ["#SBATCH --ntasks-per-node=1", f"{sys.executable} -P -m unisono join train.py --lr '0.1 0.2'"]),
        (
            "mpi",
            ["mpirun -n 2 -x UNISONO_SECRET --oversubscribe", "-m unisono join --threads 1 train.py --lr '0.1 0.2'"],
        ),
        ("ray", ["placement group: 2 x {CPU: 1}, PACK", "each rank: script train.py --lr 0.1 0.2"]),
        ("kubernetes", ['"kind": "Job"', '"torch.distributed.run"', '"0.1 0.2"']),
    ],
)
def test_a_dry_run_shows_what_would_be_sent(engine, shown, script, monkeypatch):
    """Without the engine, and nothing is left behind."""
    monkeypatch.setenv("PATH", "")
    result = invoke(engine, "--dry-run", *NEEDED[engine], script, "--lr", "0.1 0.2")
    assert result.exit_code == 0, result.output
    for text in shown:
        assert text in result.output
    assert os.listdir() == ["train.py"]  # noqa: PTH208 - names are all that matters


@pytest.mark.parametrize(
    ("engine", "missing"), [("slurm", "sbatch"), ("mpi", "mpirun"), ("kubernetes", "kubectl"), ("ray", "ray")]
)
def test_a_missing_engine_is_named_with_the_remedy(engine, missing, script, monkeypatch):
    """Code 1, one message, no traceback."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "ray", None)
    result = invoke(engine, *NEEDED[engine], script)
    assert result.exit_code == 1
    assert result.output.startswith(f"unisono launch {engine}: expected ")
    assert missing in result.output
    assert "Hint: " in result.output


@pytest.mark.parametrize("engine", ["slurm", "mpi", "ray"])
def test_a_missing_script_is_found_before_anything_is_sent(engine, tmp_path, monkeypatch):
    """Code 2. Kubernetes' scripts lie in the image."""
    monkeypatch.chdir(tmp_path)
    result = invoke(engine, "--dry-run", *NEEDED[engine], "no.py")
    assert result.exit_code == 2
    assert "expected a Python file at 'no.py'" in result.output


def test_settings_of_slurm(script):
    """Options become directives, named ones and any other; a setting without a value is refused."""
    given = [
        "--nodes",
        "2",
        "-n",
        "3",
        "--time",
        "60",
        "--option",
        "constraint=h100|a100",
        "--array",
        "0-1",
        "--env",
        "A=1",
    ]
    result = invoke("slurm", "--dry-run", *given, script, "{task}")
    for line in ("--nodes=2", "--ntasks-per-node=3", "--time=60", "--constraint=h100|a100", "--array=0-1"):
        assert f"#SBATCH {line}\n" in result.output
    assert "export A=1\n" in result.output
    assert invoke("slurm", "--dry-run", "--option", "constraint", script).exit_code == 2
    assert invoke("slurm", "--dry-run", "--nodes", "0", script).exit_code == 2


def test_slurm_is_given_the_script_and_followed(script, tmp_path, monkeypatch):
    """Submit, news on the error output, the job's output on the standard output, its code at the end."""
    log = tmp_path / "log"
    log.write_text("0: fingerprint abc\n")
    for name, body in (
        ("sbatch", f"cat > {tmp_path}/sent; echo 5"),
        ("scontrol", f"echo JobId=5 JobState=FAILED NodeList=n1 ExitCode=4:0 StdOut={log}"),
    ):
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    command = [sys.executable, "-m", "unisono", "launch", "slurm"]
    env = {**os.environ, "PATH": f"{tmp_path}:/bin:/usr/bin"}
    done = subprocess.run([*command, script], capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stdout) == (4, "0: fingerprint abc\n")
    assert done.stderr == "unisono: job 5: failed, exit code 4\n"
    assert "srun --ntasks=1" in (tmp_path / "sent").read_text()
    assert (tmp_path / "logs").is_dir()
    detached = subprocess.run([*command, "--detach", script], capture_output=True, text=True, env=env, check=False)
    assert (detached.returncode, detached.stdout, detached.stderr) == (0, "5\n", "")


def test_kubectl_is_given_the_manifests_and_the_job_is_followed(script, tmp_path):
    """News on the error output, the pods' on the standard output, their code; how to end it, also when not followed."""
    state = {"terminated": {"exitCode": 4, "reason": "Error", "finishedAt": "2026-11-21T10:00:09Z"}}
    made = {"name": "train", "creationTimestamp": "2026-11-21T10:00:00Z"}
    why = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
    ended = [{"name": "node", "state": state}]
    items = [
        {"kind": "Job", "metadata": made, "status": {"conditions": [why]}},
        {"kind": "Pod", "metadata": {**made, "name": "p0"}, "status": {"phase": "Failed", "containerStatuses": ended}},
    ]
    (tmp_path / "state").write_text(json.dumps({"items": items}))
    (tmp_path / "kubectl").write_text(
        f"""#!/bin/bash
        case "$*" in
        "create -f -") cat > {tmp_path}/sent; echo "job.batch/train created" ;;
        "-n team get "*) cat {tmp_path}/state ;;
        "-n team logs "*) echo "2026-11-21T10:00:01Z fingerprint abc" ;;
        *) echo "$*" >&2; exit 1 ;;
        esac
        """
    )
    (tmp_path / "kubectl").chmod(0o755)
    command = [sys.executable, "-m", "unisono", "launch", "kubernetes", *NEEDED["kubernetes"], "--namespace", "team"]
    env = {**os.environ, "PATH": f"{tmp_path}:/bin:/usr/bin"}
    done = subprocess.run([*command, script], capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stdout) == (4, "fingerprint abc\n")
    assert done.stderr.splitlines() == [
        "job.batch/train created",
        "unisono: pod p0: failed, exit code 4",
        "unisono: job train: failed (BackoffLimitExceeded), exit code 4",
        f"unisono: its objects and logs stay in the cluster. To remove them: {TO_END}",
    ]
    assert '"kind": "Job"' in (tmp_path / "sent").read_text()
    detached = subprocess.run([*command, "--detach", script], capture_output=True, text=True, env=env, check=False)
    assert (detached.returncode, detached.stdout) == (0, "job.batch/train created\n")
    assert detached.stderr == f"unisono: to end it: {TO_END}\n"


def test_kubectl_refuses(script, tmp_path, monkeypatch):
    """Code 1, with its reason."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/bash\ncat > /dev/null; echo 'jobs.batch \"train\" already exists' >&2; exit 1\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    refused = invoke("kubernetes", *NEEDED["kubernetes"], script)
    assert refused.exit_code == 1
    assert "already exists" in refused.output


def test_a_module_in_the_image():
    """-m is torchrun's; the module's name makes the job's."""
    result = invoke("kubernetes", "--dry-run", *NEEDED["kubernetes"], "-m", "our.train_it", "--lr", "1")
    assert result.exit_code == 0, result.output
    assert '"name": "our-train-it"' in result.output
    assert [line.strip() for line in result.output.partition('"args": [')[2].splitlines()[1:5]] == [
        '"-m",', '"our.train_it",', '"--lr",', '"1"',
    ]  # fmt: skip


def test_what_engines_share_is_said_in_the_same_words():
    """One option, one text, whichever engine."""
    helps = {engine: invoke(engine, "--help").output for engine in ENGINES}
    for option, engines in {"--env": 4, "--dry-run": 4, "--threads": 4, "--detach": 2, "--interval": 2, "--nodes": 2,
                            "--python": 2, "--name": 2, "-m, --module": 4}.items():  # fmt: skip
        assert len([text for text in helps.values() if f" {option}" in text]) == engines, option


@pytest.mark.parametrize(("engine", "option"), [("ray", "--workers"), ("mpi", "--workers"), ("kubernetes", "--image")])
def test_what_must_be_given_is_asked_for(engine, option):
    """Code 2 and the option's name, not a traceback."""
    result = invoke(engine, __file__)
    assert result.exit_code == 2
    assert "Missing option" in result.output
    assert option in result.output
