"""The same job on 1..N workers: how long a step takes, where its time goes, whether the bits are equal."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unisono.errors import ConfigError
from unisono.experiments.trials import Finished, Start, Tell, on_workers, run_fresh, silent, starter, turns
from unisono.launchers.scratch import scratch_directory
from unisono.observe.phases import read_phases
from unisono.report.page import write_page
from unisono.report.picture import MARK, draw_section
from unisono.report.scaling_section import scaling_sections
from unisono.scaling.study import KIND, Study, Trial, save, trial_of
from unisono.strategies.catalog import CATALOG
from unisono.system.files import check_place
from unisono.system.machine import usable_cores

FILES = ("scaling.json", "scaling.svg", "report.html")


def measure_scaling(
    target: str, args: Sequence[str] = (), *, workers: Sequence[int] = (1, 2), repeat: int = 3, steps: int = 100,
    warmup: int = 10, weak: bool = False, threads: int = 1, out: str | None = None, command: str = "",
    launch: Mapping[str, Any] | None = None, tell: Tell = silent, **options: Any,
) -> Study:  # fmt: skip
    """Train a recipe or a script on each number of workers, several times by turns, and return the study.

    `launch`: more of the `LaunchSpec`.
    """
    counts = sorted(set(workers))
    check_steps(steps, warmup)
    start = starter(target, args, counts, {**options, "threads": threads}, weak=weak, steps=steps, **launch or {})
    trials: list[Trial] = []
    with _place(out) as place, scratch_directory("scaling") as scratch:
        for turn, _, count in turns(counts, repeat):
            tell(f"[{len(trials) + 1}/{repeat * len(counts)}] {target} on {on_workers(count, threads)} ...")
            trial, run = try_once(start, count, turn, warmup, Path(scratch) / f"{turn}-{count}")
            trials.append(trial)
        environment = json.loads((run.out / "environment.json").read_text())
        _check_batches(weak, {trial.workers: trial.batch_size for trial in trials})
        strategy = run.score["strategy"]["name"]
        study = Study(
            target=target, weak=weak, strategy=strategy, is_exact=CATALOG[strategy].is_exact, warmup=warmup,
            cores=usable_cores(), threads=run.score["threads"],
            device=environment.get("device") or "cpu", environment=environment,
            command=command, date=datetime.now(UTC).isoformat(timespec="seconds"), trials=trials,
        )  # fmt: skip
        if place is not None:
            data, picture, page = (place / name for name in FILES)
            save(study, data)
            draw_section(scaling_sections([study])[0], picture, most=2)
            write_page([data], page)
    return study


def check_steps(steps: int, warmup: int) -> None:
    """Refuse runs of which less than two steps are left after the warm-up."""
    if steps - warmup < 2:
        raise ConfigError(f"expected --steps of --warmup + 2 at least, got {steps} and {warmup}.")


def try_once(start: Start, count: int, turn: int, warmup: int, out: Path) -> tuple[Trial, Finished]:
    """Run one trial in a new directory; return what its step phases say, and the run."""
    run = run_fresh(start, count, out)
    trial = trial_of(
        read_phases(out), workers=count, repeat=turn, warmup=warmup, launched_ns=run.launched_ns, total_s=run.seconds,
        batch_size=run.score["batch_size"], fingerprint=run.result["fingerprint"], load=run.load,
    )  # fmt: skip
    return trial, run


@contextlib.contextmanager
def _place(out: str | None) -> Iterator[Path | None]:
    """Make the directory for the results, with nothing of others in their places; one that stays empty is removed."""
    if out is None:
        yield None
        return
    place = Path(out)
    is_new = not place.exists()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"expected --out to name a directory, got {out!r}: {error.strerror}.") from error
    try:
        for name, ours in zip(FILES, (KIND, MARK, "unisono"), strict=True):
            check_place(place / name, (ours,))
        yield place
    except BaseException:
        if is_new and not any(place.iterdir()):
            place.rmdir()
        raise


def _check_batches(weak: bool, sizes: dict[int, int]) -> None:
    """Refuse batches that are not equal; with `weak`, that do not grow with the workers."""
    first = min(sizes)
    if weak and any(count * sizes[first] != size * first for count, size in sizes.items()):
        raise ConfigError(
            f"--weak: expected a batch that grows with the workers, got {sizes}. "
            "Hint: batch_size=64 * run.world.world_size in the script."
        )
    if not weak and len(set(sizes.values())) > 1:
        raise ConfigError(
            f"expected one batch size for all numbers of workers, got {sizes}. Hint: --weak is for batches that grow."
        )
