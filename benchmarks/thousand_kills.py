"""A thousand kills: rounds of ``unisono chaos``, each with its own seed, until so many have landed; all must be equal.

    python benchmarks/thousand_kills.py [--kills 1000] [--per-round 50] [-n 2] [--fault KIND]... [RECIPE]

Every round is one line in ``build/thousand_kills.jsonl``; started again, it goes on counting there. Stops at the first
round that is not equal. A round's seed repeats its schedule: ``unisono chaos digits -n 2 --kills 50 --seed SEED``.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median

RECORD = Path(__file__).parents[1] / "build" / "thousand_kills.jsonl"
KILLS = ("kill-worker", "kill-all", "kill-launcher")


def main() -> int:
    """Play rounds and print the sum after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="digits")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--per-round", type=int, default=50)
    parser.add_argument("-n", "--workers", type=int, default=2)
    parser.add_argument("--fault", action="append", default=[])
    given = parser.parse_args()
    RECORD.parent.mkdir(exist_ok=True)
    rounds = [json.loads(line) for line in RECORD.read_text().splitlines()] if RECORD.exists() else []
    while (landed := sum(row["landed"] for row in rounds)) < given.kills:
        rounds.append(play(given, seed=1 + max((row["seed"] for row in rounds), default=0)))
        with RECORD.open("a") as file:
            file.write(json.dumps(rounds[-1]) + "\n")
        print_sum(rounds)
        if not rounds[-1]["equal"] or not rounds[-1]["landed"]:
            return 1
    print_sum(rounds)
    return 0 if landed and all(row["equal"] for row in rounds) else 1


def play(given: argparse.Namespace, seed: int) -> dict:
    """Play one round and return its line."""
    kinds = [part for kind in given.fault or KILLS for part in ("--fault", kind)]
    command = [
        sys.executable, "-m", "unisono", "chaos", given.recipe, "-n", str(given.workers),
        "--kills", str(given.per_round), "--seed", str(seed), "--json", *kinds,
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    told = json.loads(done.stdout)
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"), "seed": seed, "workers": given.workers, "equal": told["equal"],
        "landed": told["landed"], "seconds": told["seconds"], "fingerprint": told["disturbed"],
        "kinds": Counter(blow["fault"]["kind"] for blow in told["faults"] if blow["has_landed"]),
        "recovery_s": [blow["recovery_s"] for blow in told["faults"] if blow["recovery_s"] is not None],
    }  # fmt: skip


def print_sum(rounds: list[dict]) -> None:
    """Print all rounds so far as one line."""
    times = [value for row in rounds for value in row["recovery_s"]]
    kinds = sum((Counter(row["kinds"]) for row in rounds), Counter())
    print(
        f"{sum(kinds.values())} faults in {len(rounds)} rounds ({dict(kinds)}), "
        f"{sum(row['equal'] for row in rounds)} rounds equal, {sum(row['seconds'] for row in rounds):.0f} s; "
        f"next step after {median(times):.1f} s (median), {max(times):.1f} s (longest)",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
