"""What `--cpu-level avx2` costs: the step of one worker with and without it, in programs of their own by turns.

    python benchmarks/cpu_level.py [--rounds 10] [--quick] [--out DIR]

For hosts with unlike CPUs: no library then uses instructions newer than AVX2. On a CPU that has no newer ones it costs
nothing and says nothing. A sample is the median step of one program, one thread, after three steps.
"""

import statistics
import sys
import time

from harness import UNISONO, in_turn, parser_of, rounds_of, run, save, slug
from results import Result

SAMPLES = {"SimpleCNN": 64, "MLP": 64, "GPT": 8}
STEPS = 40


def child(name: str, steps: int) -> None:
    """Print the milliseconds of a median step."""
    from exact_vs_ddp import exact_step
    from hosts_rank import job

    import unisono

    with unisono.Run(seed=0, replicas=1) as the_run:
        step, taken = exact_step(the_run, *job(name, SAMPLES[name])), []
        for _ in range(steps):
            began = time.perf_counter()
            step()
            taken.append(1e3 * (time.perf_counter() - began))
    print(statistics.median(taken[3:]))


def main() -> None:
    given, found = parser_of(__doc__, rounds=10).parse_args(), []
    steps = 5 if given.quick else STEPS
    for name in [*SAMPLES][:1] if given.quick else SAMPLES:

        def play(*level: str, name: str = name) -> float:
            return float(run([*UNISONO, "run", "-n", "1", *level, __file__, name, str(steps)])[2])

        ways = {"with": lambda play=play: play("--cpu-level", "avx2"), "without": play}
        taken = in_turn(ways, rounds_of(given), warm_up=0)
        found.append(Result.of(
            f"cpu-level-{slug(name)}", taken["with"], against=taken["without"], peer="all instructions",
            topic="Unlike CPUs", what=f"a step of {name} with --cpu-level avx2", unit="ms a step",
            command="python benchmarks/cpu_level.py", settings={"model": name, "threads": 1},
        ))  # fmt: skip
    save(given, found)


if __name__ == "__main__":
    child(sys.argv[1], int(sys.argv[2])) if sys.argv[1:2] and sys.argv[1] in SAMPLES else main()
