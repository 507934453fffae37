"""Made-up step phases and studies."""

from dataclasses import replace

from unisono.observe.phases import PHASES, StepPhases
from unisono.scaling.study import STEP_PHASES, Study, Trial

MS = 1_000_000


def records(workers, steps=12, *, launch=1, first=1, began_ns=10**18, slow=None, **phases_ms):
    """Return steps of `workers` ranks; phases in milliseconds; rank `slow` computes twice as long."""
    usual = {"data": 1, "forward": 10, "backward": 20, "reduce": 4, "update": 2, "other": 1} | phases_ms
    found = []
    for number in range(steps):
        for rank in range(workers):
            ns = dict.fromkeys(PHASES, 0) | {name: round(ms * MS) for name, ms in usual.items()}
            if rank == slow:
                ns["forward"] *= 2
            at = began_ns + number * 60 * MS
            found.append(
                StepPhases(step=first + number, launch=launch, rank=rank, world_size=workers, began_ns=at, ns=ns)
            )
    return found


def trial(workers, step_s, *, repeat=0, fingerprint="f", batch_size=64, **more):
    phases = dict.fromkeys(STEP_PHASES, 0.0) | {"forward": step_s / 2, "backward": step_s / 4, "reduce": step_s / 4}
    made = Trial(
        workers=workers, repeat=repeat, batch_size=batch_size, steps=20, total_s=9.0, startup_s=4.0, step_s=step_s,
        step_q1_s=step_s * 0.9, step_q3_s=step_s * 1.1, phases_s=[dict(phases) for _ in range(workers)],
        between_s=[{"checkpoint": 0.5, "evaluate": 0.1} for _ in range(workers)], fingerprint=fingerprint, load=1.0,
    )  # fmt: skip
    return replace(made, **more)


def study(*trials, **more):
    made = Study(
        target="digits", weak=False, strategy="exact", is_exact=True, warmup=5, cores=2, threads=1, device="cpu",
        environment={"torch": "2.13.0", "cpu": "a cpu"}, command="unisono bench",
        date="2026-11-21T12:00:00",
        trials=list(trials) or [trial(1, 0.08), trial(2, 0.05), trial(4, 0.05)],
    )  # fmt: skip
    return replace(made, **more)
