"""Kills or stops one of four ranks in the middle of an all-reduce, again and again; a program, run by the tests.

In: the number of repetitions, SIGKILL or SIGSTOP, the ranks' timeout. Out: a line of JSON for each repetition. The
ranks are forked, so that torch is imported once.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.distributed import FileStore

from unisono.collectives.operations import Collectives
from unisono.collectives.rendezvous import share_memory
from unisono.errors import PeerLost

WORLD_SIZE = 4


def be_rank(rank: int, folder: str, timeout_s: float, said: int, told: int, *, stops: bool) -> None:
    """Reduce until a rank is lost; say what was seen, and stay until all have said it.

    A rank that `stops` does so between two operations: within a meeting, all ranks would have begun the same one.
    """
    torch.set_num_threads(1)
    board, _ = share_memory(FileStore(f"{folder}/store", WORLD_SIZE), rank, WORLD_SIZE, timeout_s, 16 << 10)
    group = Collectives(board)
    value = torch.ones(50_000)  # more than three slots
    os.write(said, b"ready\n")
    try:
        while True:
            group.all_reduce(value, "MAX")
            if stops:
                os.write(said, b"%f\n" % time.monotonic())
                os.kill(os.getpid(), signal.SIGSTOP)
    except PeerLost as error:
        report = {"rank": rank, "at": time.monotonic(), "error": str(error), "meetings": board.num_barriers}
    os.write(said, json.dumps(report).encode() + b"\n")
    os.read(told, 1)  # until the others' end of the pipe is closed


def repeat(signum: int, timeout_s: float, draw: random.Random) -> dict[str, object]:
    """Start four ranks, hit one at a random moment, and collect what the others say."""
    victim = draw.randrange(WORLD_SIZE)
    with tempfile.TemporaryDirectory() as folder:
        told, release = os.pipe()
        pids, ears = [], []
        for rank in range(WORLD_SIZE):
            ear, said = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(release)
                code = 1
                try:
                    be_rank(rank, folder, timeout_s, said, told, stops=signum == signal.SIGSTOP and rank == victim)
                    code = 0
                finally:
                    os._exit(code)
            os.close(said)
            pids.append(pid)
            ears.append(os.fdopen(ear))
        for ear in ears:
            assert ear.readline() == "ready\n"
        time.sleep(draw.uniform(0, 0.03))
        hit = float(ears[victim].readline()) if signum == signal.SIGSTOP else time.monotonic()
        os.kill(pids[victim], signum)
        reports = [json.loads(ear.readline()) for rank, ear in enumerate(ears) if rank != victim]
        os.close(release)
        os.close(told)
        os.kill(pids[victim], signal.SIGKILL)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        for ear in ears:
            ear.close()
    for report in reports:
        report["after_s"] = report.pop("at") - hit
    return {"victim": victim, "pid": pids[victim], "reports": reports, "codes": codes}


def main() -> None:
    """Repeat, and look at what is left."""
    repetitions, signum, timeout_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    before = set(Path("/dev/shm").iterdir())
    draw = random.Random(repetitions)
    for _ in range(repetitions):
        print(json.dumps(repeat(signum, timeout_s, draw)))
    left = [path.name for path in set(Path("/dev/shm").iterdir()) - before if "unisono" in path.name]
    held = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink() and "memfd" in str(link.readlink())]
    print(json.dumps({"left": left, "held": len(held)}))


if __name__ == "__main__":
    main()
