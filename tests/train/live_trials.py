"""Many small worlds whose ranks die, forked one after the other from one process that has loaded everything.

In: a list of trials as JSON, each ``[ranks, kills, settings]``; see `play`. Out: what became of each. The
ranks are real processes with real runs; what `attempt` does for a launch is done here with the same parts.
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

from unisono.launchers.supervision.live_recovery import LIVE_VARIABLE, Channels, LiveRecovery, Told

CACHE = ""


def play(size, kills, settings, shots=()):
    """Let a world of so many ranks train; return what its ranks, its launcher and its ledger tell.

    Args:
        size: Ranks.
        kills: See `live_programs.train`.
        settings: See there.
        shots: Ranks that are killed from outside, and so many seconds after all have begun their steps.
    """
    events, said = queue.SimpleQueue(), []
    with tempfile.TemporaryDirectory() as folder:
        channels = Channels(events.put)
        live = LiveRecovery(range(size), channels.send, said.append)
        pids = {}
        for rank in range(size):
            theirs = channels.open(rank)
            pid = os.fork()
            if pid == 0:
                _rank(rank, size, theirs.fileno(), folder, kills, settings)
            theirs.close()
            pids[rank] = pid
            threading.Thread(target=_watch, args=(rank, pid, events), daemon=True).start()
        codes, opened = {}, 0
        while len(codes) < size:
            event = events.get(timeout=60)
            if isinstance(event, Told):
                opened += event.message.get("open", False)
                if event.message.get("open") and opened == size:
                    for rank, after_s in shots:
                        threading.Timer(after_s, os.kill, (pids[rank], signal.SIGKILL)).start()
                live.heard(event)
                continue
            rank, codes[rank] = event
            has_report = Path(folder, f"error-{rank}").exists()
            if codes[rank] == 0:
                live.ended(rank)
            elif live.died(rank, codes[rank], (0, -1), has_report=has_report):
                for other in set(pids) - set(codes):
                    os.kill(pids[other], signal.SIGKILL)
        for pid in pids.values():
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
                if code == 0
            },
            "errors": [path.read_text() for path in sorted(Path(folder).glob("error-*"))],
        }


def _bits(line):
    entry = json.loads(line)
    return [entry[name] for name in ("step", "loss", "gradient", "weights") if name in entry]


def _watch(rank, pid, events):
    end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # as a launch does: its number stays its own
    events.put((rank, end.si_status if end.si_code == os.CLD_EXITED else -end.si_status))


def _rank(rank, size, channel, folder, kills, settings):
    """Be a rank; never returns."""
    os.environ.update(
        {
            "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
            "UNISONO_RENDEZVOUS": f"{folder}/store", "GLOO_SOCKET_IFNAME": "lo", LIVE_VARIABLE: str(channel),
            "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": CACHE,
        }
    )  # fmt: skip
    code = 0
    try:
        live_programs.train(f"{folder}/run", kills, **settings)
    except BaseException:  # noqa: BLE001 - told to the parent
        Path(folder, f"error-{rank}").write_text(traceback.format_exc())
        code = 1
    os._exit(code)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as CACHE:
        sys.stdout.write(json.dumps([play(*trial) for trial in json.load(sys.stdin)]))
