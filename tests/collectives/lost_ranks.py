"""Kills or stops some of four ranks in the middle of an all-reduce, again and again; a program, run by the tests.

In: the number of repetitions, SIGKILL or SIGSTOP, the ranks' timeout, how many ranks to hit. Out: a line of JSON for
each repetition. The ranks are forked, so that torch is imported once.
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

from unisono.collectives.shm.join import share_memory
from unisono.collectives.shm.operations import Collectives
from unisono.errors import PeerLost

WORLD_SIZE = 4


def be_rank(rank: int, folder: str, timeout_s: float, said: int, told: int) -> None:
    """Reduce until a rank is lost; say what was seen, and stay until all have said it."""
    torch.set_num_threads(1)
    board, _ = share_memory(FileStore(f"{folder}/store", WORLD_SIZE), rank, WORLD_SIZE, timeout_s, 16 << 10)
    group = Collectives(board)
    value = torch.ones(50_000)  # more than three slots
    os.write(said, b"ready\n")
    try:
        while True:
            group.all_reduce(value, "MAX")
    except PeerLost as error:
        report = {"rank": rank, "at": time.monotonic(), "error": str(error), "meetings": board.num_meetings}
    os.write(said, json.dumps(report).encode() + b"\n")
    os.read(told, 1)  # until the others' end of the pipe is closed


def repeat(signum: int, timeout_s: float, num_hit: int, draw: random.Random) -> dict[str, object]:
    """Start four ranks, hit some at a random moment, and collect what the others say."""
    victims = sorted(draw.sample(range(WORLD_SIZE), num_hit))
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
                    be_rank(rank, folder, timeout_s, said, told)
                    code = 0
                finally:
                    os._exit(code)
            os.close(said)
            pids.append(pid)
            ears.append(os.fdopen(ear))
        for ear in ears:
            assert ear.readline() == "ready\n"
        time.sleep(draw.uniform(0, 0.03))
        hit = time.monotonic()
        for victim in victims:
            os.kill(pids[victim], signum)
        reports = [json.loads(ear.readline()) for rank, ear in enumerate(ears) if rank not in victims]
        os.close(release)
        os.close(told)
        for victim in victims:
            os.kill(pids[victim], signal.SIGKILL)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        for ear in ears:
            ear.close()
    for report in reports:
        report["after_s"] = report.pop("at") - hit
    return {"victims": victims, "pids": pids, "reports": reports, "codes": codes}


def main() -> None:
    """Repeat, and look at what is left."""
    repetitions, signum, timeout_s, num_hit = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    before = set(Path("/dev/shm").iterdir())
    draw = random.Random(repetitions)
    for _ in range(repetitions):
        print(json.dumps(repeat(signum, timeout_s, num_hit, draw)), flush=True)
    left = [path.name for path in set(Path("/dev/shm").iterdir()) - before if "unisono" in path.name]
    held = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink() and "memfd" in str(link.readlink())]
    print(json.dumps({"left": left, "held": len(held)}))


if __name__ == "__main__":
    main()
