"""The site's search, without machinery: from Markdown pages to an index, from a query to pages in order.

`docs/_static/search.js` has `words`, `stem` and `rank` once more, for the browser; a test holds them equal.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

#: words that say nothing about a page
COMMON = re.findall(
    r"\w+",
    """
    a an and are as at be by can do does for from how i if in is it its my not of on or that the to what with
""",
)
#: long numbers and checksums, which nobody looks for
NUMBERS = re.compile(r"[0-9]{4,}|(?=[a-f]*[0-9])[0-9a-f]{7,}")
#: words of other programs, and the word of these pages
SAME = {
    "oom": "memory", "ckpt": "checkpoint", "node": "host", "multinode": "machine", "crash": "recovery",
    "dataloader": "loader", "deadlock": "hang", "stuck": "hang", "slow": "speed", "vram": "memory",
    "huggingface": "hugging", "wds": "shards", "webdataset": "shards", "k8s": "kubernetes", "jupyter": "notebook",
    "reproducible": "determinism", "reproducibility": "determinism", "amp": "precision", "bf16": "precision",
    "price": "cost", "lr": "rate",
}  # fmt: skip
#: `<!-- found by: words -->` in a section: words under which it is found as if they were its heading's
FOUND_BY = re.compile(r"<!-- found by: (.*?) -->", re.DOTALL)
#: how much a page of a kind counts; a page of `LAST` comes after all others
FACTOR = {
    "reference": 0.7, "commands": 0.75, "migration": 0.8, "tour": 0.5, "measurements": 0.3, "figures": 0.3,
    "can-it": 0.7, "glossary": 0.6, "changelog": 0.2, "troubleshooting": 0.9, "faults": 0.6, "index": 0.4,
    "reference/index": 0.3,
}  # fmt: skip
LAST = ("design", "changelog")
EXCERPT_FROM = 500


def words(text: str) -> list[str]:
    """Return the words of a text, each in its short form."""
    return [stem(word) for word in re.findall(r"[a-z0-9]+", text.lower()) if word not in COMMON]


def stem(word: str) -> str:
    """Return what `resume`, `resumes`, `resumed` and `resuming` have in common."""
    if len(word) > 4:
        word = re.sub(r"(?:ations?|ating|ated|ates?|ing|ed|es|(?<!s)s)$", "", word)
    elif len(word) == 4:
        word = re.sub(r"(?<!s)s$", "", word)
    return re.sub(r"([a-z])\1$", r"\1", word).rstrip("e") or word


def indexed(text: str) -> list[str]:
    """Return the words of a text under which it is found: those of names like ``EarlyStopping`` too."""
    names = re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b", text)
    text = NUMBERS.sub(" ", text)
    return words(text) + words(" ".join(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name) for name in names))


def plain(markdown: str) -> str:
    """Return Markdown as text: no targets of links, no comments, no marks."""
    text = re.sub(r"<!--.*?-->|<[^>\n]+>|^```.*$|^:::.*$|^\|[-|: ]+\|$", " ", markdown, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^\s*(?:\.\. auto\w+:: |:[a-z-]+:).*$", lambda m: m[0].partition(":: ")[2], text, flags=re.MULTILINE)
    return " ".join(re.sub(r"[*`]+", "", re.sub(r"\{[a-z:]+\}|[|#>]+", " ", text)).split())


def anchor(heading: str) -> str:
    """Return the name that Sphinx gives to a heading; a public name has its own."""
    if re.fullmatch(r"unisono\.\w+", heading):
        return heading
    return re.sub(r"^[-0-9]+|-+$", "", re.sub(r"[^a-z0-9]+", "-", plain(heading).lower()))


def sections(markdown: str) -> Iterator[tuple[str, str]]:
    """Return heading and text of a page's sections; the first heading is the page's title."""
    blocks = re.compile(r"^(`{3,})(?!`)[^\n]*\n.*?^\1`*$", re.MULTILINE | re.DOTALL)
    bare = blocks.sub(lambda block: block[0].replace("\n#", "\n "), markdown)
    parts = re.split(r"^#{1,3} (.+)$", bare, flags=re.MULTILINE)
    yield from zip(parts[1::2], parts[2::2], strict=True)


def make(pages: dict[str, str]) -> dict[str, object]:
    """Return the index of pages: name (``tour/index``) to Markdown.

    A section's weight for a word grows with how often it says the word, less so in a long section; words of its
    heading count three times as much as any number of words of its text, words of the page's title five times.
    """
    found = []
    for name, markdown in sorted(pages.items()):
        parts = list(sections(markdown))
        title = plain(parts[0][0]) if parts else ""  # a page that only includes another has none
        for place, (heading, text) in enumerate(parts):
            where, said = (anchor(heading), plain(heading)) if place else ("", "")
            found.append((name, title, where, said, plain(text), " ".join(FOUND_BY.findall(text))))
    counts = [Counter(indexed(text)) for *_, text, _ in found]
    mean = sum(sum(count.values()) for count in counts) / len(counts)
    holders = Counter(word for count in counts for word in count)
    postings: dict[str, list[list[float]]] = defaultdict(list)
    for number, ((name, title, _, heading, _, wanted), count) in enumerate(zip(found, counts, strict=True)):
        long = 0.3 + 0.7 * sum(count.values()) / mean
        of_page, of_heading, by = (
            set(indexed(title)),
            set(indexed(heading)),
            set(indexed(wanted)),
        )
        for word in {*count, *of_page, *of_heading, *by}:
            weight = count[word] / (count[word] + long)
            weight += 3 * (word in of_heading) / max(1, len(of_heading)) ** 0.5
            weight += (1 if heading else 5) * (word in of_page) / max(1, len(of_page)) ** 0.5 + 3 * (word in by)
            rare = math.log(1 + len(found) / (0.5 + holders[word]))
            postings[word].append([number, round(weight * rare * factor(name), 1)])
    for word, same in SAME.items():
        taken = {int(number): weight for number, weight in postings.get(stem(word), [])}
        for number, weight in postings.get(stem(same), []):
            taken[int(number)] = round(max(taken.get(int(number), 0), 0.7 * weight), 1)
        postings[stem(word)] = [[number, weight] for number, weight in sorted(taken.items())]
    rows = [[name, title, where, heading, text[:EXCERPT_FROM]] for name, title, where, heading, text, _ in found]
    return {"sections": rows, "words": dict(sorted(postings.items())), "last": LAST, "common": COMMON}


def factor(name: str) -> float:
    """Return how much a page counts, by its kind."""
    return FACTOR.get(name, FACTOR.get(name.partition("/")[0], 1.0))


def rank(index: dict, query: str) -> list[int]:
    """Return sections in order, the best of each page; pages of `LAST` come after all others."""
    asked = words(query)
    scores: dict[int, float] = defaultdict(float)
    hits: Counter[int] = Counter()
    for word in asked:
        for number, weight in _postings(index["words"], word).items():
            scores[number] += weight
            hits[number] += 1
    best: dict[str, tuple[bool, float, int]] = {}
    for number, score in scores.items():
        name = index["sections"][number][0]
        key = (name.split("/")[0] in index["last"], -score * (hits[number] / len(asked)) ** 2, number)
        best[name] = min(best.get(name, key), key)
    return [number for *_, number in sorted(best.values())]


def _postings(known: dict[str, list[list[float]]], word: str) -> dict[int, float]:
    """Return the sections of a word; of a word that stands nowhere, those of the words that begin with it."""
    alike = [word] if word in known else [other for other in known if len(word) > 1 and other.startswith(word)]
    found: dict[int, float] = {}
    for other in alike:
        for number, weight in known[other]:
            found[number] = max(found.get(number, 0), weight)
    return found
