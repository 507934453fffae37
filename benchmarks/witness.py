"""What a witness finds of flipped bits, how often it is wrong itself, and what it costs at 8 replicas.

    python benchmarks/witness.py [--rounds 20] [--quick] [--out DIR] [--only PART]

A round injects 500 faults on ranks that are threads of one process (one bit of a product or of a gradient, once or in
every computation), and does 5,000 clean steps; both compare every step's replica. Each fault's outcome is known
beforehand: noticed if it has changed the replica that two compute, and only then. 200 more faults on processes. The
cost is CPU time of all ranks together, blocks of steps with and without in turn.
"""

import statistics
import sys
import time

import torch
from harness import parser_of, rounds_of, save
from results import ROOT, Bar, Result
from torch import nn
from torch.nn import functional as F

from unisono.collectives.placement import place_whole
from unisono.determinism.switches import set_determinism
from unisono.strategies.base import Micro, StrategyContext
from unisono.strategies.exact import Exact
from unisono.strategies.objective import Objective
from unisono.strategies.options import ExactOptions

sys.path.append(str(ROOT / "tests"))
from ranks import run_processes, run_threads
from strategies.witness_programs import clean, inject, summary

REPLICAS, WORKERS, WIDTH, ROWS = 8, 4, 512, 32
PARTS = ("threads", "processes", "clean", "cost")


def faults(name: str, found: list[dict], **settings) -> list[Result]:
    """Return the records of some injections, of one summary each."""
    total = {key: round(sum(each[key] for each in found), 1) for key in ("injected", "changed_no_leaf", "expected")}
    spread = round(sum(each["spread"] ** 2 for each in found) ** 0.5, 1)
    noticed, due = sum(each["noticed"] for each in found), sum(each["due"] for each in found)
    told = settings | total | {"standard deviation": spread, "noticed": noticed, "in a compared replica": due}
    common = {"unit": "%", "topic": "Trust", "bar": Bar(at_least=100)}
    missed = sum(each["missed_by_the_same_rank"] for each in found)
    persistent = sum(each["persistent"] for each in found)
    return [
        Result.of(
            f"noticed-{name}", [100 * each["noticed"] / max(1, each["due"]) for each in found], **common, settings=told,
            what="flipped bits of a replica that a witness compares: noticed",
        ),
        Result.of(
            f"blamed-{name}", [100 * each["blamed_right"] / max(1, each["noticed"]) for each in found], **common,
            settings=told, what="of those: the right rank named",
        ),
        Result.of(
            f"same-rank-{name}", [100 * missed / max(1, persistent)], **common,
            settings=settings | {"faults that stay": persistent},
            what="control: faults that stay, missed where the same rank computes twice",
        ),
    ]  # fmt: skip


def cost(transport, rounds: int, steps: int) -> list[list[float]]:
    """Return CPU milliseconds of a step of all ranks, without and with a witness, round by round."""
    set_determinism(threads=1)
    ways = []
    for rate in (0.0, 1.0):
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 9)
        )
        placement = [*place_whole(REPLICAS, WORKERS)]
        context = StrategyContext(transport=transport, placement=placement, seed=3, device=torch.device("cpu"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        strategy = Exact(model, optimizer, context, ExactOptions())
        x, y = torch.randn(REPLICAS, ROWS, WIDTH), torch.randint(0, 9, (REPLICAS, ROWS))
        micros = [Micro(replica, ROWS, (x[replica], y[replica])) for replica in range(REPLICAS)]
        if rate:
            strategy.watch(rate).fetch = lambda _, replica, micros=micros: [micros[replica]]
        loss = Objective(lambda data, model=model: F.cross_entropy(model(data[0]), data[1]))
        ways.append((strategy, micros, loss))
    own, found, step = placement[transport.rank], [], 0
    for index in range(-1, rounds):
        times = [0.0, 0.0]
        for way in (0, 1) if index % 2 else (1, 0):
            strategy, micros, loss = ways[way]
            transport.barrier()
            began = time.process_time()
            for number in range(step + 1, step + steps + 1):
                strategy.compute_gradients(number, iter(micros[own.start : own.stop]), REPLICAS * ROWS, loss)
            transport.barrier()
            times[way] = (time.process_time() - began) / steps * 1e3
        step += steps
        if index >= 0:
            found.append(times)
    return found


def main() -> None:
    parser = parser_of(__doc__, rounds=20)
    parser.add_argument("--only", action="append", choices=PARTS, help="only this part; may be given again")
    given = parser.parse_args()
    parts, rounds = given.only or PARTS, rounds_of(given)
    many, clean_steps, forked, blocks = (15, 20, 15, 4) if given.quick else (500, 5000, 200, 20)
    found = []
    if "threads" in parts:
        told = [summary(run_threads(inject, 3, many, 4, 1.0, index), 3) for index in range(rounds)]
        found += faults("threads", told, workers=3, replicas=4, rate=1.0)
    if "processes" in parts:
        told = [summary(run_processes(inject, 3, forked, 4, 1.0, 99), 3)]
        found += faults("processes", told, workers=3, replicas=4, rate=1.0)
    if "clean" in parts:
        alarms = [run_threads(clean, 2, clean_steps, 2, 1.0, 1 + clean_steps * index)[0] for index in range(rounds)]
        found.append(Result.of(
            "false-alarms", [float(each[0]) for each in alarms], unit="steps", topic="Trust", bar=Bar(at_most=0),
            what="clean steps that a witness has refused", settings={"steps": sum(each[2] for each in alarms)},
        ))  # fmt: skip
    if "cost" in parts:
        pairs = run_threads(cost, WORKERS, rounds, blocks)[0]
        settings = {"replicas": REPLICAS, "workers": WORKERS, "one replica of 8, in %": 12.5}
        settings["CPU ms of a step without"] = round(statistics.median(plain for plain, _ in pairs), 1)
        found.append(Result.of(
            "cost", [100 * (seen / plain - 1) for plain, seen in pairs], unit="%", topic="Trust",
            what="CPU time of all ranks that a witness in every step adds", settings=settings,
        ))  # fmt: skip
    save(given, found)


if __name__ == "__main__":
    main()
