"""Is what people read in plain English? Phrases that say less than they seem to, sentences and pages that are too long.

    python docs/check_text.py [FILE...]

prints `file:line: what was found: what to write` and ends with 1 where there is something. Part of `make check`, with
codespell, which checks the spelling. Not read: the history (measurements, changelog, design notes), generated pages.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
HISTORY = ("docs/measurements.md", "docs/figures.md", "docs/changelog.md", "docs/design/")
MOST_WORDS, MOST_IN_ALL = 32, 50
"""Of a sentence: in a part that ends with a colon or semicolon, and in all parts together."""
MOST_LINES = 130
"""Of a page without a list of its sections."""

#: what is not said, and what to say
PHRASES = {
    r"does not depend on who computes it": "is the same on any number of workers",
    r"joins? the world it finds": "finds the other workers",
    r"nobody's business": "does not change the result",
    r"reach(es)? a weight": "changes a weight",
    r"\bplayed by\b|replicas are played": "computed by",
    r"take model and optimizer over": "prepare the model and the optimizer",
    r"starts? anew": "starts again from the beginning",
    r"computed, not drawn": "a function of seed and epoch",
    r"interruption could tear": "an interruption could break",
    r"where two runs part": "where two runs differ",
    r"written beside the training": "written in the background",
    r"the words of older launchers": "options of older launchers",
    r"slot is given up": "slot is not used again",
    r"the others carry on": "the others go on",
    r"\bstands? in (the )?(figures?|pictures?|docstrings?|results?|ledger|score|x\b)": "is in, or: x says",
    r"whoever computes": "on any number of workers",
    r"\bwhere it lies\b|goes? on where it was|what one sees|\bas whose\b|\bby whom\b|\bof whom\b": "say who does what",
    r"(function|run|loader|data set)( of weights| with x)? is asked (for|under|without)": "say who calls what",
    r"\b(simply|just|obviously|of course|easily)\b": "leave the word out",
    r"\b(utili[sz]e[sd]?|utili[sz]ation)\b": "use",
    r"\bin order to\b": "to",
    r"\bleverag\w+": "use",
    r"\bseamless(ly)?|\bpowerful\b|\bcutting-edge\b|\bblazing\w*": "say what it does",
}


def without_code(markdown: str) -> str:
    """Return a page without code, targets of links and what it quotes, with as many lines."""
    lines = lambda found: "\n" * found[0].count("\n")  # noqa: E731 - short
    text = re.sub(r"^(`{3,})(?!`).*?^\1`*$|<!--.*?-->", lines, markdown, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", lambda found: "]" + lines(found), text)
    return re.sub(r"`[^`]*`|\"[^\"\n]*\"", lambda found: "x" + lines(found), text)


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Return the sentences of a text, those of cells too, with the lines on which they begin; headings have none."""
    text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    item = re.compile(r"(?=^\s*(?:[-*]|\d+\.) )", re.MULTILINE)
    for block in re.finditer(r"(?:^(?!\s*$).*\n?)+", text, re.MULTILINE):
        start = block.start()
        for part in item.split(block[0]):
            for said in re.split(r"(?<=[.?!|])(?=\s)", part):
                if said.strip():
                    begin = start + len(said) - len(said.lstrip())
                    yield text.count("\n", 0, begin) + 1, re.sub(r"^(?:[-*]|\d+\.) ", "", " ".join(said.split()))
                start += len(said)


def found_in(markdown: str) -> Iterator[tuple[int, str]]:
    """Return line and complaint for what is not plain."""
    text = without_code(markdown)
    if len(markdown.splitlines()) > MOST_LINES and "**On this page**" not in text:
        yield 1, f"{len(markdown.splitlines())} lines and no list of sections: **On this page**: [words](#heading), ..."
    for line, sentence in sentences(text):
        parts = [len(part.split()) for part in re.split(r"(?<=[:;])(?=\s)", sentence)]
        if max(parts) > MOST_WORDS or sum(parts) > MOST_IN_ALL:
            most = f"{MOST_WORDS}, {MOST_IN_ALL} with colons and semicolons"
            yield line, f"a sentence of {sum(parts)} words: at most {most}, make two of it: {sentence[:60]} ..."
    for phrase, better in PHRASES.items():
        for found in re.finditer(phrase.replace(" ", r"\s+"), text, re.IGNORECASE):
            yield text.count("\n", 0, found.start()) + 1, f"'{' '.join(found[0].split())}': {better}"


def pages() -> list[Path]:
    """Return the pages that are checked."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if not page.relative_to(ROOT).as_posix().startswith(HISTORY)]


def main(files: list[str]) -> int:
    wrong = 0
    for page in [Path(file) for file in files] or pages():
        for line, complaint in found_in(page.read_text()):
            print(f"{page.relative_to(ROOT) if page.is_relative_to(ROOT) else page}:{line}: {complaint}")
            wrong += 1
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
