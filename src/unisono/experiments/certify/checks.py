"""The checks of a certificate: they start processes, compare what those have left, and break something on purpose.

In: a device, and how much time there is. Out: rows. A check that a failed worker ends is a row that failed.
"""

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from unisono.errors import ConfigError, UnisonoError, WorkerFailed
from unisono.experiments.certify.certificate import Row, all_equal
from unisono.experiments.certify.trainings import EXACT_6, MODELS, STEPS, Training, claims, controls, sharded
from unisono.experiments.trials import Tell
from unisono.launchers.api import describe_function
from unisono.launchers.local import run_local
from unisono.launchers.spec import LaunchSpec
from unisono.system.words import spell_seconds

CPU = "cpu"
KILLED = 137
_LEFT_OUT = "left out by --quick"
_FLAG = "float32_matmul_precision"
Found = dict[str, dict[str, Any]]


@final
@dataclass(kw_only=True)
class Bench:
    """Where checks run, and what they have found already."""

    scratch: Path  #: A directory of its own.
    device: str  #: ``cpu``, or a GPU by torch's name.
    is_quick: bool
    tell: Tell
    found: dict[int, Found] = field(default_factory=dict)  #: Of the claim's trainings, by number of processes.
    _launches: int = 0

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of processes on which the claim is looked at."""
        return (1, 2) if self.is_quick else (1, 2, 3, 4, 8)

    @property
    def models(self) -> tuple[str, ...]:
        """Models that are trained."""
        return ("cnn", "lstm") if self.is_quick else MODELS

    def run(
        self,
        program: Callable[..., None],
        workers: int,
        *args: Any,
        threads: int = 1,
        env: Mapping[str, str] | None = None,
    ) -> Any:
        """Run ``program(*args, FILE)`` on so many processes, and return what it has written.

        Raises:
            WorkerFailed: One of them failed.
        """
        self._launches += 1
        out = self.scratch / f"{self._launches}.json"
        places: dict[str, Any] = {"devices": ()} if self.device == CPU else {"share_devices": True}
        target = describe_function(program, (*args, str(out)))
        run_local(LaunchSpec(target=target, workers=workers, threads=threads, output="quiet", env=env or {}, **places))
        return json.loads(out.read_text())

    def train(self, trainings: Sequence[Training], workers: int, env: Mapping[str, str] | None = None) -> Found:
        """Train on so many processes; see `programs.train_all`."""
        from unisono.experiments.certify.programs import train_all  # loads torch

        self.tell(f"  {len(trainings)} trainings on {workers} process{'es' * (workers > 1)} ...")
        found: Found = self.run(train_all, workers, trainings, self.device, env=env)
        return found

    def claimed(self, workers: int) -> Found:
        """Return what the claim's trainings, and the controls that so many processes can run, have left."""
        if workers not in self.found:
            claimed = claims(self.models) if workers in self.counts else []
            self.found[workers] = self.train([*claimed, *controls(workers)], workers)
        return self.found[workers]


def fingerprint(found: Found, name: str) -> str:
    """Return the fingerprint of a training; `ConfigError` where it was refused."""
    if "refused" in found[name]:
        raise ConfigError(f"{name}: {found[name]['refused']}")
    return str(found[name]["fingerprint"])


def same_claim(bench: Bench, precision: str) -> Row:
    """Every model in a precision on several numbers of processes: one fingerprint each; ``ddp`` has several."""
    names = [training.name for training in claims(bench.models) if training.precision == precision]
    seen = {name: {str(count): fingerprint(bench.claimed(count), name) for count in bench.counts} for name in names}
    control = {str(count): fingerprint(bench.claimed(count), "ddp") for count in (2, 3)}
    told = ", ".join(map(str, bench.counts))
    return Row(
        name=f"same bits, {precision}",
        claim=f"exact gives one fingerprint on {told} processes: {', '.join(bench.models)}; with batch normalisation, "
        f"dropout and clipped gradients, in {precision}.",
        held=all(all_equal(each) for each in seen.values()),
        found=tuple(_said(name, each) for name, each in seen.items()),
        control=f"ddp on 2 and on 3 processes, which add in different orders: {' and '.join(control.values())}",
        noticed=not all_equal(control),
        numbers={**seen, "ddp": control},
    )  # fmt: skip


def _said(name: str, prints: Mapping[str, str]) -> str:
    if all_equal(prints):
        return f"{name}: {next(iter(prints.values()))}"
    return f"{name}: DIFFERENT, {', '.join(f'{count}: {value}' for count, value in prints.items())}"


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
        found=tuple(_said(name, each) for name, each in seen.items()),
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
            _said(training.name, {"undisturbed": through, "resumed": fingerprint(left, training.name)}),
        ),
        control="a resume with torch.set_float32_matmul_precision('medium'): " + (refusal or "it was not refused"),
        noticed=_FLAG in refusal,
        numbers={"undisturbed": through, "resumed": resumed["fingerprint"], "from_step": first, "code": code},
    )  # fmt: skip


def same_operations(bench: Bench) -> Row:
    """Single operations repeated: one result each; a sum in a drawn order has several."""
    from unisono.experiments.certify.operations import CONTROL, DTYPES, repeat_all

    times = 10 if bench.is_quick else 200 if bench.device == CPU else 1000
    found = bench.run(repeat_all, 1, bench.device, times, list(DTYPES), threads=2)
    different = {f"{name} {dtype}": count for dtype, each in found.items() for name, count in each.items()}
    control = [different.pop(f"{CONTROL} {dtype}") for dtype in DTYPES]
    wrong = [f"{name}: {count} results" for name, count in different.items() if isinstance(count, int) and count != 1]
    refused = [f"{name}: {count}" for name, count in different.items() if not isinstance(count, int)]
    return Row(
        name="same operations",
        claim=f"Each of {len(found['fp32']) - 1} operations, forward and backward, in fp32 and bf16, {times} times "
        "with memory allocated in between and a neighbour at work, on 2 threads: one result.",
        held=not wrong and len(refused) < len(different),
        found=(*wrong, *refused, f"{', '.join(name for name in found['fp32'] if name != CONTROL)}"),
        control=f"{CONTROL}: {' and '.join(map(str, control))} results in fp32 and bf16",
        noticed=control[0] != 1,
        numbers={**different, "times": times},
    )  # fmt: skip


def same_compiled(bench: Bench) -> Row:
    """Compiled models: with an empty cache on one process, with a filled one on three."""
    row = Row(
        name="same compiled",
        claim="torch.compile gives one fingerprint with an empty cache on 1 process and a filled one on 3, whose "
        "replicas are uneven.",
    )  # fmt: skip
    if bench.is_quick:
        return replace(row, why_not=_LEFT_OUT)
    if not shutil.which("g++") and bench.device == CPU:
        return replace(row, why_not="there is no g++, which torch.compile calls")
    trainings = [Training(name="compiled", model="linear", is_compiled=True)]
    other = replace(trainings[0], name="other seed", seed=1)
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(bench.scratch / "inductor")}
    try:
        cold = bench.train([*trainings, other], 1, cache)
        warm = bench.train(trainings, 3, cache)
    except WorkerFailed as error:
        return replace(row, why_not=f"compiled code did not run here: {str(error).strip().splitlines()[-1]}")
    compiled = sum(path.is_file() for path in (bench.scratch / "inductor").rglob("*"))
    if not compiled:
        return replace(row, why_not="torch.compile left nothing in its cache: no code was compiled")
    seen = {"cold, 1": fingerprint(cold, "compiled"), "warm, 3": fingerprint(warm, "compiled")}
    control = fingerprint(cold, "other seed")
    return replace(
        row, held=all_equal(seen), found=(_said("linear", seen), f"files in the cache: {compiled}"),
        control=f"another seed: {control}",
        noticed=control not in seen.values(), numbers={**seen, "other seed": control},
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


def waits(bench: Bench) -> Row:
    """How often the CPU waits for the device in a step."""
    row = Row(
        name="waits of a step",
        claim="Beside one event no operation of a step waits for the device, whatever the replicas: exact, islands "
        "between their meetings, allreduce and fsdp in one process.",
    )  # fmt: skip
    if bench.device == CPU:
        return replace(row, why_not="it is about GPUs: --device cpu was certified")
    from unisono.experiments.certify.programs import READING, count_waits  # loads torch

    found: dict[str, list[int]] = bench.run(count_waits, 1, bench.device)
    control = found.pop(READING)
    return replace(
        row, held=not any(map(any, found.values())),
        found=tuple(f"{name}: {' and '.join(map(str, each))}" for name, each in found.items()),
        control=f"{READING}: {' and '.join(map(str, control))}", noticed=all(each == 2 for each in control),
        numbers={**found, "control": control},
    )  # fmt: skip


def not_run(device: str) -> list[Row]:
    """Return the rows of what this version cannot run on a device, each with the reason."""
    why = "it is about GPUs: --device cpu was certified" if device == CPU else "this version has no program for it"
    reasons = {"fp16": "fp32 and bf16 were; no training of the certificate scales its losses and skips steps yet"}
    return [
        Row(name=name, claim=claim, why_not=reasons.get(name, why))
        for name, claim in {
            "launches": "Fewer than 80 kernels in a step of exact, beside its passes, its data and its update.",
            "NCCL": "Ranks that have a GPU each exchange over NCCL; its algorithms and channels change no bit.",
            "several devices": "One process a device, in any order, gives the bits of one device.",
            "memory pressure": "The bits are the same where a GPU's memory is short.",
            "fp16": "exact gives one fingerprint in fp16 with its scaler.",
        }.items()
    ]  # fmt: skip


def rows(bench: Bench) -> list[Row]:
    """Run every check and return its row; a row whose check an error has ended has failed."""
    checks: dict[str, Callable[[], Row]] = {
        "same bits, fp32": lambda: same_claim(bench, "fp32"),
        "same bits, bf16": lambda: same_claim(bench, "bf16"),
        "kill and resume": lambda: same_resume(bench, 2, 3),
        "same strategies": lambda: same_strategies(bench),
        "same operations": lambda: same_operations(bench),
        "same compiled": lambda: same_compiled(bench),
        "waits of a step": lambda: waits(bench),
        "time of a step": lambda: timed(bench),
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
    return [*found, *not_run(bench.device)]
