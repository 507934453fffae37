"""The examples that are jobs: are they exact, and what do they cost beside a plain loop?

    make examples
    python benchmarks/play_examples.py [NAME ...] [--rounds 2] [--quick] [--out DIR]

Each is trained on 1, 2 and 3 workers, and once more on 2 of which one dies by SIGKILL in the middle (wherever it is
then) and 1 goes on from the last checkpoint: four equal fingerprints and ledgers, or this program ends with 1. Then, in
turn, the same job on one worker and as a plain loop (`Plain` in example_job.py: no replicas, no ledger, no checkpoints;
for accelerate_script accelerate itself with as many micro-batches, for fabric_script Fabric on one process), one thread
each: CPU milliseconds of a step, which say the same on a busy machine; the median by the wall stands beside them.
The notebook is run cell by cell; its last cells compare what its functions have left.

transformers, peft, accelerate and Fabric are needed: `make examples` makes an environment that has them.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from catalogue import EXTRAS
from example_job import EXAMPLES
from harness import UNISONO, in_turn, keep, parser_of, rounds_of, run, save
from results import ROOT, Result

from unisono.observe.compare import first_difference

JOB = ROOT / "benchmarks" / "example_job.py"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
LIMIT_S = 600
PEERS = {"accelerate_script": "accelerate", "fabric_script": "Fabric"}


class Stage:
    """A directory in which one example is played."""

    def __init__(self, name: str, folder: str) -> None:
        self.name, self.folder = name, Path(folder)
        self.env = {**os.environ, **OFFLINE}
        (self.folder / "runs").mkdir()
        self.run([sys.executable, JOB, name, "-", "prepare"])

    def run(self, command: list) -> None:
        run(command, cwd=self.folder, env=self.env, timeout=LIMIT_S)

    def command(self, workers: int, out: str, way: str = "whole") -> list:
        return [*UNISONO, "run", "-n", str(workers), "--devices", "cpu", "--output", "quiet", JOB, self.name, out, way]

    def fresh(self, workers: int, out: str) -> Path:
        """Train from the beginning, and return the run directory."""
        self.run(self.command(workers, out))
        return self.folder / out

    def killed(self, step: int, out: str) -> tuple[Path, int]:
        """Train on two workers, one of which dies after that step, then on one; return where, and where it resumed."""
        command = self.command(2, out, str(step))
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, timeout=LIMIT_S, check=False)
        if not done.returncode:  # a script with a loop for each epoch has a result after each
            sys.exit(f"{self.name}: expected a worker's death after step {step}, but the run has ended")
        self.run(self.command(1, out))
        return self.folder / out, told(self.folder / out)["resumed_from_step"]

    def step_ms(self, *, is_plain: bool) -> dict[str, float]:
        """Return the milliseconds of a step on one worker, ``cpu`` and ``wall``."""
        shutil.rmtree(self.folder / "timed", ignore_errors=True)
        plain = [sys.executable, JOB, self.name, "timed", "plain"]
        self.run(plain if is_plain else self.command(1, "timed"))
        return json.loads((self.folder / "timed.json").read_text())


def told(out: Path) -> dict:
    return json.loads((out / "result.json").read_text())


def check_equal(name: str, runs: dict[str, Path]) -> None:
    """End with 1 where fingerprints or ledgers differ."""
    (first, known), *others = runs.items()
    for which, out in others:
        parted = first_difference(known / "ledger.jsonl", out / "ledger.jsonl")
        if parted is not None or told(out)["fingerprint"] != told(known)["fingerprint"]:
            sys.exit(f"{name}: {which} differs from {first}: {parted or 'the fingerprints'}")


def play(name: str, rounds: int) -> Result:
    """Play one example; ends with 1 where it is not exact."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(name, folder)
        runs = {f"{count} workers": stage.fresh(count, f"on-{count}") for count in (1, 2, 3)}
        steps = told(runs["1 workers"])["steps"]
        runs["killed and resumed"], resumed = stage.killed(steps // 2, "killed")
        check_equal(name, runs)
        ways = {"ours": lambda: stage.step_ms(is_plain=False), "plain": lambda: stage.step_ms(is_plain=True)}
        found = in_turn(ways, rounds, warm_up=0)
    lines = len((ROOT / "examples" / f"{name}.py").read_text().splitlines())
    print(f"{name}: equal on 1, 2, 3 workers and resumed from step {resumed} of {steps}", file=sys.stderr, flush=True)
    cpu, wall = ({way: [each[kind] for each in found[way]] for way in ways} for kind in ("cpu", "wall"))
    by_wall = " against ".join(f"{median(wall[way]):.3g} ms" for way in ways)
    return Result.of(
        name, cpu["ours"], against=cpu["plain"], topic="Examples", what=f"examples/{name}.py, CPU time of a step",
        unit="ms", peer=PEERS.get(name, "a plain loop"),
        settings={"lines": lines, "wall": by_wall, "steps": steps, "killed at": steps // 2, "resumed from": resumed},
        note="equal bits on 1, 2, 3 workers and after SIGKILL",
    )  # fmt: skip


def play_notebook() -> Result:
    """Run every cell of the notebook, which compares by itself."""
    import nbformat
    from nbclient import NotebookClient

    os.environ.update(OFFLINE)
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=LIMIT_S, resources={"metadata": {"path": folder}}).execute()
    seconds = time.perf_counter() - began
    lines = sum(len(cell.source.splitlines()) for cell in notebook.cells if cell.cell_type == "code")
    print("notebook: every cell runs, and its runs are equal", file=sys.stderr, flush=True)
    return Result.of(
        "notebook", [seconds], topic="Examples", what="examples/notebook.ipynb, all cells", unit="s",
        settings={"lines": lines}, note="equal bits on 1, 2, 3 workers and after SIGKILL",
    )  # fmt: skip


def main() -> None:
    parser = parser_of(__doc__, rounds=2)
    parser.add_argument("names", nargs="*", metavar="NAME", help="files of examples/ without .py, notebook (all)")
    given = parser.parse_args()
    names = given.names or (["vae"] if given.quick else [*EXAMPLES, "notebook"])
    if odd := [name for name in names if name not in (*EXAMPLES, "notebook")]:
        parser.error(f"expected names of examples ({', '.join(EXAMPLES)}, notebook), got {', '.join(odd)}")
    missing = [name for name in EXTRAS if find_spec(name) is None]
    if missing and not given.quick:
        parser.error(f"needs {', '.join(missing)}. Hint: make examples")
    found = []
    for name in names:
        found.append(play_notebook() if name == "notebook" else play(name, rounds_of(given, quick=1)))
        keep(given, found[-1:])
    save(given, found)


if __name__ == "__main__":
    main()
