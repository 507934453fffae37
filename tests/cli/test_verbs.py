"""What holds for every verb: ``--json``, ``--quiet``, examples, short options, bad input, completion."""

import json
import shlex

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from ranks import once
from report.made_runs import make_run
from trained_runs import train
from unisono.cli.launch.options import program_arguments
from unisono.cli.main import unisono
from unisono.cli.output.examples import EXAMPLES
from unisono.errors import UnisonoError
from unisono.experiments import verify as experiment

NO_RESULT = {"run", "join", "completion"}
TORCHRUNS = {("run", "-r"), ("run", "-t")}  # as torchrun has them
SHORT = {
    "-n": "workers", "-o": "out", "-q": "quiet", "-r": "repeat", "-m": "module", "-s": "sizes", "-c": "collectives",
    "-h": "help",
}  # fmt: skip


def commands(command=unisono, path=()):
    """Yield name and command of every verb."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    for name in command.list_commands(click.Context(command)):
        yield from commands(command.get_command(click.Context(command), name), (*path, name))


VERBS = dict(commands())

# What is typed, with a run, a program and a picture in braces; in the order of the list of verbs.
TYPED = {
    "launch slurm": "--dry-run {script}", "launch mpi": "-n 2 --dry-run {script}",
    "launch ray": "-n 2 --dry-run {script}", "launch kubernetes": "--dry-run --image i {script}",
    "watch": "{run} {run}", "diff": "{run} {run}", "predict": "{run} {image}", "checkpoint list": "{run}",
    "checkpoint verify": "{run}", "checkpoint export": "{run} {out}/model.safetensors",
    "checkpoint prune": "{run} --dry-run", "bench collectives": "--explain ring", "doctor": "{script}",
    "report": "{run} -o {out}/page.html",
    "forecast": "--parameters 1e6 --sample-time 1ms --batch-size 64 -n 1,2",
}  # fmt: skip
# These start processes: what they do is tested with them, here only whether their answer is printed as it must be.
_FEW = "--limit 32 --epochs 1 --batch-size 16 --replicas 1"
SLOW = {
    "train": f"digits -n 1 {_FEW}", "verify": f"digits -n 1,1 {_FEW}", "replay": "{run} --step 2",
    "blame": "{run} --step 2 --show 0", "audit": "{run} --segments 1", "fork": "{run} --step 2 --out {out}/fork",
    "checkpoint rehearse": "{run} --step 8",
    "chaos": "digits -n 1 --kills 1 --fault kill-worker --limit 200 --epochs 2 --batch-size 16",
    "bench strategies": "digits -n 1 --strategies exact --limit 64 --epochs 1",
    "bench scaling": "digits -n 1 -r 1 --steps 4 --warmup 1 --out {out}/study",
    "bench links": "digits -n 1 --ways exact -r 1 --steps 4",
    "bench tune": "digits -r 1 --steps 4 --warmup 1 --loaders 0",
}  # fmt: skip
ELSEWHERE = {"scale", "certify"}
"""One speaks to a run that is at work, one takes a minute: tests/cli/test_scale.py, tests/cli/test_certify.py."""


@once
def made(folder):
    """Train ten steps of the digits by a single worker, and write a script and a picture."""
    import numpy as np
    from PIL import Image

    train("digits", folder, model="cnn", limit=80, checkpoint_every=2)
    (folder / "train.py").write_text("print('nothing')\n")
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(folder / "image.png")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made(tmp_path_factory.mktemp("verbs"))


def call(verb, typed, folder, out, *more):
    places = {"run": folder / "run", "script": folder / "train.py", "image": folder / "image.png", "out": out}
    arguments = [*verb.split(), *more, *shlex.split(typed.format(**places))]
    done = CliRunner().invoke(unisono, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def test_the_table_has_every_verb():
    """A verb that prints a result takes --json and -q, and stands in the table; the others take no --json."""
    with_json = {name for name, command in VERBS.items() if "--json" in flags(command)}
    assert with_json == VERBS.keys() - NO_RESULT == TYPED.keys() | SLOW.keys() | ELSEWHERE
    assert all({"-q", "--quiet"} <= flags(VERBS[name]) for name in with_json)


def flags(command):
    return {flag for item in command.params if isinstance(item, click.Option) for flag in item.opts}


def holds(verb, typed, folder, tmp_path):
    """Call a verb with --json and with -q, and compare what it prints with what it must."""
    (tmp_path / "json").mkdir()
    (tmp_path / "quiet").mkdir()
    done = call(verb, typed, folder, tmp_path / "json", "--json")
    assert done.exit_code == 0, done.output
    assert isinstance(json.loads(done.stdout), dict | list)  # one document, and nothing else
    assert done.stdout.endswith("\n")
    done = call(verb, typed, folder, tmp_path / "quiet", "-q")
    assert (done.exit_code, done.stderr) == (0, ""), done.output


@pytest.mark.parametrize("verb", TYPED)
def test_json_and_quiet(verb, folder, tmp_path, monkeypatch):
    """--json: one document on standard output; -q: nothing on the error output of what goes well."""
    monkeypatch.chdir(tmp_path)
    holds(verb, TYPED[verb], folder, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("verb", SLOW)
def test_json_and_quiet_of_what_starts_processes(verb, folder, tmp_path, monkeypatch):
    """The same."""
    monkeypatch.chdir(tmp_path)
    holds(verb, SLOW[verb], folder, tmp_path)


def test_quiet_hides_no_error(folder, tmp_path, monkeypatch):
    """What is wrong is said with -q too: a refusal, a difference, a step where runs part."""
    other = make_run(tmp_path / "other")
    done = call("diff", f"{{run}} {other}", folder, tmp_path, "-q")
    assert (done.exit_code, "DIFFERENT" in done.stdout) == (1, True)
    done = call("train", "digits --batch-size 5000 --limit 0", folder, tmp_path, "-q")
    assert (done.exit_code, "expected --limit" in done.stderr) == (2, True)

    def fails(*_, **__):
        raise UnisonoError("something went wrong")

    monkeypatch.setattr(experiment, "verify", fails)
    done = call("verify", "digits", folder, tmp_path, "-q")
    assert (done.exit_code, done.stderr) == (1, "unisono verify: something went wrong\n")


def test_json_of_a_job_is_refused_where_its_output_is_its_own(folder, tmp_path):
    """What the job prints would stand between: code 2, one line."""
    for engine in ("slurm", "mpi -n 2", "ray -n 2", "kubernetes --image i"):
        done = call(f"launch {engine}", "{script}", folder, tmp_path, "--json")
        assert (done.exit_code, done.stdout) == (2, ""), done.output
        assert "--json needs --dry-run" in done.stderr


def test_short_options_mean_the_same():
    """One letter, one word, in all verbs; torchrun's own letters are `run`'s alone."""
    found = {
        (name, short, next(flag for flag in item.opts if flag.startswith("--"))[2:])
        for name, command in VERBS.items()
        for item in command.params if isinstance(item, click.Option)
        for short in item.opts if len(short) == 2 and short != "-w" and (name, short) not in TORCHRUNS
    }  # fmt: skip
    assert {(short, long) for _, short, long in found if long != "workers-per-node"} <= set(SHORT.items())


@pytest.mark.parametrize("verb", VERBS.keys() - {"completion"})
def test_help_shows_examples_that_parse(verb, tmp_path, monkeypatch):
    """Each in a line of its own in 80 columns, and the command takes its words as they are."""
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "runs" / "digits")
    (run / "run.toml").write_text('recipe = "digits"\n')
    text = CliRunner().invoke(unisono, [*verb.split(), "--help"], terminal_width=80).output
    for line in EXAMPLES[verb]:
        assert f"\n    {line}\n" in text
        assert len(line) <= 76
        command = shlex.split(line.partition(" < ")[0])
        command = command[command.index("unisono") + 1 :]
        assert command[: len(verb.split())] == verb.split()
        with VERBS[verb].make_context(verb, command[len(verb.split()) :]) as context:
            assert context.params


def test_examples_are_of_verbs():
    """None is left over."""
    assert EXAMPLES.keys() == VERBS.keys() - {"completion"}
    assert program_arguments is not None


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_option_is_one_line_and_code_2(verb):
    """And it is quoted."""
    done = CliRunner().invoke(unisono, [*verb.split(), "--no-such-word"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "No such option '--no-such-word'" in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("Error:")]) == 1


READERS = ["watch", "diff", "replay", "blame", "audit", "predict", "report", "fork"]
READERS += [f"checkpoint {word}" for word in ("list", "verify", "rehearse", "export", "prune")]


@pytest.mark.parametrize("verb", READERS)
def test_no_run_is_one_line_and_code_2(verb, tmp_path):
    """A directory that is none, and one that is not there: named, with what is expected, and nothing is printed."""
    typed = {
        "diff": "{0} {0}",
        "predict": "{0} x.png",
        "fork": "{0} --step 1 --out {0}/x",
        "checkpoint export": "{0} m.pt",
    }
    for path in (tmp_path, tmp_path / "nowhere"):
        done = CliRunner().invoke(unisono, [*verb.split(), *typed.get(verb, "{0}").format(path).split()])
        assert (done.exit_code, done.stdout) == (2, ""), done.output
        assert done.stderr.count("\n") == 1, done.stderr
        assert str(path) in done.stderr


def test_the_shell_completes_paths_recipes_and_runs(tmp_path, monkeypatch):
    """Runs where a run is asked for, those below runs/ too; else what there is to go down into; recipes; files."""
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "digits")
    make_run(tmp_path / "mine")
    (tmp_path / "data").mkdir()

    def offered(*typed):
        found = ShellComplete(unisono, {}, "unisono", "_X").get_completions([*typed[:-1]], typed[-1])
        return [(item.type, item.value) for item in found]

    assert offered("watch", "") == [("plain", "mine"), ("plain", "runs/digits")]
    assert offered("watch", "mine", "runs/") == [("plain", "runs/digits")]
    assert offered("diff", f"{tmp_path}/m") == [("plain", f"{tmp_path}/mine")]
    assert offered("replay", "da") == [("dir", "da")]
    assert offered("replay", "nowhere/da") == [("dir", "nowhere/da")]
    assert offered("verify", "dig") == [("plain", "digits")]
    assert offered("train", "digits", "--data", "da") == [("file", "da")]
    assert offered("train", "digits", "--strategy", "fs") == [("plain", "fsdp")]
