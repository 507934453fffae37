"""Every option is found wherever it can be given, and help shows what is asked for."""

import importlib.util
import inspect
import json
import re
from dataclasses import MISSING, dataclass
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from adversary.options import commands
from unisono.cli.main import VERBS, unisono
from unisono.cli.options.fields import ExplainedCommand, FieldOption, field_options, recipe_options
from unisono.cli.options.run_file import read_run_file
from unisono.cli.train import train
from unisono.launchers.engines.kubernetes import KubernetesJob
from unisono.launchers.engines.mpi import MpiJob
from unisono.launchers.engines.ray_job import RayJob
from unisono.launchers.engines.slurm import SlurmJob
from unisono.launchers.spec import LaunchSpec
from unisono.nodes.plan import NodesOptions
from unisono.options.fields import Option, option, options_of
from unisono.options.quantities import Count
from unisono.recipes.catalog import RECIPES, Options
from unisono.strategies.catalog import CATALOG

ENGINES = (SlurmJob, MpiJob, RayJob, KubernetesJob)
IN_RUN_FILES = (Options, NodesOptions, *CATALOG.values())
HEADINGS = ["Job:", "Data:", "Workers:", "Output:", "Reproducibility:", "Help:"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Planted:
    """An option that nobody shows."""

    nowhere: int = option(1, "Nobody knows it.", of=Count(1, 9))


@pytest.fixture(scope="module")
def page():
    """The pages of all verbs as the site has them."""
    path = Path(__file__).parents[3] / "docs" / "generated.py"
    spec = importlib.util.spec_from_file_location("generated", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return "".join(map(module.help_of, VERBS))


def sample(item: Option) -> object:
    """Return a value as a run file would hold it."""
    if item.choices:
        return item.choices[0]
    if item.kind is bool:
        return True
    number = item.kind(max(item.of.low, min(1, item.of.high / 2))) if item.of else "text"
    return [number] if item.is_list else number


def missing(kinds: tuple[type, ...], page: str, place: Path, *, in_run_files: bool) -> list[str]:
    """Return the places where an option of dataclasses is not found."""
    flags = {flag for _, command in commands() for made in command.params for flag in made.opts}
    lost = []
    for kind in kinds:
        for name, item in options_of(kind).items():
            found = {"command line": item.flag in flags, "page": re.search(rf"{item.flag}[ `,\n]", page) is not None}
            found["keyword"] = name in inspect.signature(kind).parameters
            found["help"] = item.help.endswith(".") or item.hidden
            if in_run_files:
                file = place / "run.toml"
                file.write_text(f"{item.key} = {json.dumps(sample(item))}\n")
                try:
                    found["run file"] = item.key in read_run_file(file, train.params)
                except click.UsageError:
                    found["run file"] = False
            lost += [f"{kind.__name__}.{name}: {where}" for where, is_there in found.items() if not is_there]
    return lost


def test_every_option_is_found_everywhere(page, tmp_path):
    """Command line, run file, keyword in Python, reference page."""
    assert missing(IN_RUN_FILES, page, tmp_path, in_run_files=True) == []
    assert missing((LaunchSpec, *ENGINES), page, tmp_path, in_run_files=False) == []


def test_an_option_that_is_nowhere_is_noticed(page, tmp_path):
    """The control: a planted field is missed on the command line, on the page and in run files."""
    lost = missing((Planted,), page, tmp_path, in_run_files=True)
    assert [line.partition(": ")[2] for line in lost] == ["command line", "page", "run file"]


def test_what_a_launch_takes_is_in_run_files_too(tmp_path):
    """Settings of `unisono train` that are the launch's."""
    file = tmp_path / "run.toml"
    file.write_text("workers = 2\nmax_restarts = 1\ngpus = [0, 2]\nheartbeat = 3\nhang-report = 4.5\nstop_grace = 9\n")
    found = read_run_file(file, train.params)
    assert found == {
        "workers": "2", "max_restarts": 1, "gpus": "0,2", "heartbeat": 3, "hang_report": 4.5, "stop_grace": 9,
    }  # fmt: skip


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(unisono, arguments)
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= 80
    return done.output


def flags(text: str) -> list[str]:
    """Return the options that a help page lists."""
    return re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)


def test_a_beginner_is_shown_what_a_first_run_needs():
    """About twenty options of eighty, in groups, in a terminal's width; none of a recipe's or strategy's own."""
    text = shown("train", "--help")
    assert 15 <= len(flags(text)) <= 22
    assert [line for line in text.splitlines() if line in HEADINGS] == HEADINGS
    assert "Several hosts:" not in text and "--lr" not in flags(text) and "--shares" not in flags(text)
    assert all(re.search(rf"^  {name} ", text, re.MULTILINE) for name in (*RECIPES, *CATALOG))


@pytest.mark.parametrize("name", CATALOG)
def test_a_strategy_s_options_are_shown_with_it(name):
    """In either order; those of others are not."""
    own = [item.flag for item in options_of(CATALOG[name]).values()]
    others = {item.flag for kind in CATALOG.values() for item in options_of(kind).values()} - set(own)
    text = shown("train", "--strategy", name, "--help")
    assert set(own) <= set(flags(text)) and not others & set(flags(text))
    assert f"Strategy {name}:" in text
    assert shown("train", "--help", "--strategy", name) == text


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_s_options_are_shown_with_it(name):
    """Those that it takes, and no others."""
    own = {item.flag for item in options_of(Options).values() if name in item.recipes}
    others = {item.flag for item in options_of(Options).values() if item.recipes} - own
    text = shown("train", name, "--help")
    assert own <= set(flags(text)) and not others & set(flags(text))


@pytest.mark.parametrize("verb", ["train", "run"])
def test_all_options_are_shown_on_demand(verb):
    """Every one that is not hidden, with its bounds."""
    command = unisono.get_command(click.Context(unisono), verb)
    assert isinstance(command, ExplainedCommand)
    text = shown(verb, "--help-all")
    every = {made.opts[-1 if made.opts[-1].startswith("--") else 0] for made in command.params
             if isinstance(made, click.Option) and not made.hidden and not isinstance(made, FieldOption)}  # fmt: skip
    every |= {made.item.flag for made in command.params if isinstance(made, FieldOption) and not made.hidden}
    assert every <= set(flags(text))
    assert "Several hosts:" in text and "1 to 65,535]" in text
    assert set(flags(shown(verb, "--help"))) < set(flags(text))


def test_defaults_are_those_of_the_dataclass():
    """What help calls the default is what a dataclass takes; nothing is given where nothing was typed."""
    for _, command in commands():
        for made in command.params:
            if isinstance(made, FieldOption) and not (made.default is None or made.required or made.item.also):
                assert made.default == made.item.default != MISSING
    assert "[default: 3" in shown("train", "--help") and "[default: 0]" in shown("run", "--help")


def test_old_flags_work_and_are_not_shown():
    """What scripts of users may hold."""
    assert "--devices" not in flags(shown("run", "--help-all"))
    done = CliRunner().invoke(unisono, ["run", "--devices", "99", "-n", "1", __file__])
    assert done.exit_code == 2
    assert "expected --gpus with GPUs out of" in done.output


def test_a_switch_of_a_run_file_can_be_turned_off(tmp_path):
    """``--no-NAME`` of every switch."""
    seen = {}

    @click.command(params=list(train.params))
    def command(**given):
        seen.update(given)

    file = tmp_path / "run.toml"
    file.write_text("detail = true\nbf16 = true\n")
    done = CliRunner().invoke(command, ["digits", "--config", str(file), "--no-bf16"])
    assert done.exit_code == 0, done.output
    assert (seen["detail"], seen["bf16"], seen["compile"]) == (True, False, None)


def test_options_of_recipes():
    """In the given order; the help says for whom they are; what was not given is None."""
    seen = {}

    @click.command()
    @recipe_options("limit", "batch_size", scripts_too=True)
    @recipe_options("data")
    @field_options(Planted)
    def command(**given):
        seen.update(given)

    text = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert "--limit K Recipes: use at most K training and K test samples" in text
    assert "--data PATH Directory or file with the data." in text
    assert "--nowhere K Nobody knows it. [default: 1; 1 to 9]" in text
    assert text.index("--limit") < text.index("--batch-size") < text.index("--data")
    assert CliRunner().invoke(command, ["--batch-size", "3"]).exit_code == 0
    assert seen == {"limit": None, "batch_size": 3, "data": None, "nowhere": None}


@pytest.mark.parametrize(("typed", "begun", "found"), [
    (["train", "--strategy"], "p", ["ps", "ps_async", "pipeline"]), (["train", "imdb", "--model"], "", ["gcnn", "bag"]),
    (["train", "mnist", "--preset"], "f", ["fast"]), (["train", "--schedule"], "g", ["gpipe"]),
    (["run", "--output"], "q", ["quiet"]),
])  # fmt: skip
def test_the_shell_completes_values(typed, begun, found):
    """Strategies, the typed recipe's models and presets, the words that an option takes."""
    completer = BashComplete(unisono, {}, "unisono", "_UNISONO_COMPLETE")
    assert [item.value for item in completer.get_completions(typed, begun)] == found
