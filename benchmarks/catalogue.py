"""What `make bench` runs: every benchmark, how long it takes, and what it needs. Add a benchmark here."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from origin import ROOT, command_line

HERE = Path(__file__).parent
BUILD = ROOT / "build" / "bench"
OTHERS = ("accelerate", "ignite", "lightning")
EXTRAS = ("accelerate", "ipykernel", "lightning_fabric", "nbclient", "peft", "transformers")


@dataclass(frozen=True)
class Benchmark:
    """One call of a benchmark.

    Attributes:
        name: What ``--only`` takes.
        words: The program of ``benchmarks/`` and its options. A word in braces stands for one of `PLACES`; one that is
            not here is left out together with its word, unless the benchmark needs it.
        minutes: What it takes on two cores, about.
        quick: Its options in the short run, at full sizes but with fewer rounds; None: left out there.
        quick_minutes: What that takes.
        needs: Names of `NEEDS`.
        recorded: Its records' command, where that is not the command line; a pair for the whole and the short run.
        resumes: It skips by itself what is there, and is called each time.
        by_name: Runs only where ``--only`` names it: it takes hours, or proves no speed.
    """

    name: str
    words: str
    minutes: float
    quick: str | None = None
    quick_minutes: float = 0
    needs: tuple[str, ...] = ()
    recorded: tuple[str, str] | None = None
    resumes: bool = False
    by_name: bool = False

    @property
    def script(self) -> str:
        """The program's file below ``benchmarks/``."""
        return self.words.split()[0]

    def command(self, *, is_quick: bool = False) -> list[str]:
        """Return the command."""
        script, *words = shlex.split(f"{self.script} {self.quick}" if is_quick else self.words)
        python = next(
            (found for need, get in PYTHONS.items() if need in self.needs and (found := get())), sys.executable
        )
        return [python, str(HERE / script), *self._filled(words)]

    def _filled(self, words: list[str]) -> Iterator[str]:
        for word in words:
            mark = next((mark for mark in PLACES if f"{{{mark}}}" in word), None)
            value = PLACES[mark]() if mark else ""
            if mark is None or value:
                yield word.replace(f"{{{mark}}}", value)

    def said(self, *, is_quick: bool = False) -> str:
        """Return the command that its records bear."""
        if self.recorded is not None:
            return self.recorded[is_quick]
        return command_line(self.command(is_quick=is_quick)[1:])

    def lacks(self) -> str:
        """Return why it cannot run here, empty where it can."""
        return "; ".join(why for need in self.needs if (why := NEEDS[need]()))


def data(name: str) -> str:
    """Return where a data set is; empty where it is not."""
    places = [Path(os.environ.get("UNISONO_TEST_DATA", "/nowhere")), ROOT.parent / "shared" / "data"]
    return next((str(place / name) for place in places if (place / name).exists()), "")


@cache
def python_with(packages: tuple[str, ...], environment: str) -> str:
    """Return a Python that has these packages: this one, or that of an environment in build/; empty: there is none."""
    if all(map(find_spec, packages)):
        return sys.executable
    python = ROOT / "build" / environment / "bin" / "python"
    asked = f"import importlib.util as u; raise SystemExit(not all(map(u.find_spec, {packages})))"
    has_all = python.exists() and subprocess.run([python, "-c", asked], check=False).returncode == 0
    return str(python) if has_all else ""


def others() -> str:
    """Return a Python that has the other frameworks."""
    return python_with(OTHERS, "public")


def extras() -> str:
    """Return a Python that has what the examples need."""
    return python_with(EXTRAS, "examples")


def lines() -> str:
    """Return where the runs of `time_to_accuracy` are kept: those of one ``src`` are not mixed with another one's."""
    asked = (["rev-parse", "HEAD:src"], ["diff", "HEAD", "--", "src"])
    told = [subprocess.run(["git", "-C", ROOT, *words], capture_output=True, check=False).stdout for words in asked]
    return str(BUILD / f"lines-{hashlib.sha256(b''.join(told)).hexdigest()[:12]}")


def kills() -> str:
    """Return where the thousand kills go on."""
    return str(BUILD / "kills")


def live() -> str:
    """Return where the kills that are lived through go on."""
    return str(BUILD / "live")


def lacking_network() -> str:
    """Return why no hosts can be made."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    missing = [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]
    return f"needs {' and '.join(missing)} (iproute2, util-linux)" if missing else ""


IMDB = "imdb/aclImdb_labelled_50k.tar.gz"
PLACES: dict[str, Callable[[], str]] = {
    "imdb": lambda: data(IMDB), "mnist": lambda: data("mnist"), "others": others, "lines": lines, "kills": kills,
    "live": live,
}  # fmt: skip
PYTHONS: dict[str, Callable[[], str]] = {"others": others, "extras": extras}
HINT = "Hint: a directory in UNISONO_TEST_DATA"
NEEDS: dict[str, Callable[[], str]] = {
    "hosts": lacking_network,
    "others": lambda: "" if others() else f"needs a Python with {', '.join(OTHERS)}. Hint: make public",
    "extras": lambda: "" if extras() else f"needs a Python with {', '.join(EXTRAS)}. Hint: make examples",
    "imdb": lambda: "" if data(IMDB) else f"needs {IMDB}. {HINT}",
    "mnist": lambda: "" if data("mnist") else f"needs MNIST. {HINT}",
}


def to_accuracy(
    kind: str, job: str, minutes: float, options: str, quick: str | None = None, *, by_name: bool = False
) -> Benchmark:
    """Return a part of `time_to_accuracy`, which goes on by itself where it was stopped."""
    common = f"{kind} --job {job} --data {{{job}}} --others={{others}} --minutes 600"
    said = f"python benchmarks/time_to_accuracy.py {kind} --job {job} --data DATA"
    return Benchmark(
        f"{kind}-{job}", f"time_to_accuracy.py {common} --lines {{lines}} {options}", minutes,
        quick and f"{common} --lines {{lines}}-quick {quick}", 2, needs=(job,), by_name=by_name,
        recorded=(said + limit_in(options), said + limit_in(quick or "")),
    )  # fmt: skip


def limit_in(options: str) -> str:
    """Return the part of the options that a record's command says."""
    return "".join(re.findall(r" --limit \d+", f" {options}"))


OURS = "--only DDP --only 'unisono, fast' --only 'unisono, best'"
TABLE = (
    Benchmark("shm", "shm_against_gloo.py", 3, "", 3),
    Benchmark("ddp-over-shm", "ddp_over_shm.py", 1, "--rounds 6", 0.5),
    Benchmark("exact-vs-ddp", "exact_vs_ddp.py", 2, "--rounds 3", 1),
    Benchmark("overhead-1", "overhead.py -n 1", 3, "-n 1 --rounds 2", 1.5, ("others",)),
    Benchmark("overhead-2", "overhead.py -n 2", 4, "-n 2 --rounds 2", 2, ("others",)),
    Benchmark("overhead-1-samples", "overhead.py -n 1 --samples", 3, needs=("others",)),
    Benchmark("overhead-2-samples", "overhead.py -n 2 --samples", 4, needs=("others",)),
    Benchmark("start-up", "start_up.py", 2, "--rounds 3", 1),
    Benchmark("first-step", "first_step.py --mnist {mnist}", 4, "--mnist {mnist} --rounds 3", 1, ("mnist",)),
    Benchmark("replicas-cost", "replicas_cost.py", 3),
    Benchmark("lm-step", "lm_step.py", 1, "--rounds 3", 0.5),
    Benchmark("loader", "loader.py", 3, "--rounds 3", 1),
    Benchmark("checkpoint-stall", "checkpoint_stall.py", 1, "--rounds 3", 0.5),
    Benchmark("memory", "memory.py", 8, "--only 'DDP, 1 rank' --only 'DDP, 2 ranks' --only 'exact V=8, 1 rank' "
              "--only 'exact V=8, 2 ranks, shared memory'", 3),
    Benchmark("data-start", "data_start.py --imdb {imdb} --mnist {mnist}", 4,
              "--imdb {imdb} --mnist {mnist} --rounds 1", 1, ("imdb", "mnist")),
    Benchmark("codec", "codec.py --imdb {imdb} --mnist {mnist}", 4, needs=("imdb", "mnist")),
    Benchmark("rounded-accuracy", "rounded_accuracy.py --imdb {imdb} --mnist {mnist}", 14, needs=("imdb", "mnist"),
              by_name=True),
    Benchmark("phase-cost", "phase_cost.py", 1, "--rounds 1", 0.5),
    Benchmark("pipeline-bubble", "pipeline_bubble.py", 4, "--rounds 1", 2),
    Benchmark("text-step", "text_step.py", 2),
    Benchmark("mnist-step", "mnist_step.py", 3, "--rounds 15", 1),
    Benchmark("shared-gradients", "shared_gradients.py", 1, "--rounds 9", 0.5),
    Benchmark("witness", "witness.py", 20, by_name=True),
    Benchmark("restart-time", "restart_time.py", 4, "--rounds 3", 2),
    Benchmark("proof-picture", "proof_picture.py", 2),
    Benchmark("scaling-pictures", "scaling_pictures.py", 10),
    Benchmark("forecast-error", "forecast_error.py", 10, "--rounds 1", 4),
    Benchmark("time-examples", "time_examples.py", 8, needs=("extras",)),
    Benchmark("play-examples", "play_examples.py", 20, "--rounds 1", 15, ("extras",), by_name=True),  # make examples
    Benchmark("hosts", "hosts.py --rounds 6", 50,
              "--hosts 2 --models SimpleCNN,MLP --links none,1gbit --rounds 4 --ways=", 3, ("hosts",), resumes=True),
    to_accuracy("system", "mnist", 5, "--limit 12800", "--limit 6400 --repeats 1"),
    to_accuracy("system", "imdb", 14, "--limit 6400", "--limit 1920 --repeats 1"),
    to_accuracy("accuracy", "mnist", 16, f"--repeats 2 {OURS}"),
    to_accuracy("accuracy", "imdb", 20, f"--repeats 2 {OURS}"),
    to_accuracy("seeds", "mnist", 14, "", by_name=True),
    to_accuracy("seeds", "imdb", 40, "--epochs 3", by_name=True),
    Benchmark("past-steps", "past_steps.py", 30, by_name=True),
    Benchmark("live-kills", "live_kills.py {live}", 25, resumes=True, by_name=True,  # make live
              recorded=("python benchmarks/live_kills.py",) * 2),
    Benchmark("live-cost", "live_kills.py --only cost", 2, by_name=True),
    Benchmark("live-beside", "live_kills.py --only restart", 3, by_name=True),
    Benchmark("live-hosts", "live_hosts.py", 5, by_name=True),
    Benchmark("live-missing", "live_missing.py", 6, by_name=True),
    Benchmark("cpu-level", "cpu_level.py", 11, by_name=True),
    Benchmark("live-picture", "live_kills.py --only picture", 1, by_name=True),
    Benchmark("thousand-kills", "thousand_kills.py {kills} --exec-every 10", 65, by_name=True,
              recorded=("python benchmarks/thousand_kills.py DIR",) * 2),
)  # fmt: skip
