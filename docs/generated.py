"""What the site adds to pages when it is built: each verb's real help, the names of options, a line a public name.

    python docs/generated.py

writes a first page for each verb that has none, and the list of verbs in docs/commands/index.md.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

import unisono
from unisono.cli.main import VERBS
from unisono.cli.main import unisono as group
from unisono.cli.options.fields import help_all

DOCS = Path(__file__).parent
PAGES = DOCS / "commands"
INDEX = PAGES / "index.md"
WIDTH = 84  #: characters of a line of code on the site, without scrolling
LIST = re.compile(r"(?<=\| verb \| what it does \|\n\|---\|---\|\n)(\|.*\n)*")


def rows() -> str:
    """Return the list of verbs as rows of a table."""
    return "".join(f"| [{verb}]({verb}.md) | {said} |\n" for verb, said in VERBS.items())


def help_of(verb: str) -> str:
    """Return a verb's help with every option, and that of what stands below it, as Markdown."""
    top = click.Context(group, info_name="unisono")
    return "".join(_told(group.get_command(top, verb), ("unisono", verb), top))


def _told(command: click.Command, path: tuple[str, ...], context: click.Context) -> Iterator[str]:
    own = click.Context(command, parent=context, info_name=path[-1], terminal_width=WIDTH)
    heading = f"## {' '.join(path)}" if len(path) > 2 else "## All options"
    yield f"\n{heading}\n\n```text\n{help_all(own)}\n```\n"
    for name in command.list_commands(own) if isinstance(command, click.Group) else ():
        yield from _told(command.get_command(own, name), (*path, name), own)


def names_of_options() -> str:
    """Return each option's names on the command line, in run files and in Python, as tables."""
    from unisono.launchers.spec import LaunchSpec
    from unisono.nodes.plan import NodesOptions
    from unisono.recipes.catalog import Options
    from unisono.strategies.catalog import CATALOG

    kinds = {"Recipes": Options, "Launches": LaunchSpec, "Several hosts": NodesOptions}
    tables = [_name_table(title, f"`{kind.__name__}`", kind) for title, kind in kinds.items()]
    tables += [_name_table(f"Strategy {name}", f'`strategy("{name}", ...)`', CATALOG[name]) for name in CATALOG]
    return "".join(tables)


def _name_table(title: str, python: str, kind: type) -> str:
    from unisono.options.fields import options_of

    lines = [f"\n## {title}\n", f"| command line | run file | keyword of {python} | takes |", "|---|---|---|---|"]
    for item in options_of(kind).values():
        takes = item.of.words if item.of else ", ".join(item.choices) or item.words
        lines.append(f"| `{item.flag}` | `{item.key}` | `{item.name}` | {'a list: ' * item.is_list}{takes} |")
    return "\n".join([*lines, ""])


def added(docname: str) -> str:
    """Return what the site adds to a page: a verb's help, or the names of all options."""
    if docname == "reference/index":
        return lines_of_names()
    room, _, name = docname.partition("/")
    if room != "commands" or name == "index":
        return ""
    return names_of_options() if name == "names" else help_of(name)


DIRECTIVE = re.compile(r"^\.\. auto(?:class|function|exception):: unisono\.(\w+)$", re.MULTILINE)


def names_by_page() -> dict[str, list[str]]:
    """Return the public names that each page of the reference shows."""
    pages = sorted((DOCS / "reference").glob("*.md"))
    return {page.stem: names for page in pages if (names := DIRECTIVE.findall(page.read_text()))}


def lines_of_names() -> str:
    """Return a line for each public name: where it stands, and the first sentence of its docstring."""
    tables = []
    for page, names in names_by_page().items():
        title = (DOCS / "reference" / f"{page}.md").read_text().splitlines()[0].removeprefix("# ")
        lines = [f"| {{py:obj}}`{name} <unisono.{name}>` | {sentence(name)} |" for name in names]
        tables.append("\n".join([f"\n## [{title}]({page}.md)\n", "| name | what it is |", "|---|---|", *lines, ""]))
    return "".join(tables)


def sentence(name: str) -> str:
    """Return the first sentence of a public name's docstring."""
    said = " ".join((getattr(unisono, name).__doc__ or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.:]) (?=[A-Z])", said)[0].rstrip(":").replace("|", "\\|").replace("``", "`")


def texts() -> dict[str, str]:
    """Return each page's name and Markdown as the site shows it: help and docstrings with it."""
    pages = {path.relative_to(DOCS).with_suffix("").as_posix(): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
    pages = {name: text + added(name) for name, text in pages.items()}
    for page, names in names_by_page().items():
        told = (f"\n### unisono.{name}\n\n{inspect.getdoc(getattr(unisono, name))}\n" for name in names)
        pages[f"reference/{page}"] += "".join(told)
    return pages


def main() -> None:
    for verb, said in VERBS.items():
        page = PAGES / f"{verb}.md"
        if not page.exists():
            page.write_text(f"# unisono {verb}\n\n{said}\n")
    INDEX.write_text(LIST.sub(lambda _: rows(), INDEX.read_text()))


if __name__ == "__main__":
    main()
