"""The checks of a certificate that are about GPUs: on a CPU their rows say that they could not run.

In: a bench. Out: rows.
"""

from dataclasses import replace

from unisono.experiments.certify.bench import CPU, Bench, fingerprint, said
from unisono.experiments.certify.certificate import Row, all_equal
from unisono.experiments.certify.trainings import CONTROLS, EXACT_6, claims
from unisono.system.words import spell_seconds

BACKWARDS = "backwards"
NCCL_WAYS: dict[str, dict[str, str]] = {
    "in order": {}, BACKWARDS: {},
    "rings": {"NCCL_ALGO": "allreduce:ring"}, "trees": {"NCCL_ALGO": "allreduce:tree"},
    "simple": {"NCCL_PROTO": "Simple"}, "LL": {"NCCL_PROTO": "LL"}, "one channel": {"NCCL_MAX_NCHANNELS": "1"},
}  # fmt: skip
"""Ways to let GPUs talk, with NCCL's own variables, that must change no bit of `exact`."""

_ON_CPU = "it is about GPUs: --device cpu was certified"


def waits(bench: Bench) -> Row:
    """How often the CPU waits for the device in a step."""
    row = Row(
        name="waits of a step",
        claim="Beside one event no operation of a step waits for the device, whatever the replicas: exact, islands "
        "between their meetings, allreduce and fsdp in one process.",
    )  # fmt: skip
    if bench.device == CPU:
        return replace(row, why_not=_ON_CPU)
    from unisono.experiments.certify.programs import READING, count_waits  # loads torch

    found: dict[str, list[int]] = bench.run(count_waits, 1, bench.device)
    control = found.pop(READING)
    return replace(
        row, held=not any(map(any, found.values())),
        found=tuple(f"{name}: {' and '.join(map(str, each))}" for name, each in found.items()),
        control=f"{READING}: {' and '.join(map(str, control))}", noticed=all(each == 2 for each in control),
        numbers={**found, "control": control},
    )  # fmt: skip


def launches(bench: Bench) -> Row:
    """How many kernels a step gives the device to do, beside those that a plain loop would."""
    row = Row(
        name="launches of a step",
        claim="A step of exact gives the device fewer than 80 kernels and copies of its own, beside the passes of its "
        "replicas, its data and its update: the CNN in one process.",
    )  # fmt: skip
    if bench.device == CPU:
        return replace(row, why_not=_ON_CPU)
    from unisono.experiments.certify.programs import ADDED, ADDING, count_launches  # loads torch

    found: dict[str, int] = bench.run(count_launches, 1, bench.device)
    more = found.pop(ADDING) - found["exact, V = 2"]
    return replace(
        row, held=all(0 < count < 80 for count in found.values()),
        found=tuple(f"{name}: {count}" for name, count in found.items()),
        control=f"{ADDING}: {more} more", noticed=more == 2 * ADDED, numbers={**found, "control": more},
    )  # fmt: skip


def moved(bench: Bench) -> Row:
    """Whether NCCL in a world of one moves bytes as they are."""
    row = Row(
        name="NCCL, one process",
        claim="all_to_all and all_gather of a group of one process over NCCL give back every bit: six data types, also "
        "of no elements.",
    )  # fmt: skip
    if bench.device == CPU:
        return replace(row, why_not=_ON_CPU)
    from unisono.experiments.certify.device_programs import SPOILT, move_alone  # loads torch

    found: dict[str, int] = bench.run(move_alone, 1, bench.device, own=True)
    control = found.pop(SPOILT)
    return replace(
        row, held=bool(found) and not any(found.values()),
        found=tuple(f"{name}: {count} bytes differ" for name, count in found.items() if count) or (", ".join(found),),
        control=f"{SPOILT}: {control} byte differs", noticed=control == 1, numbers={**found, "control": control},
    )  # fmt: skip


def several_devices(bench: Bench) -> Row:
    """One process a device, in both orders, whatever NCCL's settings; torch's own sums depend on them."""
    row = Row(
        name="several devices",
        claim="One process for each GPU over NCCL, in their order and backwards, with other algorithms, protocols and "
        "channels of NCCL: the fingerprints of one process.",
    )  # fmt: skip
    if bench.device == CPU:
        return replace(row, why_not=_ON_CPU)
    if bench.gpus < 2 or ":" in bench.device:
        return replace(row, why_not="it needs two GPUs: --device cuda, which takes all that are visible")
    count, few = min(bench.gpus, 8), min(bench.gpus, 3)
    one, trainings = bench.claimed(1), claims("fp32", bench.models)
    seen = {each.name: {"1": fingerprint(one, each.name)} for each in trainings}
    sums: dict[str, str] = {}
    for way, env in NCCL_WAYS.items():
        left = bench.train(trainings, count, env, own=True, backwards=way == BACKWARDS)
        for name, prints in seen.items():
            prints[f"{count}, {way}"] = fingerprint(left, name)
        if env or not sums:
            sums[way] = fingerprint(bench.train([CONTROLS["ddp"]], few, env, own=True), "ddp")
    several = few > 2  # two numbers have one sum
    sums["exact"] = fingerprint(bench.claimed(2), EXACT_6.name)
    return replace(
        row, held=all(all_equal(each) for each in seen.values()), found=tuple(map(said, seen, seen.values())),
        control=f"ddp on {few} GPUs, where NCCL adds: {', '.join(f'{way}: {each}' for way, each in sums.items())}",
        noticed=len(set(sums.values())) > (2 if several else 1), numbers={**seen, "control": sums},
    )  # fmt: skip


def pressed(bench: Bench) -> Row:
    """Whether a training has the same bits where it gets hardly the memory that it needs."""
    row = Row(
        name="memory pressure",
        claim="A network of convolutions has one fingerprint, whether it gets all memory or hardly what it needs, so "
        "that cuDNN might take algorithms that need less.",
    )  # fmt: skip
    if bench.device == CPU:
        return replace(row, why_not=_ON_CPU)
    from unisono.experiments.certify.device_programs import TOO_LITTLE, press_memory  # loads torch

    found: dict[str, str] = bench.run(press_memory, 1, bench.device, 64)
    trained = {share: told for share, told in found.items() if told != TOO_LITTLE}
    least = [*found][-1]
    return replace(
        row, held=all_equal(trained), found=(said("convolutions", trained),),
        control=f"{least} of the memory: {found[least]}", noticed=found[least] == TOO_LITTLE, numbers=found,
    )  # fmt: skip


GOAL = 1.05
"""Of DDP's time and memory, in a world of one, with one replica."""


def large(bench: Bench, rounds: int = 3) -> Row:
    """How long steps of models of usual size take, and how much memory, beside a plain loop and DDP; a goal, no bar."""
    row = Row(
        name="time and memory of large models",
        claim=f"In one process, beside a plain loop and torch's DDP: steps and memory of exact. The goal with one "
        f"replica is {GOAL} of DDP's.",
    )  # fmt: skip
    if bench.device == CPU or bench.is_quick:
        return replace(row, why_not=_ON_CPU if bench.device == CPU else "--quick leaves it out")
    from unisono.experiments.certify.large_models import DDP, time_large  # loads torch

    found: dict[str, dict[str, list[float]]] = bench.run(time_large, 1, bench.device, [1, 2, 4, 8], rounds)
    lines = []
    for model, ways in found.items():
        theirs = ways[DDP]
        for way, (seconds, peak) in ways.items():
            times, more = seconds / theirs[0], peak / max(1, theirs[1])
            goal = f", goal {'met' if max(times, more) <= GOAL else 'missed'}" if way == "exact, V = 1" else ""
            told = f"{spell_seconds(seconds)}, {times:.2f} x DDP; {peak / 2**20:,.0f} MiB, {more:.2f} x"
            lines.append(f"{model}: {way}: {told}{goal}")
    return replace(row, found=tuple(lines), numbers=found)
