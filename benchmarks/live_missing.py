"""A worker is missing: how fast does the run go on, and how soon is it whole again, with and without a spare?

    python benchmarks/live_missing.py [--rounds 6]    # so many runs each way
    python benchmarks/live_missing.py --quick         # one run each way

Two workers of this machine train SimpleCNN with 8 replicas and live recovery. Rank 1 gets SIGKILL. Its replicas are
computed by the other one, which then has 8 in place of 4: a step should take twice as long (what the placement
predicts), until another worker joins. That one is started when the first has died (--max-restarts 3), or has waited
since the start (--spares 1). The leader writes down when each step has ended, and on how many workers. Each run must
end with the fingerprint of one process that nobody has disturbed.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")

import live_job
from harness import UNISONO, parser_of, rounds_of, save
from live_kills import TOPIC
from results import Result

from unisono.experiments.chaos.deaths import Death
from unisono.experiments.chaos.live_run import LiveRun

REPLICAS, BATCH = 8, 128
STEPS, QUICK_STEPS, KILLED_AT = 600, 110, 60
WAYS = {"replacement": ["--max-restarts", "3"], "spare": ["--spares", "1"]}
WORKERS = 2
COMMAND = "python benchmarks/live_missing.py"


def train(out: Path, steps: int) -> None:
    """Be a worker: train, and let the leader write down the time and the number of workers of each step."""
    import torch
    from torch.nn import functional as F

    import unisono
    from unisono.recipes.mnist import SimpleCNN

    with unisono.Run(seed=0, replicas=REPLICAS, out=out) as run:
        model = SimpleCNN()
        model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5))
        loader = run.loader(live_job.images(1, 1024), batch_size=BATCH)
        with (out.parent / f"steps-{os.getpid()}").open("w", buffering=1) as lines:
            for batch in run.steps(loader, epochs=10**6, max_steps=steps):
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
                lines.write(json.dumps([time.monotonic(), batch.step, run.world.world_size]) + "\n")


def lose_one(way: str, steps: int, fingerprint: str) -> tuple[float, float, float]:
    """Make one run that loses a worker; return a step's seconds before and while it is missing, and for how long it is.

    Raises:
        RuntimeError: It did not end as it should.
    """
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
        folder = Path(scratch)
        (folder / "tmp").mkdir()
        command = [*UNISONO, "run", "-n", str(WORKERS), "--threads", "1", "--live", "auto", *WAYS[way]]
        launcher = subprocess.Popen(
            [*command, str(Path(__file__).resolve()), "--play", scratch, str(steps)],
            env={**os.environ, "TMPDIR": str(folder / "tmp")}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        run = LiveRun(launcher, folder / "tmp", WORKERS, steps - 5)
        died = run.strike(Death(rank=1, aim="", delay_s=0.0, step=KILLED_AT), is_whole=True)
        if launcher.wait() or not died:
            raise RuntimeError(f"{way}: the run did not end well (code {launcher.returncode}, {died})")
        result = json.loads((folder / "run" / "result.json").read_text())
        if result["fingerprint"] != fingerprint:
            raise RuntimeError(f"{way}: expected fingerprint {fingerprint}, got {result['fingerprint']}")
        rows = max(
            ([json.loads(line) for line in path.read_text().splitlines()] for path in folder.glob("steps-*")), key=len
        )
    spans = [(after[0] - before[0], after[1], after[2]) for before, after in pairwise(rows)]
    alone = [row for row in rows if row[2] < WORKERS]
    whole = [row for row in rows if row[2] == WORKERS and row[1] > died[0].step]
    if not whole:
        raise RuntimeError(f"{way}: nobody has joined before the last step; more steps are needed")
    undisturbed = median(took for took, step, _ in spans if 5 < step < died[0].step)
    missing = median([took for took, _, size in spans if size < WORKERS][1:] or [float("nan")])
    began = next(row[0] for row in rows if row[1] == died[0].step - 1)  # the kill was in the step behind it
    return undisturbed, missing, (whole[0][0] if alone else rows[died[0].step][0]) - began


def main() -> int:
    """Run the benchmark."""
    parser = parser_of(__doc__, rounds=6)
    parser.add_argument("--play", nargs=2, help="be a worker")
    given = parser.parse_args()
    if given.play:
        train(Path(given.play[0], "run"), int(given.play[1]))
        return 0
    steps = QUICK_STEPS if given.quick else STEPS
    with tempfile.TemporaryDirectory() as scratch:
        program = [str(Path(__file__).resolve()), "--play", scratch, str(steps)]
        subprocess.run([sys.executable, *program], check=True, stdout=subprocess.DEVNULL)
        fingerprint = json.loads(Path(scratch, "run", "result.json").read_text())["fingerprint"]
    rounds = rounds_of(given, quick=1)
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
    for index in range(rounds):
        for way in WAYS if index % 2 == 0 else reversed(WAYS):
            found[way].append(lose_one(way, steps, fingerprint))
            print(f"round {index + 1}, {way}: a step {1000 * found[way][-1][0]:.1f} ms, with one worker missing "
                  f"{1000 * found[way][-1][1]:.1f} ms, whole after {found[way][-1][2]:.2f} s", flush=True)  # fmt: skip
    settings = {"rounds": rounds, "batch size": BATCH, "replicas": REPLICAS}
    common = {"topic": TOPIC, "command": COMMAND, "settings": settings}
    lone = found["replacement"]
    save(given, [
        Result.of(
            "live-missing-step", [1000 * missing for _, missing, _ in lone], unit="ms",
            what="a step while one of 2 workers is missing (SimpleCNN, 8 replicas)",
            peer="what the placement predicts, 8 replicas in place of 4:", against=[2000 * step for step, _, _ in lone],
            **common,
        ),
        *(
            Result.of(
                f"live-whole-{way}", [seconds for _, _, seconds in rows], unit="s",
                what=f"from SIGKILL of one of 2 workers until there are 2 again: a {way}", **common,
            )
            for way, rows in found.items()
        ),
    ])  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
