"""Many small worlds whose ranks die, forked one after the other from one process that has loaded everything.

In: lines of JSON, each a list of trials ``[ranks, kills, settings]``; see `play`. Out: for each line another one, what
became of each. The ranks are real processes with real runs; what `attempt` does for a launch is done here with the same
parts.
"""

import json
import os
import queue
import signal
import sys
import tempfile
import threading
import traceback
from pathlib import Path

import live_programs

from unisono.checkpoint.manifest import read_manifest
from unisono.checkpoint.store import newest_valid
from unisono.launchers.control import Asked
from unisono.launchers.supervision.channels import LIVE_VARIABLE, Channels, Told
from unisono.launchers.supervision.live_recovery import LiveRecovery
from unisono.launchers.supervision.replacements import Replacements
from unisono.launchers.worker.environment import JOINS_VARIABLE
from unisono.train.run_directory import lock

CACHE = ""


def play(size, kills, settings, shots=(), spares=0, budget=0):
    """Let a world of so many ranks train; return what its ranks, its launcher and its ledger tell.

    Args:
        size: Ranks.
        kills: See `live_programs.train`.
        settings: See there.
        shots: Ranks that are killed from outside, and so many seconds after all have begun their steps.
        spares: So many more are started with them, to join when one dies.
        budget: So many may die in a row, without progress, and others are started for them.
    """
    events, said, answers = queue.SimpleQueue(), [], []
    with tempfile.TemporaryDirectory() as folder:
        channels = Channels(events.put)
        live = LiveRecovery(range(size), channels.send, said.append, Replacements(size, spares, budget))
        pids = {}

        def start(rank):
            theirs = channels.open(rank)
            pid = os.fork()
            if pid == 0:
                _rank(rank, size, theirs.fileno(), folder, kills, settings)
            theirs.close()
            pids[rank] = pid
            watched = rank, pid, events, channels, settings.get("wakes", False)
            threading.Thread(target=_watch, args=watched, daemon=True).start()

        for rank in range(size):
            start(rank)
        codes, opened = {}, 0
        while len(codes) < len(pids):
            for rank in live.start():
                start(rank)
            for rank in live.unwanted - {*codes}:
                os.kill(pids[rank], signal.SIGKILL)
            if len(codes) == len(pids):
                break
            event = events.get(timeout=600)
            if isinstance(event, Told):
                opened += event.message.get("open", False)
                if event.message.get("open") and opened == size:
                    for rank, after_s in shots:
                        threading.Timer(after_s, os.kill, (pids[rank], signal.SIGKILL)).start()
                if "asks" in event.message:
                    live.resize(Asked(event.message["asks"], answers.append))
                else:
                    live.heard(event)
                live.look()
                continue
            rank, codes[rank] = event
            has_report = Path(folder, f"error-{rank}").exists()
            if codes[rank] == 0:
                live.ended(rank)
            elif live.died(rank, codes[rank], (0, -1), has_report=has_report, reached=(len(codes), 0)):
                for other in set(pids) - set(codes):
                    os.kill(pids[other], signal.SIGKILL)
        for pid in pids.values():
            os.kill(pid, signal.SIGCONT)
            os.waitpid(pid, 0)
        channels.close()
        ledger = Path(folder, "run", "ledger.jsonl")
        return {
            "codes": codes,
            "said": said,
            "ledger": [_bits(line) for line in ledger.read_text().splitlines()] if ledger.exists() else [],
            "told": {
                rank: json.loads(Path(folder, "run", f"told-{rank}.json").read_text())
                for rank, code in codes.items()
                if code == 0 and Path(folder, "run", f"told-{rank}.json").exists()
            },
            "answers": [{name: value for name, value in each.items() if name != "seconds"} for each in answers],
            "lines": {path.name: path.read_text() for path in sorted(Path(folder, "run").glob("[dm]e*.jsonl"))},
            "result": _result(Path(folder, "run", "result.json")),
            "counts": _result(Path(folder, "run", "result.json"), ("world_size", "deaths", "joins")),
            "witness": _result(Path(folder, "run", "result.json"), ("witness",))["witness"],
            "newest": _newest(Path(folder, "run", "checkpoints")),
            "errors": [path.read_text() for path in sorted(Path(folder).glob("error-*"))],
        }


def _result(path, names=("fingerprint", "finished", "steps", "metrics", "ledger_head", "world_size")):
    found = json.loads(path.read_text()) if path.exists() else {}
    return {name: found.get(name) for name in names}


def _newest(path):
    """Return the step of the newest checkpoint, and what cannot be trusted there."""
    found, complaints = newest_valid(path) if path.exists() else (None, [])
    return [found and read_manifest(found).step, complaints, [each.name for each in path.glob(".*")]]


def _bits(line):
    entry = json.loads(line)
    return [entry[name] for name in ("step", "loss", "gradient", "weights") if name in entry]


def _watch(rank, pid, events, channels, wakes):
    # As a launch does: its number stays its own.
    while (end := os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)).si_code == os.CLD_STOPPED:
        if wakes:
            break
        os.kill(pid, signal.SIGKILL)
        os.kill(pid, signal.SIGCONT)
    code = -signal.SIGKILL if end.si_code == os.CLD_STOPPED else -end.si_status
    channels.hear_out(rank)
    events.put((rank, end.si_status if end.si_code == os.CLD_EXITED else code))


def _rank(rank, size, channel, folder, kills, settings):
    """Be a rank; never returns."""
    place = str(min(rank, size - 1))
    os.environ.update(
        {
            "RANK": place, "WORLD_SIZE": str(size), "LOCAL_RANK": place, "LOCAL_WORLD_SIZE": str(size),
            "UNISONO_RENDEZVOUS": f"{folder}/store", "GLOO_SOCKET_IFNAME": "lo", LIVE_VARIABLE: str(channel),
            "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": CACHE,
        }
    )  # fmt: skip
    if rank >= size:
        os.environ[JOINS_VARIABLE] = str(rank)
    if settings.get("wakes"):
        lock._LEASE_S = 3.0  # the others wait for it in vain
    code = 0
    try:
        live_programs.train(f"{folder}/run", kills, **settings)
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - told to the parent
        Path(folder, f"error-{rank}").write_text(traceback.format_exc())
        code = 1
    os._exit(code)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as CACHE:
        for line in sys.stdin:
            print(json.dumps([play(*trial) for trial in json.loads(line)]), flush=True)
