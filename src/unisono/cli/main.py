"""``unisono``: finds the verb and loads only its file, so that ``--help`` answers at once."""

import io
import os.path
import re
import sys
from typing import NoReturn

import click

from unisono import __version__
from unisono.cli.launch.options import UNDERSCORES
from unisono.cli.options.lazy import LazyGroup
from unisono.cli.output.outcome import INTERRUPTED, Terminated, command_line, hear_terminations, tidy

VERBS = {
    "run": "Start a script on several processes, of one machine or more.",
    "launch": "Hand a script to Slurm, Open MPI, Ray or Kubernetes.",
    "join": "Be one rank of a world that srun or mpirun has started.",
    "train": "Train a ready-made recipe.",
    "scale": "Let a running run have more or fewer workers.",
    "watch": "Follow runs while they train.",
    "verify": "Prove that the number of workers does not change a bit.",
    "diff": "Show the first difference between two runs.",
    "chaos": "Kill a run's processes, and prove that its bits stay the same.",
    "replay": "Compute a past step of a run again, and compare.",
    "blame": "Rank the samples of a step by what they do to it.",
    "fork": "Begin a run after a step of another, with other settings.",
    "audit": "Check a finished run: its files, and steps drawn at random.",
    "predict": "Ask a trained model about files, texts or images.",
    "checkpoint": "Look after what a run has saved.",
    "bench": "Measure scaling, collectives, strategies; propose settings.",
    "forecast": "Forecast training on more ranks than there are.",
    "certify": "Certify which claims hold on this machine.",
    "doctor": "Find what would spoil a run: this machine, a script.",
    "report": "Put runs, scaling and forecasts on one page.",
    "completion": "Let the shell complete verbs, options and recipes.",
}

ROOMS = dict.fromkeys(("replay", "blame", "fork", "audit"), "past")

_NO_VERBS = {
    "help": "unisono --help, unisono VERB --help",
    "version": "unisono --version",
    "resume": "the same command with the same --out goes on",
    "continue": "the same command with the same --out goes on",
    "test": "unisono verify, or unisono doctor",
    "profile": "unisono report RUN --timeline trace.json",
    **dict.fromkeys(("export", "convert", "onnx"), "unisono checkpoint export RUN model.safetensors (.onnx, .pt)"),
    **dict.fromkeys(("list", "ls", "clean", "prune"), "unisono checkpoint --help"),
    **dict.fromkeys(("infer", "inference", "generate", "ask"), "unisono predict RUN FILE"),
    **dict.fromkeys(
        ("eval", "evaluate"), "unisono predict RUN FILE; the scores of the test set are in RUN/result.json"
    ),
    **dict.fromkeys(("status", "show", "logs", "tail", "monitor", "top"), "unisono watch RUN"),
    **dict.fromkeys(("plot", "summary", "dashboard"), "unisono report RUN --out report.html"),
    **dict.fromkeys(("kill", "stop", "cancel"), "Ctrl-C or SIGTERM to the run saves it"),
    **dict.fromkeys(("env", "info", "check"), "unisono doctor"),
    **dict.fromkeys(("start", "init", "new"), "unisono train RECIPE, or unisono run SCRIPT"),
    "tune": "unisono bench tune",
    "compare": "unisono diff RUN OTHER",
    "config": "unisono train RECIPE --config FILE",
    "fit": "unisono train RECIPE, or unisono run SCRIPT",
    **dict.fromkeys(("torchrun", "accelerate", "deepspeed", "horovodrun", "python"), "unisono run -n 2 SCRIPT"),
    **dict.fromkeys(("mpirun", "mpiexec"), "unisono launch mpi SCRIPT, or mpirun -n 2 unisono join SCRIPT"),
    **dict.fromkeys(("srun", "sbatch"), "unisono launch slurm SCRIPT, or srun -n 2 unisono join SCRIPT"),
}
"""Words of other programs, and what is written here."""

_NO_OPTIONS = {
    "--resume": "The same command with the same --out goes on.",
    "--config-file": "accelerate's file is not read: -n says how many processes, --nnodes how many hosts.",
    "--multi-gpu": "-n says how many processes; each has a GPU of its own where there are GPUs.",
    "--accelerator": "GPUs are used where there are any; --gpus says which.",
    "--optimizer": "A recipe's --preset chooses it; a script of your own makes it, and gives it to run.prepare.",
    "-v": "unisono --version; there is no verbose output.",
    "--standalone": "It is understood by unisono run; here -n says how many processes.",
    "--recipe": "The recipe stands without a flag: unisono train digits.",
    **dict.fromkeys(("--use-fsdp", "--use-deepspeed", "--use-megatron-lm"), "unisono.Run(strategy='fsdp') shards."),
}
"""Options of other programs, and what is done here."""

BEGIN = """\
Begin here:
  unisono doctor                            does this machine have what training needs?
  unisono train digits --out runs/digits    a ready-made recipe, in seconds
  unisono watch runs/digits                 how far it is, and where its time goes
  unisono verify digits --workers 1,2       one process or two: the same bits
  unisono run -n 2 train.py                 your own script, also one written for torchrun
"""
START = f"""\
unisono {__version__}: distributed PyTorch training, bit-identical for any number of workers.

{BEGIN}
All verbs: unisono --help. What a verb can do: unisono VERB --help.
Tab completes verbs, options and recipes: unisono completion --help.
"""


def _meant(word: str) -> str:
    """Return a hint for a word that is no verb: a script, a recipe, a verb spelled otherwise."""
    from unisono.recipes.catalog import RECIPES
    from unisono.system.hints import nearest

    if word.endswith(".py") or os.path.isfile(word):  # noqa: PTH113 - pathlib raises where a name is too long
        return f" Hint: unisono run {word}."
    if word in _NO_VERBS:
        return f" Hint: {_NO_VERBS[word]}."
    if word in RECIPES:
        return f" Hint: unisono train {word}."
    return nearest(word, VERBS)


@click.group(
    cls=LazyGroup, entries=VERBS, module="unisono.cli.{}", rooms=ROOMS, noun="verb", meant=_meant,
    invoke_without_command=True,
    help=f"Distributed PyTorch training, bit-identical for any number of worker processes.\n\n\b\n{BEGIN}",
    context_settings={"help_option_names": ["-h", "--help"], **UNDERSCORES},
)  # fmt: skip
@click.version_option(__version__)
@click.pass_context
def unisono(context: click.Context) -> None:
    """Show where to begin, unless a verb is called."""
    if context.invoked_subcommand is None:
        click.echo(START, nl=False)


def _with_what_was_meant(error: click.ClickException) -> click.ClickException:
    """Return an error of click's with what to write: for an option that there is not, or something that is missing."""
    if isinstance(error, click.NoSuchOption):
        hint = _meant_option(error)
        return click.UsageError(f"No such option {error.option_name!r}.{f' Hint: {hint}' * bool(hint)}", ctx=error.ctx)
    if error.message.startswith("Got unexpected extra argument") and isinstance(error, click.UsageError):
        return click.UsageError(f"{error.message}.{_meant_argument(error)}", ctx=error.ctx)
    if isinstance(error, click.MissingParameter) and error.ctx is not None:
        from unisono.cli.output.examples import EXAMPLES

        examples = EXAMPLES.get(error.ctx.command_path.removeprefix("unisono "), ())
        told = error.format_message()
        hint = f" Example: {examples[0]}" if examples and "\n" not in told else ""  # lists of recipes say enough
        return click.UsageError(f"{told}{hint}", ctx=error.ctx)
    return error


def _as_told(error: click.ClickException) -> str:
    """Return an error of click's in the form of all others: ``unisono VERB: what is wrong. Hint: what to write.``"""
    context = getattr(error, "ctx", None)
    if isinstance(error, click.exceptions.NoArgsIsHelpError) or context is None:
        return error.format_message()
    said = error.format_message()
    hint = "" if re.search("Hint: |Example: |\n", said) else f" Hint: {context.command_path} --help."
    return f"{context.command_path}: {said}{hint}"


def _meant_argument(error: click.UsageError) -> str:
    """Return a hint for a word too many: an option without its dashes, as ``epochs=3`` or ``epochs 3``."""
    from unisono.system.hints import nearest_options

    words = error.message[error.message.index("(") + 1 : error.message.rindex(")")].replace("=", " ").split()
    parameters = error.ctx.command.get_params(error.ctx) if error.ctx else []
    known = [flag for each in parameters if not getattr(each, "hidden", False) for flag in each.opts]
    named = [flag for flag in nearest_options(f"--{words[0]}", known) if flag[2:] in words[0].replace("_", "-")]
    return f" Hint: {' '.join([*named[:1], *words[1:2]])}." if named else " Hint: options are written --NAME VALUE."


def _meant_option(error: click.NoSuchOption) -> str:
    """Return what to write: the nearest options, or ours for another program's word; click knows letters only."""
    from unisono.system.hints import nearest_options

    context = error.ctx
    parameters = context.command.get_params(context) if context else []
    known = [
        flag
        for parameter in parameters
        if not getattr(parameter, "hidden", False)
        for flag in (*parameter.opts, *parameter.secondary_opts)
    ]
    if error.option_name == "--out" and any(
        isinstance(each, click.Argument) and each.name == "file" for each in parameters
    ):
        return "The file is written without a flag, as the last argument."
    if error.option_name in _NO_OPTIONS:
        return _NO_OPTIONS[error.option_name]
    meant = nearest_options(error.option_name, known)
    if context is not None and context.parent is None and not meant:
        return "Options come behind a verb: unisono run -n 2 SCRIPT."
    if context is not None and isinstance(context.command, LazyGroup) and context.info_name == "launch":
        return "It belongs behind an engine; on this machine: unisono run -n 2 SCRIPT."
    if error.option_name in ("--cpu", "--use-cpu", "--no-cuda") and "--gpus" in known:
        return "--gpus cpu."
    if error.option_name == "--port" and "--web" in known:
        return "--web 8080 serves the page on port 8080."
    if error.option_name == "--mixed-precision" and "--precision" not in known:
        return "The script says it: unisono.Run(precision='bf16')."
    if not meant and context is not None and context.info_name == "run":
        return "Options of the script come behind it: unisono run SCRIPT --OPTION VALUE."
    return f"did you mean {' or '.join(map(repr, meant))}?" if meant else ""


def main() -> NoReturn:
    """Run the command line; exits with the verb's code."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files may be other bytes than text, and go out as they came
        sys.stdout.reconfigure(errors="surrogateescape" if sys.stdout.encoding == "utf-8" else "backslashreplace")
    hear_terminations()
    try:
        unisono(prog_name="unisono", standalone_mode=False)
    except click.ClickException as error:
        click.echo(tidy(_as_told(_with_what_was_meant(error))), err=True)  # what was typed stands in it
        raise SystemExit(error.exit_code) from None
    except (click.Abort, KeyboardInterrupt):  # while options were read: what a verb has begun, it tells itself
        click.echo(f"unisono: interrupted. Nothing was begun. Again: {command_line()}", err=True)
        raise SystemExit(INTERRUPTED) from None
    except Terminated:
        click.echo(f"unisono: terminated. Nothing was begun. Again: {command_line()}", err=True)
        raise
    raise SystemExit(0)
