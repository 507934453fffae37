"""The command line answers at once, and a slip of the keyboard is answered with what was meant."""

import json
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from unisono import __version__
from unisono.cli import completion
from unisono.cli.main import _NO_VERBS, BEGIN, VERBS, main, unisono
from unisono.cli.run import run, split_own
from unisono.recipes.catalog import RECIPES

# One process for all: each is answered in it, and afterwards torch must not have been loaded.
ASK = """
import contextlib, io, json, sys
from unisono.cli.main import main, VERBS
answers = []
for arguments in [[], ["--help"], ["-h"], ["--version"], *([verb, "--help"] for verb in VERBS)]:
    sys.argv = ["unisono", *arguments]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            main()
        except SystemExit as end:
            answers.append([arguments, end.code, out.getvalue()])
from click.shell_completion import BashComplete
from unisono.cli.main import unisono
complete = BashComplete(unisono, {}, "unisono", "_UNISONO_COMPLETE").get_completions
completed = [[item.value for item in complete(*typed)] for typed in [
    ([], "c"), (["train"], "di"), (["verify"], "x"), (["train", "digits"], "--batch"), (["bench"], ""), ([], "-"),
    (["launch"], "s"),
]]
heavy = [name for name in ("torch", "numpy", "rich", "sklearn") if name in sys.modules]
print(json.dumps([answers, heavy, completed]))
"""


@pytest.fixture(scope="module")
def asked():
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    answers, heavy, completed = json.loads(done.stdout)
    return {tuple(arguments): (code, text) for arguments, code, text in answers}, heavy, completed


def test_every_help_ends_with_zero(asked):
    """The whole and each verb explain themselves, in no more than 100 columns."""
    answers, *_ = asked
    assert len(answers) == 4 + len(VERBS)
    for arguments, (code, text) in answers.items():
        assert code in (0, None), arguments
        assert text.strip()
        assert max(map(len, text.splitlines())) <= 100
    assert all(verb in answers["--help",][1] and summary in answers["--help",][1] for verb, summary in VERBS.items())


def test_the_start_page_names_the_first_steps(asked):
    """``unisono`` alone: commands that exist, in a terminal's width, and where the rest is."""
    code, text = asked[0][()]
    assert code == 0
    assert text.startswith(f"unisono {__version__}: ")
    assert max(map(len, text.splitlines())) <= 100
    named = set(re.findall(r"^  unisono ([a-z]+)", text, re.MULTILINE))
    assert named == {"doctor", "train", "verify", "run", "watch"} <= set(VERBS)
    assert "unisono --help" in text


def test_the_help_begins_with_the_first_steps():
    """The lines of the start page stand before the list of verbs, unwrapped."""
    told = CliRunner().invoke(unisono, ["--help"]).output
    begin = [f"  {line}" for line in BEGIN.splitlines()]
    assert told.splitlines()[told.splitlines().index(begin[0]) :][: len(begin)] == begin
    assert told.index("Begin here:") < told.index("Verbs:")


def test_the_shell_completes(asked):
    """Verbs, recipes, options and verbs of a verb; where no recipe begins so, a file (click's empty word)."""
    verbs, recipes, files, options, benches, flags, engines = asked[2]
    assert verbs == ["chaos", "checkpoint", "certify", "completion"]
    assert recipes == ["digits"]
    assert files == ["x"]
    assert "--batch-size" in options
    assert set(benches) == {"collectives", "links", "scaling", "strategies", "tune"}
    assert {"--help", "--version"} <= set(flags)
    assert engines == ["slurm"]


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_each_shell_gets_its_script(shell):
    """The script names the command and the variable by which click is asked; another shell is wrong usage."""
    done = CliRunner().invoke(unisono, ["completion", shell])
    assert done.exit_code == 0, done.output
    assert f"_UNISONO_COMPLETE={shell}_complete" in done.output
    assert CliRunner().invoke(unisono, ["completion", "tcsh"]).exit_code == 2


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("train.py", "unisono run train.py"), ("digits", "unisono train digits"), ("chaos-", "'chaos'")],
)
def test_a_script_or_recipe_is_no_verb_but_understood(typed, meant):
    """What is typed without its verb is answered with the verb, code 2."""
    result = CliRunner().invoke(unisono, [typed])
    assert result.exit_code == 2
    assert f"No such verb '{typed}'. Hint: " in result.output
    assert meant in result.output


@pytest.mark.parametrize("typed", _NO_VERBS)
def test_words_of_other_programs_are_answered(typed):
    """With a hint whose commands there are."""
    result = CliRunner().invoke(unisono, [typed])
    assert f"No such verb '{typed}'. Hint: {_NO_VERBS[typed]}." in result.output
    assert {*re.findall(r"unisono (\w+)", _NO_VERBS[typed])} <= {*VERBS, "VERB"}


def test_help_loads_nothing_heavy(asked):
    """Neither torch nor NumPy nor a data library is imported to answer a question, or to complete it."""
    assert asked[1] == []


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_says_what_its_exit_codes_mean(asked, verb):
    """Usage, an explanation and the exit codes are in each verb's help."""
    _, text = asked[0][verb, "--help"]
    assert text.startswith(f"Usage: unisono {verb} ")
    assert "Exit code: 0" in text


def test_verbs_are_found_under_their_names():
    """Each verb's file holds a command of its name."""
    group = unisono
    context = click.Context(group)
    assert group.list_commands(context) == list(VERBS)
    assert all(group.get_command(context, verb).name == verb for verb in VERBS)
    assert group.get_command(context, "outcome") is None


@pytest.mark.parametrize(("typed", "meant"), [("trian", "train"), ("verfy", "verify"), ("rnu", "run")])
def test_a_mistyped_verb_names_the_nearest(typed, meant):
    """Wrong usage is code 2, with what was meant."""
    result = CliRunner().invoke(unisono, [typed])
    assert result.exit_code == 2
    assert f"did you mean '{meant}'?" in result.output


def test_a_verb_like_no_other_is_refused_without_a_guess():
    """Code 2, no suggestion, and the verb is quoted."""
    result = CliRunner().invoke(unisono, ["zzzz"])
    assert result.exit_code == 2
    assert "zzzz" in result.output
    assert "did you mean" not in result.output


def test_only_the_nearest_option_is_proposed(monkeypatch, capsys):
    """Not three in the order of the alphabet, as click would."""
    monkeypatch.setattr("sys.argv", ["unisono", "train", "digits", "--epcohs", "3"])
    with pytest.raises(SystemExit) as end:
        main()
    told = capsys.readouterr().err
    assert end.value.code == 2
    assert "Hint: did you mean '--epochs'?" in told
    assert told.count("'--") == 2


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["train", "digits", "--epoch", "1"], "--epochs"),
        (["train", "digits", "--batchsize", "8"], "--batch-size"),
        (["verify", "digits", "--worker", "1"], "--workers"),
        (["train", "digits", "--learning-rate", "1"], "'--lr'"),
        (["train", "digits", "--learning_rate=1"], "'--lr'"),
        (["train", "digits", "--strategy", "dpp"], "'ddp' or 'dp'"),
        (["train", "digits", "--gpus", "0,1"], "Hint: --gpus cpu"),
        (["run", "--cpu", "--num_processes=2", "train.py"], "Hint: --gpus cpu.\n"),
        (["train", "digits", "--precision", "16"], "Hint: did you mean 'fp16'?"),
        (["train", "digits", "--precision", "BF16-mixed"], "Hint: did you mean 'bf16'?"),
        (["watch", "runs/a", "--port", "8080"], "--web 8080"),
        (["checkpoint", "export", "runs/a", "--out", "b.pt"], "without a flag, as the last argument"),
        (["checkpoint", "export", "runs/a"], "Example: unisono checkpoint export runs/digits model.safetensors"),
        (["watch"], "Example: unisono watch runs/digits"),
        (["run", "--multi_gpu", "train.py"], "-n says how many processes"),
        (["run", "--num_machines", "2", "train.py"], "'--nnodes'"),
        (["train", "digits", "--resume"], "The same command with the same --out goes on."),
        (["train", "resnet"], "Hint: `unisono run SCRIPT` trains a model of your own."),
        (["train", "train.py"], "Hint: unisono run train.py."),
        (["train", "runs/digits"], "Hint: unisono train digits --out runs/digits keeps a run there, or goes on with"),
        (["train", "runs/mine"], "Hint: unisono train RECIPE --out runs/mine keeps a run there"),
        (["train", "digits", "--bf16"], "Hint: leave it out, or: unisono train mnist --bf16 ..."),
        (["train", "digits", "--standalone"], "understood by unisono run; here -n says how many processes"),
        (["train", "--recipe", "digits"], "The recipe stands without a flag: unisono train digits."),
        (["run", "digits"], "Hint: unisono train digits."),
        (["run", "-np", "2", "train.py", "--lr", "1"], "Hint: unisono run -n 2 train.py --lr 1."),
        (["run", "--use_fsdp", "train.py"], "unisono.Run(strategy='fsdp')"),
        (["run", "--mixed_precision", "bf16", "train.py"], "unisono.Run(precision='bf16')"),
        (["train", "digits", "--mixed_precision", "bf16"], "'--precision'"),
        (["torchrun", "train.py"], "Hint: unisono run -n 2 SCRIPT."),
        (["accelerate", "launch", "train.py"], "Hint: unisono run -n 2 SCRIPT."),
        (["fit", "digits"], "Hint: unisono train RECIPE, or unisono run SCRIPT."),
        (["report", "runs/a", "--html", "a.html"], "'--out'"),
        (["launch", "train.py"], "on this machine: unisono run train.py"),
        (["eval", "runs/a"], "unisono predict RUN FILE"),
    ],
)
def test_a_mistyped_option_names_the_nearest(monkeypatch, capsys, arguments, meant):
    """Wrong options are code 2, with what was meant, and nothing starts."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("sys.argv", ["unisono", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert meant in capsys.readouterr().err


def test_ctrl_c_before_anything_has_begun(monkeypatch, capsys):
    """While a verb's file is loaded or its options are read: code 130, and the command."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("unisono.cli.options.run_file.read_run_file", interrupted)
    monkeypatch.setattr("sys.argv", ["unisono", "train", "--config", "my run.toml"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    told = capsys.readouterr().err.strip()  # click ends the line of what was typed
    assert told == "unisono: interrupted. Nothing was begun. Again: unisono train --config 'my run.toml'"


def test_a_missing_recipe_is_answered_with_all_of_them():
    """Each with its line; where a script will do too, that is said."""
    for verb, also in (("train", "Expected one"), ("verify", "Expected a script, or one"), ("chaos", "or one")):
        told = CliRunner().invoke(unisono, [verb]).output
        assert f"{also} of the recipes:" in told
        assert all(re.search(rf"^  {name} +\w", told, re.M) for name in RECIPES)


@pytest.mark.parametrize("arguments", [["train"], ["verify"], ["run"], ["train", "digits", "--epochs", "many"]])
def test_missing_and_malformed_arguments_are_wrong_usage(arguments):
    """Code 2 with the usage line."""
    result = CliRunner().invoke(unisono, arguments)
    assert result.exit_code == 2
    assert "Usage: " in result.output


def test_python_m_unisono_is_unisono():
    """The module and the installed command say the same, on the same streams, with the same code."""
    command = f"{sys.prefix}/bin/unisono"
    answers = [
        [
            subprocess.run([*start, *arguments], capture_output=True, text=True, check=False)
            for start in ([sys.executable, "-m", "unisono"], [command])
        ]
        for arguments in (["--version"], ["trian"])
    ]
    for module, script in answers:
        assert (module.returncode, module.stdout, module.stderr) == (script.returncode, script.stdout, script.stderr)
    assert [module.returncode for module, _ in answers] == [0, 2]
    assert answers[0][0].stdout.startswith("unisono, version ")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("help train", "Hint: unisono train --help."),
        ("train digits epochs=3", "(epochs=3). Hint: --epochs 3."),
        ("train digits mnist", "(mnist). Hint: options are written --NAME VALUE."),
        ("train digits --optimizer adam", "Hint: A recipe's --preset chooses it"),
        ("train digits --zzz 3", "unisono train: No such option '--zzz'. Hint: unisono train --help.\n"),
        ("train digits --save runs/a", "Hint: did you mean '--out'?"),
        ("checkpoint runs/a", "No such command 'runs/a'. Hint: unisono checkpoint list runs/a."),
        ("checkpoint lst runs/a", "did you mean 'list'?"),
        ("checkpoint list model.pt", "which does not exist. Hint: the DIR of --out (out=)."),
        ("verify train.py --lr 3", "Hint: what the script itself takes stands behind --: train.py -- --lr 3."),
        ("verify digits --workers 1-3", "got '1-3'. Hint: 1,2,3."),
        ("run trian.py", "Hint: did you mean 'train.py'?"),
        ("run all.sh", "got a shell script. Hint: give the path of the Python script that it starts."),
        ("run --live train.py", "Hint: --live auto train.py."),
        ("--verson", "unisono: No such option '--verson'. Hint: did you mean '--version'?\n"),
        *[
            (typed, "expected a run directory, got 'old/digit', which does not exist. Hint: did you mean old/digits?")
            for typed in (
                "watch old/digit",
                "diff runs/a old/digit",
                "audit old/digit",
                "replay old/digit --step 1",
                "blame old/digit --step 1",
                "fork old/digit --step 1 --out c",
                "checkpoint list old/digit",
                "scale old/digit 2",
                "predict old/digit a.png",
            )
        ],
        ("report old/digit", "got 'old/digit', which does not exist. Hint: did you mean old/digits?"),
    ],
)
def test_slips_of_the_first_hour_are_answered_with_what_to_type(typed, said, tmp_path, monkeypatch, capsys):
    """Words in another order, options without their dashes, a directory of runs in place of a run."""
    monkeypatch.chdir(tmp_path)
    for name, text in (
        ("train.py", "print(1)\n"),
        ("all.sh", "unisono run train.py\n"),
        ("runs/a/score.json", "{}"),
        ("old/digits/score.json", "{}"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "argv", ["unisono", *typed.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "ours", "others"),
    [
        ("-n 2 --lr 3", ["-n", "2"], ["--lr", "3"]),
        ("--epochs 3 --max_restarts=2 --standalone x", ["--max_restarts=2", "--standalone"], ["--epochs", "3", "x"]),
        ("--threads 2 --help -m a", [], ["--threads", "2", "--help", "-m", "a"]),
    ],
)
def test_options_of_the_launcher_behind_a_script_that_does_not_say_them(typed, ours, others, tmp_path):
    """With their values; ``__name__`` in the script is no ``-n``, and what it says itself stays its own."""
    script = tmp_path / "train.py"
    script.write_text('parser.add_argument("--threads")\nif __name__ == "__main__":\n    main()\n')
    assert split_own(str(script), tuple(typed.split()), run.params) == (ours, others)
