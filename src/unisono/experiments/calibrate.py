"""The short measurement behind ``unisono forecast RECIPE``."""

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from unisono.experiments.collectives import time_collectives
from unisono.experiments.job import plan, run_in
from unisono.experiments.trials import Tell, silent
from unisono.launchers.scratch import scratch_directory
from unisono.observe.phases import read_phases
from unisono.scaling.calibration import Solo, StepTimes, crowding_of, fit_job, fit_machine, step_times
from unisono.scaling.forecast import Workload
from unisono.scaling.machine import Machine
from unisono.system.machine import usable_cores
from unisono.system.words import spell_seconds

STEPS, WARMUP = 25, 5
_REPEAT = 7

StartAlone = Callable[[int, Path], None]
"""Runs the job alone with so many replicas into a new run directory."""


def calibrate(recipe: str, options: dict[str, Any], tell: Tell) -> tuple[Workload, Machine, list[str]]:
    """Measure a recipe and this machine, and return both as numbers, with notes for people."""
    job = plan(recipe, "1", options)

    def start(replicas: int, out: Path) -> None:
        alone = replace(job, options=replace(job.options, replicas=replicas))
        run_in(alone, out, env={"UNISONO_LAST_STEP": str(STEPS)})

    cores, replicas = usable_cores(), job.options.replicas
    tell(f"measuring {recipe} on one worker, then on all {cores} cores ...")
    with scratch_directory("forecast") as scratch:
        solo, num_parameters, launch_s = measure_solo(start, replicas, job.options.batch_size, cores, Path(scratch))
    fitted = replace(fit_job(solo, gradient_bytes=4.0 * num_parameters, replicas=replicas), launch_s=launch_s)
    machine, transport = measure_links(fitted.gradient_bytes, cores, crowding_of(solo), tell=tell)
    link = machine.inside
    return fitted, machine, [
        f"{recipe} measured on this machine: {cores} cores, {STEPS - WARMUP} steps each way, over {transport}",
        f"sample {spell_seconds(fitted.sample_s)} and {spell_seconds(fitted.micro_s)} a micro-batch, "
        f"{machine.crowding:.2f} times slower when all cores compute; {num_parameters:,} parameters",
        f"message {spell_seconds(link.latency_s)}, {_spell_rate(link.s_per_byte)}; "
        f"{spell_seconds(machine.turn_s)} a round for each further rank on a core",
    ]  # fmt: skip


def _spell_rate(s_per_byte: float) -> str:
    return f"{1e-9 / s_per_byte:.3g} GB/s" if s_per_byte else "no longer for more bytes, as far as was measured"


def measure_solo(
    start: StartAlone, replicas: int, batch_size: int, cores: int, scratch: Path
) -> tuple[Solo, int, float]:
    """Run the job alone with two sizes of micro-batches, and as often as there are cores at once.

    Returns:
        What was measured, the model's parameters, and seconds from a launch to its first step.
    """
    other = max(1, replicas // 4) if replicas > 1 else 2
    times: dict[int, StepTimes] = {}
    launched_ns = time.time_ns()
    for parts in (replicas, other):
        start(parts, scratch / f"alone-{parts}")
        times[parts] = step_times(read_phases(scratch / f"alone-{parts}"), WARMUP)
    first_ns = min(record.began_ns for record in read_phases(scratch / f"alone-{replicas}"))
    score = json.loads((scratch / f"alone-{replicas}" / "score.json").read_text())
    crowded = None
    if cores > 1:
        places = [scratch / f"crowd-{number}" for number in range(cores)]
        with ThreadPoolExecutor(cores) as pool:
            list(pool.map(lambda place: start(replicas, place), places))
        all_times = [step_times(read_phases(place), WARMUP) for place in places]
        crowded = max(all_times, key=lambda one: one.compute_s)
    solo = Solo(batch_size=batch_size, times=times, crowded=crowded)
    return solo, int(score["model"]["num_parameters"]), (first_ns - launched_ns) / 1e9


def measure_links(
    gradient_bytes: float, cores: int, crowding: float, transport: str | None = None, tell: Tell = silent
) -> tuple[Machine, str]:
    """Time all-reduces of some sizes up to the gradient's between 2 ranks and between twice the cores.

    Returns:
        The machine, and the transport that was measured.
    """
    from unisono.experiments.contestants import AFTER_WORK, WORK  # loads torch

    largest, most = max(16 << 10, round(gradient_bytes)), max(4, 2 * cores)
    sizes = sorted({4 << 10, largest // 4, largest})
    tell(f"measuring messages between 2 and {most} workers ...")
    names = ("tree_all_reduce", AFTER_WORK)
    pairs, crowd = (time_collectives(ranks, sizes, names, _REPEAT)["rows"] for ranks in (2, most))
    over = transport or ("shm" if any(row["transport"] == "shm" for row in pairs) else "gloo")

    def chosen(rows: Sequence[dict[str, Any]], name: str, way: str) -> list[tuple[float, float]]:
        return [(row["bytes"], row["median_s"]) for row in rows if (row["collective"], row["transport"]) == (name, way)]

    def in_training(rows: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
        """What a sum takes beside computation; at least what it takes without."""
        ways = chosen(rows, "tree_all_reduce", over), chosen(rows, AFTER_WORK, over), chosen(rows, WORK, "memory")
        return [(size, max(bare, both - work)) for (size, bare), (_, both), (_, work) in zip(*ways, strict=True)]

    copies = chosen(pairs, "memcpy", "memory")
    machine = fit_machine(
        in_training(pairs), in_training(crowd), cores=cores,
        crowd_ranks=most, copy_s_per_byte=copies[-1][1] / copies[-1][0], crowding=crowding,
    )  # fmt: skip
    return machine, over
