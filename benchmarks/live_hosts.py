"""The host that decides is lost: how long until the others have finished the step that this interrupts?

    python benchmarks/live_hosts.py [--rounds 12]    # so many kills, a run each
    python benchmarks/live_hosts.py --quick          # one kill

Three launchers on this machine meet over loopback, as those of three hosts would, with a worker each that trains
SimpleCNN (`live_job`). The first one decides for all and keeps the rendezvous, and its worker leads. It gets SIGKILL at
an instant that the round decides, and its worker dies with it. The gap ends when both others have finished the step
that was interrupted. They wait 1.5 times --silence (1 s, the default) before they go on without a host. Beside it stand
two undisturbed steps of the same runs. Each run must end with the fingerprint, metrics and ledger of one undisturbed
process, without a step done again.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import live_job
from harness import UNISONO, parser_of, rounds_of, save
from live_kills import TOPIC, compare, step_time
from results import Bar, Result

from unisono.experiments.chaos.deaths import Death
from unisono.experiments.chaos.hosts import HostsRun, Launchers, free_port

JOB = Path(live_job.__file__).resolve()
HOSTS, STEPS, QUICK_STEPS = 3, 120, 60
FIRST, AWAY = 22, 7  # the step of the first kill; of each further one so many later
COMMAND = "python benchmarks/live_hosts.py"
END_S = 300.0


def lose_decider(folder: Path, reference: Path, steps: int, number: int) -> tuple[float, float]:
    """Make one run whose deciding host is lost; return the gap and an undisturbed step, in seconds.

    Raises:
        RuntimeError: It did not end as it should.
    """
    where = f"127.0.0.1:{free_port()}"
    together = ["--live", "auto", "--threads", "1", "--nnodes", str(HOSTS), "--rdzv-endpoint", where]
    job = [str(JOB), "cnn", str(folder / "run"), str(steps)]
    commands = [[*UNISONO, "run", "-n", "1", *together, "--node-rank", str(host), *job] for host in range(HOSTS)]
    with Launchers(commands, {**os.environ}, folder / "tmp") as launchers:
        run = HostsRun(launchers, 1, steps - 5)
        step_s = step_time(run, launchers)
        at = FIRST + number * AWAY % (steps - 10 - FIRST)
        died = run.strike(Death(step=at, rank=0, aim="", delay_s=number % 5 / 100, kind="decider"))
        wrong = launchers.end(END_S)
    told = compare(reference, folder) if died and died[0].gap_s is not None and not wrong else {"equal": False}
    if not told["equal"]:
        raise RuntimeError(f"run {number} did not end as it should: {died}, {told}, {wrong}")
    print(
        f"{number}: {died[0].gap_s:.3f} s in step {died[0].step} ({died[0].phase}); a step {step_s:.4f} s", flush=True
    )
    return died[0].gap_s, step_s


def main() -> int:
    """Lose the deciding host as often as is asked for, and record how long the others needed."""
    given = parser_of(__doc__, rounds=12).parse_args()
    steps, rounds = QUICK_STEPS if given.quick else STEPS, rounds_of(given, quick=1)
    with tempfile.TemporaryDirectory(prefix="hosts-") as scratch:
        reference = Path(scratch, "reference")
        subprocess.run([sys.executable, str(JOB), "cnn", str(reference), str(steps)], check=True)
        found = []
        for number in range(rounds):
            folder = Path(scratch, str(number))
            folder.mkdir()
            found.append(lose_decider(folder, reference, steps, number))
    gaps, step_s = [gap for gap, _ in found], [2 * step for _, step in found]
    lost = "the deciding one of 3 hosts is killed (SimpleCNN, a worker each, loopback, --silence 1)"
    settings = {"kills": rounds, "load": round(os.getloadavg()[0], 1)}
    common = {"unit": "s", "topic": TOPIC, "command": COMMAND, "settings": settings}
    to_end = f"from SIGKILL to the end of the interrupted step, {lost}"
    save(given, [
        Result.of("live-decider", gaps, what=to_end, bar=Bar(at_most=2), **common),
        Result.of("live-decider-longest", [max(gaps)], what=f"{to_end}: the longest", bar=Bar(at_most=2), **common),
        Result.of("live-decider-steps", step_s, what=f"two undisturbed steps before {lost}", **common),
    ])  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
