"""The checks of a certificate: they start processes, compare what those have left, and break something on purpose.

In: a bench. Out: rows. A check that a failed worker ends is a row that failed. `device_checks`: about GPUs alone.
"""

import functools
import shutil
import time
from collections.abc import Callable
from dataclasses import replace

from unisono.errors import UnisonoError, WorkerFailed
from unisono.experiments.certify.bench import CPU, Bench, fingerprint, said
from unisono.experiments.certify.certificate import Row, all_equal
from unisono.experiments.certify.device_checks import large, launches, moved, pressed, several_devices, waits
from unisono.experiments.certify.trainings import EXACT_6, STEPS, WAYS, Training, sharded
from unisono.system.words import spell_seconds

KILLED = 137
_LEFT_OUT = "left out by --quick"
_FLAG = "float32_matmul_precision"


def same_claim(bench: Bench, way: str) -> Row:
    """All trainings of one of the `WAYS` on several numbers of processes: one fingerprint each; ``ddp`` has several."""
    names = [training.name for training in bench.claims(way)]
    seen = {name: {str(count): fingerprint(bench.claimed(count), name) for count in bench.counts} for name in names}
    control = {str(count): fingerprint(bench.claimed(count), "ddp") for count in (2, 3)}
    told = ", ".join(map(str, bench.counts))
    return Row(
        name=f"same bits, {way}",
        claim=f"exact gives one fingerprint on {told} processes: {', '.join(names)}; with batch normalisation, "
        f"dropout and clipped gradients, {WAYS[way]}.",
        held=all(all_equal(each) for each in seen.values()),
        found=tuple(said(name, each) for name, each in seen.items()),
        control=f"ddp on 2 and on 3 processes, which add in different orders: {' and '.join(control.values())}",
        noticed=not all_equal(control),
        numbers={**seen, "ddp": control},
    )  # fmt: skip


def same_strategies(bench: Bench) -> Row:
    """``fsdp`` and ``pipeline`` have the bits of ``exact``; ``allreduce`` on three processes has others."""
    counts = (2,) if bench.is_quick else (2, 3, 4)
    one = bench.claimed(1)
    seen: dict[str, dict[str, str]] = {}
    for count in counts:
        trainings = sharded(count, bench.models)
        left = bench.train(trainings, count)
        for training in trainings:
            exact = fingerprint(one, f"{training.model} fp32")
            seen.setdefault(training.name, {"exact": exact})[str(count)] = fingerprint(left, training.name)
    control = {name: fingerprint(bench.claimed(3), name) for name in (EXACT_6.name, "allreduce")}
    return Row(
        name="same strategies",
        claim=f"fsdp and pipeline give exact's fingerprint on {', '.join(map(str, counts))} processes, with clipping, "
        "batch normalisation and the dropout of LSTMs.",
        held=all(all_equal(each) for each in seen.values()),
        found=tuple(said(name, each) for name, each in seen.items()),
        control=f"allreduce on 3 processes beside exact: {' and '.join(control.values())}",
        noticed=not all_equal(control),
        numbers={**seen, "control": control},
    )  # fmt: skip


def same_resume(bench: Bench, before: int, after: int) -> Row:
    """A run that SIGKILL ends goes on on another number of processes; with another flag of torch's it is refused."""
    through = fingerprint(bench.claimed(1), "cnn fp32")
    out = str(bench.scratch / "killed")
    training = Training(name="cnn fp32", model="cnn", out=out)
    code = 0
    try:
        bench.train([replace(training, dies_at=STEPS - 1)], before)
    except WorkerFailed as error:
        code = error.exit_code
    left = bench.train([replace(training, name="other flag", matmul="medium"), training], after)
    refusal = str(left["other flag"].get("refused", "")).partition(" Hint:")[0].rstrip(".")
    resumed = left[training.name]
    first = resumed.get("resumed_from_step") or 0
    return Row(
        name="kill and resume",
        claim=f"A training on {before} processes, one of them killed by SIGKILL in step {STEPS - 1}, goes on on "
        f"{after} from its checkpoint and ends with the fingerprint of one that nobody disturbed.",
        held=code == KILLED and 0 < first < STEPS and fingerprint(left, training.name) == through,
        found=(
            f"ended with code {code}, resumed from step {first}",
            said(training.name, {"undisturbed": through, "resumed": fingerprint(left, training.name)}),
        ),
        control="a resume with torch.set_float32_matmul_precision('medium'): " + (refusal or "it was not refused"),
        noticed=_FLAG in refusal,
        numbers={"undisturbed": through, "resumed": resumed["fingerprint"], "from_step": first, "code": code},
    )  # fmt: skip


def same_operations(bench: Bench) -> Row:
    """Single operations repeated: one result each; a sum in a random order has several.

    Where torch refuses more than a quarter of them the row has failed: it would say little.
    """
    from unisono.experiments.certify.operations import ATOMIC, CONTROL, DTYPES, repeat_all

    times = 10 if bench.is_quick else 200 if bench.device == CPU else 1000
    found = bench.run(repeat_all, 1, bench.device, times, list(DTYPES), threads=2)
    seen = {f"{name} {dtype}": count for dtype, each in found.items() for name, count in each.items()}
    control = {name: seen.pop(name) for name in [*seen] if name.startswith((CONTROL, ATOMIC))}
    refused = {name: count for name, count in seen.items() if not isinstance(count, int)}
    wrong = {name: count for name, count in seen.items() if name not in refused and count != 1}
    repeated = [name for name in seen if name not in refused]
    return Row(
        name="same operations",
        claim=f"Operations, forward and backward, in fp32 and bf16, {times} times with memory allocated in between and "
        "a neighbour at work, on 2 threads: one result each. Torch refuses none of them, or few.",
        held=not wrong and len(repeated) >= 3 * len(refused),
        found=(
            *(f"{name}: {count} results" for name, count in wrong.items()),
            *(f"{name}: {message}" for name, message in refused.items()),
            f"{len(repeated)} of {len(seen)} were repeated: {', '.join(repeated)}",
        ),
        control="; ".join(f"{name}: {count} results" for name, count in control.items()),
        noticed=all(isinstance(count, int) and count > 1 for count in control.values()),
        numbers={**seen, **control, "times": times},
    )  # fmt: skip


def same_compiled(bench: Bench) -> Row:
    """Compiled models: with an empty cache on one process, with a filled one on three."""
    row = Row(
        name="same compiled",
        claim="torch.compile gives one fingerprint with an empty cache on 1 process and a filled one on 3, whose "
        "replicas are uneven; also with dynamic=True: one code for all sizes, whichever a process sees first.",
    )  # fmt: skip
    if bench.is_quick:
        return replace(row, why_not=_LEFT_OUT)
    if not shutil.which("g++") and bench.device == CPU:
        return replace(row, why_not="there is no g++, which torch.compile calls")
    fixed = Training(name="compiled", is_compiled=True)
    trainings = [fixed, replace(fixed, name="compiled, any size", is_dynamic=True)]
    other = replace(fixed, name="other seed", seed=1)
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(bench.scratch / "inductor")}
    try:
        cold = bench.train([*trainings, other], 1, cache)
        warm = bench.train(trainings, 3, cache)
    except WorkerFailed as error:
        return replace(row, why_not=f"compiled code did not run here: {str(error).strip().splitlines()[-1]}")
    compiled = sum(path.is_file() for path in (bench.scratch / "inductor").rglob("*"))
    if not compiled:
        return replace(row, why_not="torch.compile left nothing in its cache: no code was compiled")
    seen = {
        one.name: {"cold, 1": fingerprint(cold, one.name), "warm, 3": fingerprint(warm, one.name)} for one in trainings
    }
    control = fingerprint(cold, "other seed")
    return replace(
        row, held=all(all_equal(each) for each in seen.values()),
        found=(*(said(name, each) for name, each in seen.items()), f"files in the cache: {compiled}"),
        control=f"another seed: {control}",
        noticed=all(control not in each.values() for each in seen.values()), numbers={**seen, "other seed": control},
    )  # fmt: skip


def timed(bench: Bench, rounds: int = 7) -> Row:
    """How long a step takes beside a plain loop; there is no bar."""
    row = Row(
        name="time of a step",
        claim="A small CNN in one process, batches of 61: exact at V replicas beside a plain loop of torch under the "
        "same switches. Steps so short say nothing about large models.",
    )  # fmt: skip
    if bench.is_quick:
        return replace(row, why_not=_LEFT_OUT)
    from unisono.experiments.certify.programs import time_steps

    times: dict[str, float] = bench.run(time_steps, 1, bench.device, [1, 2, 4, 8], rounds)
    plain = times["plain torch"]
    return replace(
        row,
        found=tuple(f"{name}: {spell_seconds(value)}, {value / plain:.2f} x" for name, value in times.items()),
        numbers=times,
    )


def rows(bench: Bench) -> list[Row]:
    """Run every check and return its row; a row whose check an error has ended has failed."""
    checks: dict[str, Callable[[], Row]] = {
        **{f"same bits, {each}": functools.partial(same_claim, bench, each) for each in WAYS},
        "kill and resume": lambda: same_resume(bench, 2, 3),
        "same strategies": lambda: same_strategies(bench),
        "same operations": lambda: same_operations(bench),
        "same compiled": lambda: same_compiled(bench),
        "waits of a step": lambda: waits(bench),
        "launches of a step": lambda: launches(bench),
        "memory pressure": lambda: pressed(bench),
        "NCCL, one process": lambda: moved(bench),
        "several devices": lambda: several_devices(bench),
        "time of a step": lambda: timed(bench),
        "time and memory of large models": lambda: large(bench),
    }
    found = []
    for name, check in checks.items():
        bench.tell(f"{name} ...")
        began = time.monotonic()
        try:
            row = check()
        except UnisonoError as error:
            row = Row(name=name, claim="The check ends.", held=False, found=(str(error),), control="none was reached")
        found.append(replace(row, seconds=round(time.monotonic() - began, 3)))
    return found
