"""Command lines written for torchrun mean the same to ``unisono run``, or are answered by name."""

import importlib.util
import re
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from unisono.cli.main import unisono
from unisono.cli.options import torchrun
from unisono.cli.run import run
from unisono.errors import ConfigError

DOCS = Path(__file__).parents[3] / "docs" / "launching.md"


def torchruns_options() -> list[str]:
    """Return the long options in torchrun's own parser, dashed, each once; its module is read, not imported."""
    torch = Path(importlib.util.find_spec("torch").submodule_search_locations[0])
    text = (torch / "distributed" / "run.py").read_text().partition("def get_args_parser")[2]
    found = re.findall(r'add_argument\((?:\s*"-\w",)?\s*"(--[\w-]+)"', text)
    assert len(found) > 25
    return found


def meant(*arguments, env=None, monkeypatch=None):
    """Return what a command line means, without starting it."""
    got = {}

    def understand(words, workers, hosts, *, is_module):
        got["meant"] = torchrun.understand(words, workers, hosts, is_module=is_module)
        raise ConfigError("not started")

    monkeypatch.setattr("unisono.cli.run.understand", understand)
    done = CliRunner().invoke(unisono, ["run", *arguments, __file__], env=env or {})
    assert "not started" in done.output, done.output
    return got["meant"]


def test_every_option_of_torchrun_is_known():
    """In both spellings: with its meaning, without effect, or refused by name; and the documentation's table has it."""
    known = {flag for parameter in run.params for flag in parameter.opts}
    page = DOCS.read_text()
    for flag in torchruns_options():
        assert flag in known
        assert f"`{flag}`" in page
    assert {"-m", "-r", "-t", "--module"} <= known
    assert all(f"`{flag}`" in page for flag in (*torchrun.REFUSED, *torchrun.WITHOUT_EFFECT))


def test_the_help_does_not_list_them():
    """One line names them; our own options are the ones to read."""
    text = CliRunner().invoke(unisono, ["run", "--help"]).output
    assert "torchrun's options are understood" in " ".join(text.split())
    assert not any(f"  {flag} " in text for flag in ("--nproc-per-node", "--rdzv-backend", "--role", "--numa-binding"))


@pytest.mark.parametrize(
    ("arguments", "env", "workers"),
    [
        (["--nproc_per_node", "3"], {}, "3"),
        (["--nproc-per-node=auto"], {}, "auto"),
        (["--nproc_per_node", "cpu"], {}, "6"),
        (["--nproc_per_node", "gpu"], {}, "4"),
        ([], {"PET_NPROC_PER_NODE": "5"}, "5"),
        (["-n", "2"], {"PET_NPROC_PER_NODE": "5"}, "2"),
    ],
)
def test_number_of_processes(monkeypatch, arguments, env, workers):
    """All words of torchrun; of its variable and what is typed, what is typed."""
    monkeypatch.setattr("unisono.system.machine.count_gpus", lambda environ: 4)
    monkeypatch.setattr("unisono.system.machine.usable_cores", lambda: 6)
    assert meant(*arguments, env=env, monkeypatch=monkeypatch).workers == workers


def test_several_hosts(monkeypatch):
    """The meeting in torchrun's words, or in its variables."""
    words = "--nnodes=1:4 --rdzv_endpoint=node1:29400 --rdzv_id 8 --rdzv_backend c10d --rdzv_conf join_timeout=90"
    nodes = asdict(meant(*words.split(), monkeypatch=monkeypatch).nodes)
    told = {"nnodes": "1:4", "rdzv_endpoint": "node1:29400", "rdzv_id": "8", "rdzv_timeout": 90.0}
    assert told.items() <= nodes.items()
    variables = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "node1", "PET_MASTER_PORT": "99"}
    nodes = asdict(meant(env=variables, monkeypatch=monkeypatch).nodes)
    assert {"nnodes": "2", "node_rank": 1, "master_addr": "node1", "master_port": 99}.items() <= nodes.items()
    assert meant("--rdzv_endpoint=localhost:29400", monkeypatch=monkeypatch).nodes.nnodes == "1"
    assert meant("--rdzv_endpoint=node1:29400", monkeypatch=monkeypatch).nodes.nnodes is None  # refused later


def test_more_meanings(monkeypatch):
    """Time to end, a job's name, and what is so already."""
    got = meant("--shutdown_timeout", "9", "--rdzv_id", "j", "--use_env", monkeypatch=monkeypatch).settings
    assert (got["grace_s"], got["stop_grace_s"], got["run_id"]) == (9, 9, "j")
    assert meant("--tee", "3", monkeypatch=monkeypatch).settings["streams"].file(0, 0, 1) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        *((flag, f"{flag} is torchrun's.*Hint: ") for flag in torchrun.REFUSED),
        ("--rdzv-backend etcd", "the hosts meet at one of them.*Hint: leave it out"),
        ("--rdzv-conf read_timeout=60", "no 'read_timeout'. Hint: leave it out"),
        ("--rdzv-conf timeout=x", "expected --rdzv-conf timeout=SECONDS, got 'timeout=x'"),
        ("--rdzv-conf timeout=9 --rdzv-timeout 9", "say the same"),
        ("--standalone --nnodes 2", "--standalone is for one host, got --nnodes 2"),
        ("--nproc-per-node xpu", "expected --nproc-per-node N, auto, cpu or gpu, got 'xpu'"),
        ("--nproc-per-node gpu", "no GPU is visible here.*Hint: --nproc-per-node auto"),
        ("--nproc-per-node 2 -n 2", "-n and --nproc-per-node say the same"),
        ("-r 3", "--redirects sends the output to files, but not where. Hint: --log-dir DIR"),
        ("-t 4", "expected --tee 0, 1 .stdout., 2 .stderr. or 3"),
        ("--local-ranks-filter a", "expected --local-ranks-filter with local ranks such as 0,1, got 'a'"),
        ("--no-python -m", "expected one of them, got both"),
        ("--no-python --backend shm", "backend shm is put into Python programs"),
    ],
)
def test_refused_by_name(monkeypatch, arguments, words):
    """Code 2, the word that was typed, and what to use; underscores too."""
    monkeypatch.setattr("unisono.system.machine.count_gpus", lambda environ: 0)
    first, *rest = arguments.split()
    takes_value = first in torchrun.REFUSED and first != "--virtual-local-rank"
    target = sys.executable if first == "--no-python" else __file__
    for flag in (first, first[:2] + first[2:].replace("-", "_")):
        done = CliRunner().invoke(unisono, ["run", flag, *(["x"] if takes_value else rest), "--", target])
        assert done.exit_code == 2, done.output
        assert re.search(words, " ".join(done.output.split())), done.output


def test_a_missing_program_is_refused():
    """Before anything starts, with the remedy."""
    done = CliRunner().invoke(unisono, ["run", "--no-python", "no-such-program-here"])
    assert done.exit_code == 2
    assert "expected a program after --no-python" in done.output and "chmod +x" in done.output


def test_underscores_work_for_every_verb():
    """``--batch_size`` is ``--batch-size``; a mistyped one still is a mistake."""
    for flag, code in (("--batch_size", 0), ("--batch_sise", 2)):
        done = CliRunner().invoke(unisono, ["train", flag, "8", "--help"])
        assert done.exit_code == code
