"""unisono against the mission's own scripts (repaired), accelerate and Lightning: speed, and time to accuracy.

    .venv/bin/python benchmarks/time_to_accuracy.py system --job imdb --data ARCHIVE
    .venv/bin/python benchmarks/time_to_accuracy.py accuracy --job mnist --data DIRECTORY --picture PICTURE.png

All read the same files, on two processes of one thread each, over gloo (baselines) or shared memory (unisono). Runs
are taken in turn within one call, so that a ratio compares neighbours; the load of the machine is printed beside it.
Seconds are of training; evaluation, start and reading are left out for all alike.

``system`` compares samples per second at equal model, batch and epochs. ``accuracy`` asks how long each takes to a test
accuracy: 0.85 for IMDB; for MNIST, the baseline's after its 10 epochs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
JOBS = {
    "imdb": {"preset": "article", "batch_size": 256, "model": "gcnn", "target": 0.85, "epochs": 6},
    "mnist": {"preset": "tutorial", "batch_size": 128, "model": "cnn", "target": None, "epochs": 10},
}
BASELINES = {"DDP": "ddp.py", "accelerate": "with_accelerate.py", "Lightning": "with_lightning.py"}

Lines = list[dict[str, Any]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["system", "accuracy"])
    parser.add_argument("--job", choices=JOBS, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=int, help="samples of the training set, spread over it")
    parser.add_argument("--others", help="Python that has accelerate and Lightning, see baselines/requirements.txt")
    parser.add_argument("--tokenised", action="store_true", help="also the DDP baseline with texts tokenised once")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--out", type=Path, help="where the numbers go as JSON")
    return parser.parse_args()


def baseline(python: str, script: str, job: str, data: str, epochs: int, limit: int | None, *more: str) -> Lines:
    """Run a baseline on two processes and return its epochs."""
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               str(HERE / "baselines" / script), job, "--data", data, "--epochs", str(epochs), *more]  # fmt: skip
    return lines_of([*command, *(["--limit", str(limit)] if limit else [])])


def ours(job: str, data: str, preset: str, epochs: int, batch_size: int, limit: int | None, replicas: int) -> Lines:
    """Run a recipe on two processes and return its epochs."""
    options = {
        "recipe": job, "model": JOBS[job]["model"], "preset": preset, "epochs": epochs, "batch_size": batch_size,
        "replicas": replicas, "data": data, "limit": limit,
    }  # fmt: skip
    script = str(HERE / "timed_recipe.py")
    return lines_of(
        [sys.executable, "-m", "unisono", "run", "-n", "2", "--output", "leader", script, json.dumps(options)]
    )


def lines_of(command: list[str]) -> Lines:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "WORLD_SIZE"))}
    environment = clean | {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": str(HERE / "baselines"),
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not found:
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}\n{done.stderr[-3000:]}")
    print(f"  {Path(command[-1]).name[:20] if len(command[-1]) < 40 else 'unisono'}: {found[-1]}", file=sys.stderr)
    return found


def report(title: str, runs: dict[str, list[float]], base: list[float]) -> None:
    """Print a table of rates: median, least, most, and the median of the ratios of neighbours."""
    print(f"| {title} | median | least | most | against DDP |\n|---|---|---|---|---|")
    for name, rates in runs.items():
        ratio = statistics.median(rate / other for rate, other in zip(rates, base, strict=True))
        print(f"| {name} | {statistics.median(rates):.0f} | {min(rates):.0f} | {max(rates):.0f} | {ratio:.2f} |")


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def system(given: argparse.Namespace) -> dict[str, Any]:
    """Take turns: each baseline, then unisono, `repeats` times."""
    setting = JOBS[given.job]
    runs: dict[str, list[float]] = {}
    by_cpu: dict[str, list[float]] = {}  # on a busy machine the fairer number
    loads = []
    entries = {"DDP": (sys.executable, "ddp.py", ())}
    if given.tokenised and given.job == "imdb":
        entries["DDP, tokenised once"] = (sys.executable, "ddp.py", ("--tokenised",))
    if given.others:
        entries["accelerate"] = (given.others, "with_accelerate.py", ())
        entries["Lightning"] = (given.others, "with_lightning.py", ())
    for _ in range(given.repeats):
        for name, (python, script, more) in entries.items():
            found = baseline(python, script, given.job, given.data, 1, given.limit, *more)
            runs.setdefault(name, []).append(found[-1]["samples_per_s"])
            num_samples = found[-1]["samples_per_s"] * found[-1]["train_s"]
            by_cpu.setdefault(name, []).append(num_samples / 2 / found[-1]["cpu_s"])
        for name, replicas in (("unisono, 2 replicas", 2), ("unisono, 8 replicas", 8)):
            found = ours(given.job, given.data, setting["preset"], 1, setting["batch_size"], given.limit, replicas)
            runs.setdefault(name, []).append(found[-1]["samples_per_s"])
            num_samples = found[-1]["samples_per_s"] * found[-1]["train_s"]
            by_cpu.setdefault(name, []).append(num_samples / 2 / found[-1]["cpu_s"])
        loads.append(load())
    report(f"{given.job}: samples per second", runs, runs["DDP"])
    report(f"{given.job}: samples per CPU second of a process", by_cpu, by_cpu["DDP"])
    print(f"load of the machine after each round: {', '.join(loads)}")
    return {"samples_per_s": runs, "samples_per_cpu_s": by_cpu, "loads": loads}


def accuracy(given: argparse.Namespace) -> dict[str, Any]:
    """The baseline's epochs, and our ``fast`` and ``best`` presets; how long each takes to the target."""
    setting = JOBS[given.job]
    curves: dict[str, list[Lines]] = {"DDP": [], "unisono, fast": []}
    for _ in range(given.repeats):
        curves["unisono, fast"].append(ours(given.job, given.data, "fast", 1, 128, given.limit, 2))
        limit = given.limit
        curves["DDP"].append(baseline(sys.executable, "ddp.py", given.job, given.data, setting["epochs"], limit))
        curves["unisono, fast"].append(ours(given.job, given.data, "fast", 1, 128, given.limit, 2))
    target = setting["target"] or statistics.median(run[-1]["accuracy"] for run in curves["DDP"])
    print(f"| {given.job} to {target:.4f} | seconds | best accuracy |\n|---|---|---|")
    for name, runs in curves.items():
        times = [seconds_to(run, target) for run in runs]
        reached = [seconds for seconds in times if seconds is not None]
        shown = (
            f"{statistics.median(reached):.1f}"
            if len(reached) == len(times)
            else f"{len(reached)} of {len(times)} runs"
        )
        print(f"| {name} | {shown} | {max(line['accuracy'] for run in runs for line in run):.4f} |")
    print(f"load of the machine: {load()}")
    if given.picture:
        draw(given, curves, target)
    return {"curves": curves, "target": target}


def seconds_to(run: Lines, target: float) -> float | None:
    """Seconds of training until the first epoch that ends at the target; None where none does."""
    total = 0.0
    for line in run:
        total += line["train_s"]
        if line["accuracy"] >= target:
            return total
    return None


def draw(given: argparse.Namespace, curves: dict[str, list[Lines]], target: float) -> None:
    """Accuracy over seconds of training, every run."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for number, (name, runs) in enumerate(curves.items()):
        for index, run in enumerate(runs):
            seconds = [sum(line["train_s"] for line in run[: end + 1]) for end in range(len(run))]
            axes.plot(
                seconds, [line["accuracy"] for line in run], "o-", color=f"C{number}", label=name if not index else None
            )
    axes.axhline(target, color="grey", linewidth=0.8)
    axes.set(xscale="log", xlabel="seconds of training, 2 processes", ylabel="test accuracy", title=given.job)
    axes.legend()
    figure.savefig(given.picture, dpi=130)


def main() -> None:
    given = arguments()
    if given.out is None:
        given.out = Path(tempfile.mkdtemp()) / f"{given.kind}-{given.job}.json"
    found = {"system": system, "accuracy": accuracy}[given.kind](given)
    given.out.write_text(json.dumps(found, indent=1))
    print(f"kept in {given.out}")


if __name__ == "__main__":
    main()
