"""Sentences of README and docs that quote a figure: their numbers are those of the records in benchmarks/results.

    python benchmarks/quoted.py [--check]

writes the records' numbers into the sentences; ``--check`` writes nothing and ends with 1 where a page says something
else. `make figures` does it too. A sentence is told here once, with holes for its numbers.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from results import RESULTS, ROOT, Result, ResultError, read

MODELS, LINKS = ("GatedCNN", "GPT", "MLP", "SimpleCNN"), ("200mbit", "1gbit", "none")
LIVE = "from SIGKILL to the end of the interrupted step, beyond two undisturbed steps"
JOINED = "from SIGKILL of one of 2 workers until there are 2 again: a replacement"
RESTARTED = "from SIGKILL of one of 2 workers that train SimpleCNN: with a restart, to the next step"
SPARE = JOINED.replace("replacement", "spare")
UNDER_TORCHRUN = RESTARTED.replace("with a restart", "under torchrun with DDP")
HOLE = re.compile(r"\{[^{}]*\}")
NUMBER = r"(-?[0-9][0-9.,]*[0-9]|[0-9])"


@dataclass(frozen=True)
class Records:
    """The records of a folder, by file, each read once."""

    folder: Path
    _read: dict[str, list[Result]] = field(default_factory=dict, compare=False, repr=False)

    def all(self, file: str, what: str, **settings: object) -> list[Result]:
        """Return a file's records whose claim begins with `what`, with these settings.

        Raises:
            ResultError: There is none.
        """
        if file not in self._read:
            self._read[file] = read(self.folder / f"{file}.json")
        found = [result for result in self._read[file] if result.what.startswith(what)]
        found = [one for one in found if all(one.settings.get(key) == value for key, value in settings.items())]
        if not found:
            raise ResultError(f"{file}.json: expected a record {what!r} with {settings}, found none")
        return found

    def median(self, file: str, what: str, **settings: object) -> float:
        """Return the median of one claim, of which there may be several records, each beside another peer.

        Raises:
            ResultError: There is none, or there are several.
        """
        found = {one.median for one in self.all(file, what, **settings) if one.what == what}
        if len(found) != 1:
            raise ResultError(f"{file}.json: expected one median for {what!r} with {settings}, found {sorted(found)}")
        return float(found.pop())

    def ratios(self, file: str, what: str, **settings: object) -> tuple[float, float]:
        """Return the least and the largest ratio of several records."""
        found = [one.ratio for one in self.all(file, what, **settings) if one.ratio is not None]
        return min(found), max(found)


def peak(records: Records, who: str) -> tuple[float, float]:
    """Return the peak memory of a rank, with short parts and with long ones."""
    short, long = (f"peak memory of a rank, {who}, parts of {tokens} tokens" for tokens in (16, 128))
    return records.median("memory", short), records.median("memory", long)


def most_memory(records: Records) -> float:
    """Return the most that `exact` with 8 replicas takes, over DDP on as many ranks."""
    pairs = [("1 rank", "1 rank"), ("2 ranks", "2 ranks, shared memory"), ("2 ranks", "2 ranks, sockets")]
    return max(
        mine / ddp
        for theirs, ours in pairs
        for mine, ddp in zip(peak(records, f"exact V=8, {ours}"), peak(records, f"DDP, {theirs}"), strict=True)
    )


def between(records: Records, link: str) -> tuple[float, float]:
    """Return the ratios of a step on two hosts, two replicas, to DDP's."""
    claims = [f"a step of {model} on 2 hosts, link {link}" for model in MODELS]
    found = [records.ratios("hosts", claim, replicas=2) for claim in claims]
    return min(low for low, _ in found), max(high for _, high in found)


def between_with_more(records: Records) -> tuple[float, float]:
    """Return the ratios of a step on two hosts to DDP's where there are twice as many replicas as hosts."""
    claims = [f"a step of {model} on 2 hosts, link {link}" for model in MODELS for link in LINKS]
    found = [records.ratios("hosts", claim, replicas=4) for claim in claims]
    return min(low for low, _ in found), max(high for _, high in found)


def slower(records: Records, model: str, peer: str) -> float:
    """Return how many times as long a step with 8 replicas on one process takes."""
    found = records.all("replicas_cost", f"a step of Run with its replicas on one process, {model}", replicas=8)
    (ratio,) = [one.ratio for one in found if one.peer == peer]
    return 1 / ratio


def live_kills(records: Records) -> Iterator[tuple[str, str, tuple[float, ...]]]:
    """Return what pages say of the SIGKILLs that the other workers live through."""
    (landed,) = records.all("live_kills", "SIGKILLs lived through")
    joined = records.median("live_kills", "workers that have joined a run")
    yield "docs/faults.md", "{:,.0f} SIGKILLs in {:.0f} runs of digits", (landed.median, landed.settings["runs"])
    yield "docs/faults.md", "and {:,.0f} workers that joined in their places", (joined,)
    again = (f"steps {what} because a worker was killed" for what in ("replayed", "computed twice"))
    counts = tuple(records.all("live_kills", one)[0].median for one in again)
    yield "docs/faults.md", "{:.0f} steps were replayed, {:,.0f} computed twice", counts
    jobs = ("all jobs", "SimpleCNN, 2 workers")
    late = [records.all("live_kills", f"{LIVE} ({which}), 99th")[0].median for which in jobs]
    median = records.median("live_kills", f"{LIVE} (all jobs)")
    for page in ("docs/recovery.md", "docs/faults.md"):
        yield page, "{:.2f} s (median of all jobs), {:.1f} s (99th percentile", (median, late[0])
    yield "docs/faults.md", "SimpleCNN on 2 workers: {:.2f} s (99th percentile", (late[1],)
    restarted = records.median("thousand_kills", "SIGKILLs that have landed")
    lived = "{:,.0f} SIGKILLs that ended in a restart and {:,.0f} that the other workers lived through"
    yield "docs/why.md", lived, (restarted, landed.median)


def live_medians(records: Records) -> Iterator[tuple[str, str, tuple[float, ...]]]:
    """Return what the picture of one kill says of all the others."""
    late = records.all("live_kills", f"{LIVE} (all jobs)")[0]
    sentence = "{:,.0f} kills: {:.2f} s more than two undisturbed steps."
    yield "docs/pictures/live.svg", sentence, (len(late.samples), late.median)
    sentence = "2 workers, one killed: 2 again after {:.2f} s."
    yield "docs/pictures/live.svg", sentence, (records.median("live_missing", JOINED),)


def quotes(records: Records) -> Iterator[tuple[str, str, tuple[float, ...]]]:
    """Return page, sentence with holes, and the numbers of the holes."""
    hosts = [between(records, link) for link in LINKS]
    one_host = records.ratios("exact_vs_ddp", "a step of Run", ranks=2)
    joined, restart = records.median("live_missing", JOINED), records.median("live_kills", RESTARTED)
    live = records.median("live_kills", f"{LIVE} (all jobs)")
    flat = tuple(value for pair in hosts for value in pair)
    for page in ("README.md", "docs/costs.md"):
        yield page, "{:.2f} to {:.2f} times that of DDP over gloo (2 CPU ranks, four models)", one_host
        fast_and_slow = "{:.1f} to {:.1f} at 1 Gbit/s, {:.1f} to {:.1f} without a limit"
        yield page, "{:.1f} to {:.1f} times that of DDP at 200 Mbit/s, " + fast_and_slow, flat
        more = "{:.1f} to {:.1f} times that of DDP on two hosts with 4 replicas (four models)"
        yield page, more, between_with_more(records)
        yield page, "at most {:.2f} times DDP's, for a transformer with 50 M parameters", (most_memory(records),)
        more = "to the step's end: {:.2f} s more than two undisturbed steps (median; `train`, or `--live auto`)"
        yield page, more, (live,)
        yield page, "a new worker has joined after {:.1f} s; a restart takes {:.1f} s", (joined, restart)
    yield "docs/recovery.md", "{:.1f} s, or {:.2f} s if a spare", (joined, records.median("live_missing", SPARE))
    (beside,) = records.all("live_kills", UNDER_TORCHRUN)
    yield "docs/recovery.md", "{:.1f} s; torchrun with DDP: {:.1f} s", (restart, beside.median)
    yield from live_medians(records)
    yield from live_kills(records)
    plain = [slower(records, model, "plain torch, one batch") for model in ("SimpleCNN", "transformer 5.3 M")]
    for page in ("README.md", "docs/costs.md"):
        yield page, "takes {:.2f} (SimpleCNN) and {:.2f} times (a transformer) as long", tuple(plain)
    waits = "the training waits for a checkpoint, copied beside the next step"
    yield (
        "docs/costs.md",
        "waits {:.0f} ms for a checkpoint of 390 MB; `torch.save` takes {:.0f} ms",
        (
            records.median("checkpoint_stall", waits),
            records.median("checkpoint_stall", waits) * records.ratios("checkpoint_stall", waits)[1],
        ),
    )
    yield (
        "docs/costs.md",
        "{:.1f} s from the command to the first step of MNIST",
        (records.median("first_step", "from the command to the first step of MNIST"),),
    )
    yield "docs/costs.md", "needs {:.1f} GB of disk", (records.median("tests", "disk that a newcomer needs") / 1000,)
    yield (
        "docs/costs.md",
        "a witness in every step adds {:.0f} % of CPU time (4 workers, 8 replicas)",
        (records.median("witness", "CPU time of all ranks that a witness in every step adds"),),
    )
    phases = records.all("phase_cost", "stamps and records of phases, of the smallest step")
    yield "docs/costs.md", "at most {:.1f} % of the smallest step", (max(one.median for one in phases),)
    two = [records.ratios("scaling_pictures", f"{job} on 2 workers")[0] for job in ("mnist", "imdb")]
    yield "docs/scaling.md", "{:.1f} and {:.1f} times as fast on 2 cores", tuple(two)
    for row, who in MEMORY.items():
        parts = zip(*(peak(records, one) for one in who), strict=True)
        yield "docs/strategies.md", row, tuple(value for part in parts for value in part)


#: rows of the table of memory in docs/strategies.md, and whose figures stand there
MEMORY = {
    "| torch, 1 rank | 3 + 1 | {:.0f} MB | {:.0f} MB |": ("torch, 1 rank",),
    "| DDP, 1 rank | 3 + 2 | {:.0f} MB | {:.0f} MB |": ("DDP, 1 rank",),
    "| `exact`, V = 1, 1 rank | 3 + 1 | {:.0f} MB | {:.0f} MB |": ("exact V=1, 1 rank",),
    "| `exact`, V = 8, 1 rank | 3 + 3 | {:.0f} MB | {:.0f} MB |": ("exact V=8, 1 rank",),
    "| DDP, 2 ranks; with `gradient_as_bucket_view` | 3 + 2; 3 + 1 | {:.0f}; {:.0f} MB | {:.0f}; {:.0f} MB |": (
        "DDP, 2 ranks",
        "DDP with bucket views, 2 ranks",
    ),
    "| `exact`, V = 2, 2 ranks; over sockets | 3 + 1 | {:.0f}; {:.0f} MB | {:.0f}; {:.0f} MB |": (
        "exact V=2, 2 ranks, shared memory",
        "exact V=2, 2 ranks, sockets",
    ),
    "| `exact`, V = 8, 2 ranks; over sockets | 3 + 2 | {:.0f}; {:.0f} MB | {:.0f}; {:.0f} MB |": (
        "exact V=8, 2 ranks, shared memory",
        "exact V=8, 2 ranks, sockets",
    ),
    "| `fsdp`, V = 8, 2 ranks | 3/2 + 2 | {:.0f} MB | {:.0f} MB |": ("fsdp V=8, 2 ranks",),
}


def filled(text: str, sentence: str, values: tuple[float, ...]) -> tuple[str, str, str]:
    """Return a page with the numbers put into a sentence, and the sentence as it was and as it is.

    Raises:
        ResultError: The page does not have the sentence exactly once.
    """
    holes = HOLE.findall(sentence)
    parts = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in HOLE.split(sentence)]
    found = list(re.finditer(NUMBER.join(parts), text))
    if len(found) != 1 or len(holes) != len(values):
        raise ResultError(f"expected the sentence {sentence!r} once, found it {len(found)} times")
    (match,) = found
    now = match[0]
    for place in range(len(holes), 0, -1):
        start, end = match.start(place) - match.start(), match.end(place) - match.start()
        now = now[:start] + holes[place - 1].format(values[place - 1]) + now[end:]
    return text[: match.start()] + now + text[match.end() :], match[0], now


def put(root: Path, folder: Path, *, is_check: bool) -> list[str]:
    """Fill the sentences of the pages below `root`; return what is wrong (with `is_check`, also what would change)."""
    wrong = []
    for page, sentence, values in quotes(Records(folder)):
        path = root / page
        try:
            text, was, now = filled(path.read_text(), sentence, values)
        except ResultError as error:
            wrong.append(f"{page}: {error}. Hint: change the sentence in benchmarks/quoted.py with the page's")
            continue
        if was != now and is_check:
            wrong.append(f"{page}: expected {now!r}, as the records give it, found {was!r}. Hint: make figures")
        elif was != now:
            path.write_text(text)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; code 1 where a page says something else")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the records")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder of README.md and docs")
    given = parser.parse_args()
    wrong = put(given.root, given.results, is_check=given.check)
    print(*wrong, sep="\n", end="\n" * bool(wrong), file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
