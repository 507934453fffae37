"""Cases about death: whoever is killed at whatever moment, nothing outlives the launcher and the bits are the same."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from adversary.found import Missed, check
from adversary.trainings import draw, num_steps, on_ranks

VICTIMS = ("worker", "workers", "launcher", "everything", "asked")
_LAUNCH_S = 120


def descendants(pid: int) -> list[int]:
    """Return the living processes below one, itself left out."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] not in "ZX":
            parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, left = [], [pid]
    while left:
        below = parents.get(left.pop(), [])
        found += below
        left += below
    return found


def ranks_of(pid: int) -> list[int]:
    """Return the processes below a launcher that are ranks, by what their environment says."""
    found = {}
    for below in sorted(descendants(pid)):
        try:
            variables = Path(f"/proc/{below}/environ").read_bytes().split(b"\0")
            name = Path(f"/proc/{below}/comm").read_text().strip()
        except OSError:
            continue
        rank = [variable for variable in variables if variable.startswith(b"RANK=")]
        if name.startswith("unisono-rank"):  # a forked one, whose variables are those of what it was forked from
            found.setdefault(name, below)
        elif rank and name != "unisono-forks":
            found.setdefault(rank[0], below)  # the first is the rank, those below it are its helpers
    return sorted(found.values())


def kill(chance: random.Random, *, cheat: bool = False) -> str:
    """A job on real processes, hit once or twice, launched again on another number until it ends: the same bits."""
    description = draw(chance) | {"replicas": 4, "batch_size": 16, "num_samples": 128, "epochs": 10, "shuffle": True}
    total = num_steps(description)
    # torch's FSDP can neither call a module twice nor differentiate twice; both are refused or fail loudly.
    is_plain = description["model"] != "tied" and not description["penalty"]
    strategy = chance.choice(["exact", "exact", "fsdp"] if is_plain else ["exact"])
    hits = []
    with tempfile.TemporaryDirectory() as folder:
        whole = on_ranks(description, 1, out=f"{folder}/whole", checkpoint_every=5)[0]
        out = Path(folder, "run")
        launched = description | {"strategy": strategy} | ({"seed": description["seed"] + 1} if cheat else {})
        for _ in range(chance.choice([1, 1, 2])):
            victim, step = chance.choice(VICTIMS), chance.randint(1, total - 15)
            hits.append(
                _hit(out, launched, chance.randint(1, 4), chance.choice([0, 2]), victim, step, chance.random() * 0.02)
            )
        workers = chance.randint(1, 3)
        process = _launch(out, launched, workers)
        words = f"{hits}, then {workers} workers: {launched}"
        check(process.wait(_LAUNCH_S) == 0, f"the last launch ended with {process.returncode} after {words}")
        result = json.loads((out / "result.json").read_text())
        check(result["fingerprint"] == whole["fingerprint"], f"another fingerprint after {words}")
        check((out / "ledger.jsonl").read_text() == whole["ledger"], f"another ledger after {words}")
    if not any(landed for *_, landed in hits):
        raise Missed(f"no hit landed: {hits}")
    return f"{strategy} {description['model']} {hits}"


def _launch(out: Path, description: dict[str, object], workers: int, restarts: int = 0) -> subprocess.Popen[bytes]:
    program = Path(__file__).parent / "launched.py"
    options = ["-n", str(workers), "--max-restarts", str(restarts)]
    return subprocess.Popen(
        [sys.executable, "-m", "unisono", "run", *options, str(program), str(out), json.dumps(description)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def _hit(
    out: Path, description: dict[str, object], workers: int, restarts: int, victim: str, step: int, delay_s: float
) -> tuple[str, int, int, int, bool]:
    """Launch, wait until the ledger has some lines, kill; return who was hit, when, and whether it was in time."""
    process = _launch(out, description, workers, restarts)
    ledger, deadline = out / "ledger.jsonl", time.monotonic() + _LAUNCH_S
    while process.poll() is None and time.monotonic() < deadline:
        if ledger.exists() and ledger.read_bytes().count(b"\n") >= step:
            break
        time.sleep(0.005)
    time.sleep(delay_s)
    is_landed = process.poll() is None
    everybody = [process.pid, *descendants(process.pid)]
    ranks = ranks_of(process.pid)
    if victim == "asked":
        process.send_signal(signal.SIGTERM)
    chosen = {"worker": ranks[:1], "workers": ranks, "launcher": [process.pid], "everything": everybody}.get(victim, [])
    for pid in chosen:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            is_landed = False
    try:
        process.wait(_LAUNCH_S)
    finally:
        if process.poll() is None:
            process.kill()
    allowed = {"launcher": {-9}, "everything": {-9}, "asked": {75, 143, -15}}.get(
        victim, {137} if not restarts else set()
    )
    check(process.returncode in {0, *allowed}, f"the launcher ended with {process.returncode} after {victim} was hit")
    patience = time.monotonic() + 10
    while (alive := [pid for pid in everybody if _is_alive(pid)]) and time.monotonic() < patience:
        time.sleep(0.02)
    check(not alive, f"outlived the launcher after {victim} was hit: {alive}")
    return victim, workers, restarts, step, is_landed


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
