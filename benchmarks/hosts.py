"""Speed between hosts: the exact step beside torch DDP with gloo, over links of several rates, and beside the limit.

    python benchmarks/hosts.py [--hosts 2,3] [--models SimpleCNN,GatedCNN,MLP,GPT] [--links none,10gbit,1gbit,200mbit]
                               [--ways ddp-whole,...] [--ranks 1] [--replicas 2,4] [--run JSON] [--rounds 9]
                               [--seconds 200] [--pinned] [--again] [--picture] [--quick] [--out DIR]

Hosts are network namespaces of this machine with a host name each, two joined by a veth pair, more by a bridge; ``tc``
limits what each of them sends. ``--ranks`` processes a host (1), one thread each. Contestants are processes of their
own on the same hosts, which take blocks of steps in turn, every other round backwards; all keep freed memory as `Run`
does. DDP is torch's own with its own buckets (their sizes are recorded) and gradients as views of them; ``ddp-whole``
(one bucket), ``ddp-bf16`` and ``ddp-powersgd`` are told beside it where ``--ways`` names them, and so are
``rounded-bf16`` and ``rounded-int8``, the exact step with ``--compress``, one replica a rank. ``live`` is the exact
step, one replica a rank, with live recovery on, beside the same step without it: two runs of the same processes, which
take short blocks in turn, five for each round, since processes alone differ by 3 %. A sample is the time of a step in a
block, of the slowest rank. With ``--pinned`` each rank keeps to one core, as hosts do that share none: a variant with
records of its own.

The limit is the longer of two: computing, a bare loop over the same micro-batches on all ranks at once without any
exchange; and the wire, 2 (H - 1) / H of the gradients' bytes, of H hosts, over what a plain TCP stream reaches between
them while all send. ``sent`` is what the network device has counted, of the rank that sends most.

Bars: at least DDP's speed; 1.15 times it where the limit would allow 1.25; 90 % of the limit; with live recovery 0.99
of the speed without. Replicas that the hosts
cannot share evenly (8 on 3) are told. A cell (hosts, model, link) is recorded when it is done, and not taken again of
the same ``src`` without ``--again``; it ends after ``--seconds`` at the latest, with fewer rounds, but never less than
one. ``--run`` are options of `Run` as JSON, for a variant with records of its own; where it is
``{"strategy": {"name": "exact", "island_steps": K}}``, blocks of ours have whole rounds, the wire counts once a round,
and everything is told. ``--picture`` draws
docs/pictures/hosts.svg of the records and measures nothing. Needs root, `ip` and `tc`.
"""

import argparse
import contextlib
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catalogue import lacking_network
from harness import keep, parser_of, rounds_of, slug, stop
from hosts_records import OWN, ROUNDED, TELLS, draw, records, show
from origin import ROOT, is_same_source
from results import RESULTS, read, rounded

from unisono.system.processes import die_with_parent

sys.path.append(str(ROOT / "tests"))
from cluster.namespaces import Network, remove_left_overs

HERE = Path(__file__).parent
SAMPLES = {"SimpleCNN": 64, "GatedCNN": 64, "MLP": 64, "GPT": 8}
"""Of a rank and a step."""
LINKS = ("none", "10gbit", "1gbit", "200mbit", "100mbit", "10mbit")
PATIENCE_S = 600
UNITS = {"gbit": 10**9, "mbit": 10**6}


@dataclass
class Contestant:
    """Its processes on all hosts, in rank order."""

    name: str
    processes: list[subprocess.Popen[bytes]]
    logs: list[Path]

    def ask(self, each: Sequence[dict[str, Any]] = (), **all_of_them: Any) -> list[dict[str, Any]]:
        """Ask all of them at once, and return what they answer."""
        for index, process in enumerate(self.processes):
            assert process.stdin is not None
            process.stdin.write(json.dumps(all_of_them | (each[index] if each else {})).encode() + b"\n")
            process.stdin.flush()
        return self.answers()

    def answers(self) -> list[dict[str, Any]]:
        """Return a line of each."""
        return [self._answer(index) for index in range(len(self.processes))]

    def _answer(self, index: int) -> dict[str, Any]:
        out = self.processes[index].stdout
        assert out is not None
        is_there, _, _ = select.select([out], [], [], PATIENCE_S)
        if not is_there or not (line := out.readline()):
            why = "has ended" if is_there else f"has not answered for {PATIENCE_S} s"
            last = [f"rank {number}: {line}" for number, log in enumerate(self.logs)
                    for line in log.read_text().splitlines()[-12:]]  # fmt: skip
            sys.exit("\n".join([f"hosts.py: rank {index} of {self.name} {why}", *last]))
        return json.loads(line)


def start(
    network: Network, ranks: int, number: int, words: Sequence[str], folder: Path, cores: Sequence[int]
) -> Contestant:
    """Start a contestant, so many ranks on each host; it is ready when it has answered once.

    Its ranks keep to the `cores`, in turn, where there are any.
    """
    size, name = len(network.names) * ranks, "-".join([*words[:2], *words[3:]])
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("UNISONO_", "RANK", "WORLD_SIZE"))}
    logs = [folder / f"{name}-{rank}.log" for rank in range(size)]
    processes = []
    for rank in range(size):
        host, local = divmod(rank, ranks)
        place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": ranks, "GROUP_RANK": host,
                 "MASTER_ADDR": network.addresses[0], "MASTER_PORT": 29500 + number, "OMP_NUM_THREADS": 1,
                 "GLOO_SOCKET_IFNAME": "eth0", "TORCH_CPP_LOG_LEVEL": "ERROR"}  # fmt: skip
        place |= {"CORE": cores[rank % len(cores)]} if cores else {}
        command = [*network.within(host), sys.executable, str(HERE / "hosts_rank.py"), *words]
        with logs[rank].open("w") as log:
            processes.append(subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0,
                env=clean | {key: str(value) for key, value in place.items()},
                preexec_fn=die_with_parent,  # noqa: PLW1509 - no threads here
            ))  # fmt: skip
    return Contestant(name, processes, logs)


class Field:
    """The hosts and all contestants on them; everything ends with it."""

    def __init__(
        self, hosts: int, ranks: int, replicas: Sequence[int], options: dict[str, Any], ways: Sequence[str],
        cores: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.hosts, self.ranks, self.replicas, self.cores = hosts, ranks, replicas, cores
        self.bandwidths: dict[str, tuple[float, float]] = {}
        self._live_is_old = False
        with contextlib.ExitStack() as still:
            folder = Path(still.enter_context(tempfile.TemporaryDirectory()))
            self.network = Network(hosts, direct=hosts == 2)
            still.callback(self.network.close)
            self._started: list[Contestant] = []
            still.callback(self._end)
            wanted = [["plain"], *(["exact", str(count), json.dumps(options)] for count in replicas)]
            own = [way for way in ways if way in OWN]
            for way in own:
                strategy = {"strategy": {"name": "exact", "compress": ROUNDED[way]}} if way in ROUNDED else {}
                wanted.append(["exact", str(hosts * ranks), json.dumps(options | strategy), way])
            for words in wanted:
                self._start(words, folder)
            for contestant in self._started:
                contestant.answers()
            self.plain, *exact = self._started
            self.exact = dict(zip([*replicas, *own], exact, strict=True))
            self._live = (wanted[-1 - own[::-1].index("live")], folder) if "live" in own else None
            self.open = still.pop_all()

    def _start(self, words: Sequence[str], folder: Path) -> Contestant:
        self._started.append(start(self.network, self.ranks, len(self._started), words, folder, self.cores))
        return self._started[-1]

    def _end(self) -> None:
        for contestant in self._started:
            for process in contestant.processes:
                process.kill()
                process.wait()

    def build(self, model: str, tells: Sequence[str]) -> int:
        """Build a model anew everywhere (a run tries each link once), over a free link; return its gradients' bytes."""
        self.network.slow_down(None)
        if self._live and self._live_is_old:  # in a process one run alone can go on without a rank
            self.exact["live"].ask(do="end")
            self.exact["live"] = self._start(*self._live)
            self.exact["live"].answers()
        self._live_is_old = True
        samples = {str(count): SAMPLES[model] * self.hosts * self.ranks // count for count in self.replicas}
        for way, contestant in self.exact.items():
            own = ["live", "off"] if way == "live" else ["exact"]
            contestant.ask(do="build", model=model, samples=samples, ways=own)
        tells = [way for way in tells if way not in OWN]
        ways = ["ddp", *tells, *(f"compute-{count}" for count in self.replicas)]
        return self.plain.ask(do="build", model=model, samples=samples, ways=ways)[0]["bytes"]

    def limit(self, link: str) -> tuple[float, float]:
        """Limit what the hosts send, and return bytes/s of a stream: all at once, and one alone."""
        burst = max(16_000, rate_of(link) // 8000)  # a millisecond's, or some packets: what a pause gives for nothing
        self.network.slow_down(None if link == "none" else link, f"{burst}b")
        if link not in self.bandwidths:
            num_bytes = 2**28 if link == "none" else min(2**28, max(2**20, rate_of(link) // 16))  # half a second
            self.bandwidths[link] = (self._stream(num_bytes, range(self.hosts)), self._stream(num_bytes, [0]))
        return self.bandwidths[link]

    def _stream(self, num_bytes: int, senders: Iterable[int]) -> float:
        """Return the median of the slowest stream's bytes/s, of three times."""
        sending, idle = list(senders), {"peer": None, "takes": False}
        each = [idle] * (self.hosts * self.ranks)
        for host in range(self.hosts):  # its first rank
            each[host * self.ranks] = {
                "peer": self.network.addresses[(host + 1) % self.hosts] if host in sending else None,
                "takes": (host - 1) % self.hosts in sending,
            }
        times = [self.plain.ask(each, do="stream", num_bytes=num_bytes) for _ in range(3)]
        return statistics.median(min(said["rate"] for said in told if said["rate"]) for told in times)


def pairs(both: Contestant, count: int, seconds: float) -> dict[str, list[dict[str, float]]]:
    """Let two runs of the same processes take so many blocks in turn, and return what `play` does, by run."""
    first = both.ask(do="pairs", count=2, steps=2)
    step = max(one["seconds"] for said in first for way in said for one in said[way])
    steps = max(2, min(10, int(0.3 / step)))
    count = max(2, min(count, int(seconds / (2 * (steps + 1) * step))))
    told = both.ask(do="pairs", count=count, steps=steps)
    return {
        way: [
            {key: max(one[key] for one in ranks) for key in ranks[0]}
            for ranks in zip(*(said[way] for said in told), strict=True)
        ]
        for way in told[0]
    }


def rate_of(link: str) -> int:
    """Return bits per second; of no limit, 10 Gbit."""
    return 10**10 if link == "none" else int(link[:-4]) * UNITS[link[-4:]]


def play(
    ways: dict[str, tuple[Contestant, str]], rounds: int, seconds: float, every: int = 1
) -> dict[str, list[dict[str, float]]]:
    """Let every way take a block in turn, and return (seconds of a step, bytes sent) of its slowest rank, by round.

    Ends when the time is over, after a whole round. A block of ours has a multiple of `every` steps.
    """
    began, steps, found = time.monotonic(), {}, {way: [] for way in ways}

    def block(way: str, warm_up: int, count: int) -> dict[str, float]:
        contestant, name = ways[way]
        told = contestant.ask(do="block", way=name, warm_up=warm_up, steps=count)
        return {key: max(said[key] for said in told) for key in ("seconds", "sent")}

    for way in ways:
        first = block(way, 0, 1)["seconds"]  # the first steps learn: sizes of buckets, memory
        steps[way] = block(way, 2, 1)["seconds"] if first < 5 else first
    for index in range(rounds):
        since = time.monotonic()
        for way in ways if index % 2 == 0 else reversed(ways):
            length = 0.3 if way.startswith("compute") else 1.0  # seconds; what sends nothing varies less
            count = max(1, min(20, int(length / steps[way])))
            found[way].append(block(way, int(steps[way] < 3), -(-count // every) * every if "exact" in way else count))
        now = time.monotonic()
        if now - began + (now - since) > seconds:
            break
    return found


def arguments() -> argparse.Namespace:
    """Return the options; ends with 2 where one of them names nothing."""
    parser = parser_of(__doc__, rounds=9)
    parser.add_argument("--hosts", default="2,3", help="how many hosts (2,3)")
    parser.add_argument("--models", default=",".join(SAMPLES), help=f"of {', '.join(SAMPLES)} (all)")
    parser.add_argument("--links", default="none,10gbit,1gbit,200mbit", help=f"of {', '.join(LINKS)}")
    parser.add_argument("--ways", default="ddp-whole", help=f"told beside: of {', '.join(TELLS)}")
    parser.add_argument("--ranks", type=int, default=1, help="processes a host (1)")
    parser.add_argument("--replicas", help="(as many as ranks, twice as many; of 3 ranks 8 too)")
    parser.add_argument("--run", default="{}", metavar="JSON", help="options of Run: a variant")
    parser.add_argument("--seconds", type=float, default=200, help="longest time of a cell (200)")
    parser.add_argument("--pinned", action="store_true", help="each rank keeps to one core, in turn")
    parser.add_argument("--again", action="store_true", help="take cells that are there of this src too")
    parser.add_argument("--picture", action="store_true", help="draw the records, measure nothing")
    given = parser.parse_args()
    if given.quick:
        given.hosts, given.models, given.links, given.replicas, given.seconds = (
            "2",
            "SimpleCNN",
            "200mbit",
            str(2 * given.ranks),
            5,
        )
    given.counts = [int(word) if word.isdigit() else 0 for word in given.hosts.split(",")]
    if not all(1 < count < 9 for count in given.counts):
        stop(f"expected --hosts from 2 to 8, got {given.hosts!r}")
    if not 0 < given.ranks < 9:
        stop(f"expected --ranks from 1 to 8, got {given.ranks}")
    for name, known in (("models", tuple(SAMPLES)), ("links", LINKS), ("ways", TELLS)):
        words = [word for word in getattr(given, name).split(",") if word]
        if odd := [word for word in words if word not in known]:
            stop(f"expected --{name} of {', '.join(known)}; got {', '.join(odd)}")
        setattr(given, name, words)
    try:
        given.options = json.loads(given.run)
    except ValueError:
        stop(f"expected --run to be JSON, got {given.run!r}")
    strategy = given.options.get("strategy")
    given.every = (strategy.get("island_steps") or 1) if isinstance(strategy, dict) else 1
    if given.replicas and not all(word.isdigit() and int(word) for word in given.replicas.split(",")):
        stop(f"expected --replicas to be numbers, got {given.replicas!r}")
    return given


def replicas_of(given: argparse.Namespace, hosts: int) -> list[int]:
    """Return the numbers of replicas of so many hosts; DDP needs the first, one micro-batch a rank."""
    size = hosts * given.ranks
    asked = [int(word) for word in given.replicas.split(",")] if given.replicas else [2 * size, *([8] * (size == 3))]
    return list(dict.fromkeys([size, *asked]))


def cells(given: argparse.Namespace, hosts: int) -> Iterator[tuple[str, str, str]]:
    """Yield (model, link, beginning of the records' names) of what is missing."""
    path = (given.out or RESULTS) / "hosts.json"
    there = {one.name: one.commit for one in read(path)} if path.exists() else {}
    for model in given.models:
        for link in given.links:
            variant = f"{slug(given.run) if given.options else ''}{' pinned' * given.pinned}"
            cell = slug(f"{model} {hosts if given.ranks == 1 else f'{hosts}x{given.ranks}'} {link} {variant}")
            commits = {there.get(f"{cell}-exact-{count}") for count in replicas_of(given, hosts)}
            if given.again or not all(commit and is_same_source(commit, HERE / "hosts.py") for commit in commits):
                yield model, link, cell
            else:
                print(f"{cell}: is there already, of this src", flush=True)


def measure(given: argparse.Namespace, hosts: int) -> None:
    """Take what is missing of so many hosts, and record each cell when it is done."""
    todo = list(cells(given, hosts))
    if not todo:
        return
    replicas = replicas_of(given, hosts)
    cores = sorted(os.sched_getaffinity(0)) if given.pinned else ()
    field = Field(hosts, given.ranks, replicas, given.options, given.ways, cores)
    with field.open:
        for model, link, cell in todo:
            num_bytes = field.build(model, given.ways)
            both, one_way = field.limit(link)
            ways = {"ddp": (field.plain, "ddp")}
            others = [way for way in given.ways if way != "live"]
            ways |= {way: (field.exact[way], "exact") if way in OWN else (field.plain, way) for way in others}
            for count in replicas:
                ways |= {f"exact-{count}": (field.exact[count], "exact"),
                         f"compute-{count}": (field.plain, f"compute-{count}")}  # fmt: skip
            found = play(ways, rounds_of(given), given.seconds, given.every)
            if "live" in given.ways:
                found |= pairs(field.exact["live"], 5 * rounds_of(given), given.seconds)
            asked = {"rounds": given.rounds, "replicas": given.replicas, "ranks": given.ranks - 1 and given.ranks}
            picked = [f"--{name} {value}" for name, value in asked.items() if value]
            picked += [f"--run '{given.run}'"] if given.options else []
            picked += ["--pinned"] * given.pinned
            facts = {
                "model": model, "hosts": hosts, "ranks a host": given.ranks, "link": link,
                "variant": (f", {given.run}" if given.options else "") + ", a core each" * given.pinned,
                "Mbit/s": rounded(both * 8e-6), "one way, Mbit/s": rounded(one_way * 8e-6),
                "batch": SAMPLES[model] * hosts * given.ranks, "MB of gradients": round(num_bytes / 1e6, 2),
                "wire_ms": 2e3 * (hosts - 1) / hosts * num_bytes / both / given.every,
                "buckets": ", ".join(map(str, field.plain.ask(do="buckets")[0]["buckets"])) or "one, not yet rebuilt",
                "command": " ".join(["python benchmarks/hosts.py", *(["--quick"] if given.quick else []),
                                     f"--hosts {hosts} --models {model} --links {link}", *picked]),
            }  # fmt: skip
            rows = records(
                cell,
                found,
                facts,
                {f"exact-{count}": given.every == 1 and count % (hosts * given.ranks) == 0 for count in replicas},
            )
            show(rows)
            keep(given, rows)


def main() -> None:
    given = arguments()
    if given.picture:
        draw(given.out or RESULTS)
        return
    if why := lacking_network():
        stop(f"left out, {why}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the hosts go too
    remove_left_overs()
    for hosts in given.counts:
        measure(given, hosts)


if __name__ == "__main__":
    main()
