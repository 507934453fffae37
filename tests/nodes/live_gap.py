"""How long a step takes in which another host's worker is killed, or all of that host, or the host that decides.

``python -m nodes.live_gap worker|host|decider KILLS`` in ``tests``.
"""

import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from hosts import Host, Hosts, differs, gate, train_alone

LIVE = ("--live", "auto", "--heartbeat", "60")  # --silence is 1 s
STEP = 9


def kill_one(first: Host, second: Host, hosts: Hosts, what: str) -> float:
    """Kill the second host's worker, or its launcher too; return seconds until the first host has done the step.

    The step that it interrupts and the one behind it: what was in progress may have had all its messages.
    """
    second.wait_for_step(STEP)
    hosts.open(STEP)
    (victim,) = second.wait_for_step(STEP + 1)
    began = time.monotonic()
    os.kill(victim.pid if what == "worker" else second.process.pid, signal.SIGKILL)
    done = max(reading.done for reading in first.readings())
    while max(reading.done for reading in first.readings()) < done + 2:
        assert first.process.poll() is None, first.err
        time.sleep(0.001)
    return time.monotonic() - began


def measure(what: str, kills: int) -> list[float]:
    """Return the gap in seconds of so many launches; bits are compared.

    Two hosts with two workers and one, of which the second loses its worker or all; or three hosts with one worker
    each, of which the first one, which decides and leads, loses all.
    """
    gaps, workers = [], (1, 1, 1) if what == "decider" else (2, 1)
    with tempfile.TemporaryDirectory() as folder:
        reference = train_alone(Path(folder, "alone"))
        for number in range(kills):
            hosts = Hosts(Path(folder, str(number)))
            try:
                started = [
                    hosts.start(
                        "abc"[rank], gate(STEP), nodes=str(len(workers)), rank=rank, workers=count, options=LIVE
                    )
                    for rank, count in enumerate(workers)
                ]
                stays, dies = (started[1], started[0]) if what == "decider" else started
                gaps.append(kill_one(stays, dies, hosts, what))
                assert {host.finish() for host in started if host is not dies} <= {0}, hosts.words()
                assert differs(hosts.out, reference) == ""
            finally:
                hosts.close()
    return gaps


if __name__ == "__main__":
    found = sorted(measure(sys.argv[1], int(sys.argv[2])))
    print(" ".join(f"{gap:.3f}" for gap in found), f"median {statistics.median(found):.3f} s")
