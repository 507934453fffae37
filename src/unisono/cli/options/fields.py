"""From options as fields of dataclasses to click's, and the help pages that show them in groups.

In: a dataclass (see `unisono.options.fields`). Out: decorators that add its options to a command, which gets them by
their keys, None where nothing was given; `taken` reads them from there.
"""

import os.path
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, replace
from typing import TYPE_CHECKING, Any, final

import click

from unisono.cli.options.settings import PATH, Decorator, bounds, note_quiet, number, stack
from unisono.options.fields import DATA, HOSTS, JOB, OUTPUT, PROCESSES, REPRODUCIBILITY, Option, options_of
from unisono.options.quantities import RUNS, STEPS, Count
from unisono.recipes.catalog import RECIPES, Options
from unisono.strategies.catalog import CATALOG, all_options
from unisono.system.hints import VALUES

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_GROUPS = (JOB, "", DATA, PROCESSES, OUTPUT, REPRODUCIBILITY, HOSTS, "Help")
_TYPED, _GIVEN, _ALL = "unisono.typed", "unisono.given", "unisono.help-all"
_HELP = "Help"
_PLAIN = {"--help": _HELP, "--help-all": _HELP, "--config": JOB, "--json": OUTPUT, "--quiet": OUTPUT}
_LONGEST_WORD = 24
_WORDS = {int: "K", float: "X", str: "NAME"}


@final
class FieldOption(click.Option):
    """An option that is a field of a dataclass.

    Args:
        item: What it is.
        strategies: Those that it belongs to; empty for all.
        default: What this command takes where nothing is given; the dataclass decides where None.
    """

    def __init__(
        self, _: Sequence[str] = (), *, item: Option, strategies: tuple[str, ...] = (), default: Any = None
    ) -> None:
        self.item, self.strategies = item, strategies
        if item.also and default is None:
            default = item.also
        flag = f"{item.flag}/--no-{item.flag[2:]}" if item.kind is bool else item.flag
        super().__init__(
            [*filter(None, [item.short]), flag, *item.old, item.key], type=None if item.kind is bool else _type(item),
            metavar=None if item.kind is bool else self._word(), help=item.help, hidden=item.hidden,
            multiple=item.repeats or item.kind is dict,
            # click takes a default of None for a value, and asks for no other
            **({"required": True} if item.default is MISSING and not item.usual else {"default": default}),
        )  # fmt: skip

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Return the strategies, or the models or presets of the recipe that was typed; else what click knows."""
        from click.shell_completion import CompletionItem

        # Not of ctx.params: click reads no argument of a line whose last option waits for its value.
        recipe = next((RECIPES[word] for word in ctx.meta.get(_TYPED, ()) if word in RECIPES), None)
        known: Iterable[str] = ()
        if self.item.key == "strategy":
            known = CATALOG
        elif recipe is not None:
            presets = [preset.name for preset in recipe.presets]
            known = {"model": recipe.models, "preset": presets}.get(self.item.key, ())
        found = [CompletionItem(name) for name in known if name.startswith(incomplete)]
        return found or super().shell_complete(ctx, incomplete)

    def _word(self) -> str:
        item, choices = self.item, "|".join(self._choices())
        if item.word or (choices and len(choices) <= _LONGEST_WORD):
            return item.word or choices
        return "PATH" if item.is_path else "A,B,..." if item.is_list else _WORDS[item.kind]

    def _choices(self) -> tuple[str, ...]:
        return (*filter(None, [self.item.also]), *self.item.choices) if self.item.choices else ()

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return flags and help; old flags, and that a switch can be turned off, are not shown."""
        item = self.item
        if item.hidden:
            return None
        flags = ", ".join(filter(None, [item.short, item.flag]))
        if item.kind is bool and item.default is True:
            flags += f" / --no-{item.flag[2:]}"
        usual = item.usual or item.also
        if not usual and not isinstance(item.default, bool) and item.default not in (None, MISSING, (), "", {}):
            usual = f"{item.default:g}" if isinstance(item.default, float) else str(item.default)
        facts = [", ".join(self._choices())] if len("|".join(self._choices())) > _LONGEST_WORD else []
        facts += ["required"] * self.required + [f"default: {usual}"] * bool(usual)
        is_short = isinstance(ctx.command, ExplainedCommand) and not ctx.meta.get(_ALL)
        facts += [told] if item.of is not None and not is_short and (told := bounds(item.of)) else []
        text = item.help + (f"  [{'; '.join(facts)}]" if facts else "")
        return (flags if item.kind is bool else f"{flags} {self._word()}"), text


@final
class Words(click.Choice[str]):
    """One of a few words; another program's word for one of them is answered with ours."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            if (meant := VALUES.get(str(value).lower())) in self.choices:
                raise click.BadParameter(f"{error.message} Hint: did you mean {meant!r}?", ctx, param) from None
            if param is not None and os.path.isfile(str(value)):  # noqa: PTH113 - pathlib raises where a name is too long
                hint = f"Hint: {param.opts[-1]} {self.choices[0]} {value}."
                raise click.BadParameter(f"{error.message} {hint}", ctx, param) from None
            raise


def _type(item: Option) -> Any:
    if item.is_path:
        return PATH
    if item.choices:
        return Words((*filter(None, [item.also]), *item.choices))
    if item.of is not None and not item.is_list and not item.also:
        return number(item.of)
    return click.STRING


@final
class ExplainedCommand(click.Command):
    """A command whose ``--help`` is in groups, and shows what a beginner needs; ``--help-all`` shows everything.

    Options of a strategy or recipe are shown when its name stands beside ``--help``.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params.append(
            click.Option(
                ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all,
                help="Show every option, and exit.",
            )
        )  # fmt: skip

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List recipes and strategies, where the command takes one."""
        named = {parameter.name for parameter in self.params}
        for name, heading, entries in (
            ("recipe", "Recipes (options of one: RECIPE --help)", RECIPES),
            ("strategy", "Strategies (options of one: --strategy NAME --help)", CATALOG),
        ):
            if name in named:
                with formatter.section(heading):
                    formatter.write_dl([(entry, about.summary) for entry, about in entries.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note what was given, for the help page; the rest is click's."""
        ctx.meta[_TYPED] = tuple(args)
        ctx.meta[_GIVEN], *_ = self.make_parser(ctx).parse_args(list(args))
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, each group under its heading."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            heading = _heading(parameter, ctx.meta)
            if record is not None and heading:
                groups.setdefault(heading, []).append(record)
        for heading in sorted(groups, key=_place):
            with formatter.section(heading):
                formatter.write_dl(groups[heading])


def _place(heading: str) -> int:
    """Return where a heading stands: what belongs to a strategy or recipe after the job, help at the end."""
    return _GROUPS.index(heading) if heading in _GROUPS else 1


def _show_all(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo(help_all(context))
        context.exit()


def help_all(context: click.Context) -> str:
    """Return the help page of a command with every option."""
    context.meta[_ALL] = True
    return context.get_help()


def _heading(parameter: click.Parameter, meta: dict[str, Any]) -> str:
    if not isinstance(parameter, FieldOption):
        return "" if isinstance(parameter, click.Argument) else _PLAIN.get(parameter.opts[-1], "Options")
    item, shows_all = parameter.item, meta.get(_ALL, False)
    given = meta.get(_GIVEN, {})
    for noun, name, owners in (
        ("Strategy", given.get("strategy"), parameter.strategies), ("Recipe", given.get("recipe"), item.recipes),
    ):  # fmt: skip
        if owners and (shows_all or name in owners):
            return f"{noun} {name}" if name in owners else f"{noun} {', '.join(owners)}"
        if owners:
            return ""
    return item.group or "Options" if item.basic or shows_all else ""


def field_options(
    kind: type, *names: str, changes: Mapping[str, Mapping[str, Any]] | None = None, scripts_too: bool = False
) -> Decorator:
    """Return a decorator that adds options of a dataclass to a command.

    Args:
        kind: The dataclass.
        names: Fields, in the order of ``--help``; all where there are none.
        changes: Attributes of `Option` that are others here, by field.
        scripts_too: The command takes scripts too, so the help says that these are for recipes.
    """
    known, made = options_of(kind), []
    for name in names or known:
        own = (changes or {}).get(name, {})
        item = replace(known[name], **own)
        if scripts_too:
            item = replace(item, help=f"Recipes: {item.help[0].lower()}{item.help[1:]}")
        made.append(_added(item, default=own.get("default")))
    return stack(*made)


def _added(item: Option, **more: Any) -> Decorator:
    return click.option(cls=FieldOption, item=item, **more)


def recipe_options(*names: str, scripts_too: bool = False) -> Decorator:
    """Return a decorator that adds options of recipes; see `field_options`."""
    return field_options(Options, *names, scripts_too=scripts_too)


_STRATEGY = Option(
    key="strategy", usual="exact", group=JOB, basic=True,
    help=f"How gradients or parameters move: {', '.join(CATALOG)}. Part of the result.",
)  # fmt: skip


strategy_options = stack(
    _added(_STRATEGY), *(_added(item, strategies=tuple(owners)) for owners, item in all_options().values())
)
"""``--strategy``, and one option for each option of any strategy."""


def single(key: str, text: str, *, default: Any = None, **about: Any) -> Decorator:
    """Return an option that is no dataclass's field; `about` as for `Option`, `key` gives its name."""
    of = about.get("of")
    kind = about.pop("kind", str if of is None else int if isinstance(of, Count) else float)
    return _added(Option(name=key, key=key, help=text, default=default, kind=kind, **about), default=default)


# What several verbs take, in the same words.
quiet_option = click.option(
    "-q", "--quiet", is_flag=True, expose_value=False, callback=note_quiet,
    help="Say nothing beside the result, but for errors.",
)  # fmt: skip
result_options = stack(
    quiet_option,
    click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on standard output."),
)
"""``--quiet``, and ``--json`` as `as_json`: of every verb that prints a result."""
picture_option = click.option(
    "--picture", "--png", "picture", type=PATH, metavar="FILE.svg", help="Draw a picture too, as SVG."
)


def counts_option(default: str | None = "1,2", usual: str = "") -> Decorator:
    """Return ``--workers``, several numbers."""
    text = "Numbers of workers to compare."
    return single("workers", text, default=default, usual=usual, short="-n", old=("-w",), word="N,N,...", basic=True)


def out_option(text: str, word: str = "FILE", usual: str = "") -> Decorator:
    """Return ``--out``; the text says what is kept."""
    return single("out", text, short="-o", word=word, usual=usual, is_path=True, basic=True, group=OUTPUT)


def repeat_option(default: int, text: str = "Runs of each.") -> Decorator:
    """Return ``--repeat``."""
    return single("repeat", text, of=RUNS, default=default, short="-r", word="R", basic=True)


def steps_option(default: int, least: int = 2) -> Decorator:
    """Return ``--steps``, at least so many."""
    return single("steps", "Steps of each run.", of=replace(STEPS, low=least), default=default, basic=True)


def warmup_option(default: int) -> Decorator:
    """Return ``--warmup``."""
    text = "First steps of each run that do not count."
    return single("warmup", text, of=replace(STEPS, low=0), default=default, basic=True)
