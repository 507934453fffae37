"""The documentation is about this code: messages, names, pictures and pages exist."""

import ast
import importlib.util
import json
import re
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import unisono

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "unisono"
HOLE = "…"


def load(name: str) -> types.ModuleType:
    """Return a module that lies beside the pages."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generated = load("generated")


def text_of(node: ast.expr) -> str:
    """Return the text that an expression is written as, with holes for values."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else HOLE
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return HOLE


def messages(source: str) -> Iterator[str]:
    """Return every text in a source, as `text_of` gives it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
            yield text_of(node)


def is_said(heading: str, said: str) -> bool:
    """Whether the parts of a heading between its holes follow each other in one of the texts (one a line)."""
    parts = [re.escape(part.strip()) for part in heading.split(HOLE) if part.strip()]
    return re.search(".*".join(parts), said) is not None


@pytest.fixture(scope="module")
def said() -> str:
    texts = {text.replace("\n", " ") for path in SOURCE.rglob("*.py") for text in messages(path.read_text())}
    return "\n".join(sorted(texts))


def test_troubleshooting_is_about_messages_of_this_code(said):
    """Each heading is, but for its holes, a text of the source; a made-up one would be noticed."""
    page = (DOCS / "troubleshooting.md").read_text().partition("## Messages of others")[0]
    headings = re.findall(r"^### `(.*)`$", page, re.M)
    assert len(headings) > 40
    assert [heading for heading in headings if not is_said(heading, said)] == []
    assert not is_said("expected … bananas, got …", said)
    assert not is_said("got … expected workers <=", said)


def test_the_reference_has_every_public_name():
    """Each public name stands on one page of docs/reference, and no other name; its docstring has a first sentence."""
    pages = generated.names_by_page()
    named = [name for names in pages.values() for name in names]
    assert sorted(named) == sorted(unisono.__all__), "write `.. autoclass:: unisono.NAME` into a page of docs/reference"
    assert [name for name in named if len(generated.sentence(name)) < 10] == []
    assert len(pages) >= 6


def test_every_verb_has_a_page():
    """docs/commands has a page for each verb, listed in its index; the site puts its real help there."""
    pages = {page.stem for page in (DOCS / "commands").glob("*.md")} - {"index", "names"}
    assert pages == set(generated.VERBS), "run: python docs/generated.py"
    index = (DOCS / "commands" / "index.md").read_text()
    assert generated.rows() in index, "run: python docs/generated.py"
    assert "--checkpoint-every" in generated.added("commands/train")  # an option that the short help does not show
    assert "--rounds" in generated.added("commands/bench") or "unisono bench links" in generated.added("commands/bench")
    assert "`--clip-norm`" in generated.added("commands/names")
    assert generated.added("commands/index") == generated.added("quickstart") == ""


def test_the_pictures_are_what_the_code_draws():
    """docs/draw_concepts.py draws the pictures as they are kept, from the functions that train."""
    drawing = load("draw_concepts")
    kept = {path.stem: path.read_text() for path in (DOCS / "pictures" / "concepts").glob("*.svg")}
    assert kept == {name: draw() for name, draw in drawing.DRAWN.items()}


def test_what_pages_point_at_is_there():
    """Pictures and included programs exist, and every picture of the documentation is shown or linked somewhere."""
    pages = {path: path.read_text() for path in [ROOT / "README.md", *DOCS.rglob("*.md")]}
    shown = set()
    for path, text in pages.items():
        for target in re.findall(r"\]\(([^):#]+\.(?:png|svg))\)|^```\{literalinclude\} (\S+)", text, re.M):
            found = (path.parent / (target[0] or target[1])).resolve()
            assert found.is_file(), f"{path.name} points at {target}"
            shown.add(found)
    pictures = {path for path in (DOCS / "pictures").rglob("*.*") if path.suffix in (".svg", ".png")}
    assert pictures - shown == set()


def anchors(page: str) -> set[str]:
    """Return the names of a page's headings as GitHub makes them; the site knows them, too."""
    headings = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in re.findall(r"^#+ (.*)$", page, re.M)]
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_to_headings_work_on_github():
    """Each names a heading of its page there, where dots and signs are dropped; the site alone has other names too."""
    assert anchors("# a\n## `torch.compile` & [more](x.md) …\n") == {"a", "torchcompile--more-"}
    pages = {path.resolve(): path.read_text() for path in [ROOT / "README.md", *DOCS.rglob("*.md")]}
    known, links = {path: anchors(text) for path, text in pages.items()}, 0
    for path, text in pages.items():
        for target, name in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", text):
            assert name in known[(path.parent / target).resolve() if target else path], f"{path}: {target}#{name}"
            links += 1
    assert links > 100


def without_header(markdown: str) -> list[str]:
    """Return the first rows of tables that lack a header, which are shown as plain text with pipes."""
    text = re.sub(r"^(`{3,}).*?^\1`*$", "", markdown, flags=re.M | re.S)
    tables = [table.splitlines() for table in re.findall(r"(?:^\|.*\n?)+", text, re.M)]
    return [rows[0] for rows in tables if not re.fullmatch(r"\|(?: *:?-+:? *\|)+", "".join(rows[1:2]))]


def test_every_table_has_a_header():
    """Also what follows an empty line, which ends a table."""
    assert without_header("| a |\n|---|\n| b |\n\n| c |\n| d |\n") == ["| c |"]
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    assert {path.name: rows for path in pages if (rows := without_header(path.read_text()))} == {}


def test_every_example_is_listed():
    """docs/examples.md names each program of examples/."""
    listed = (DOCS / "examples.md").read_text()
    programs = [path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb")]
    assert [name for name in programs if f"| `{name}` |" not in listed] == []


def test_lines_of_examples():
    """The lines that docs/examples.md tells are those of the programs, and of the notebook's cells."""
    rows = re.findall(r"^\| `([a-z_]+\.(?:py|ipynb))` \| (\d+) \|", (DOCS / "examples.md").read_text(), re.M)
    assert len(rows) > 20
    for name, lines in rows:
        text = (ROOT / "examples" / name).read_text()
        if name.endswith(".ipynb"):
            cells = [cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
            text = "\n".join("".join(cell) for cell in cells)
        assert len(text.splitlines()) == int(lines), name
