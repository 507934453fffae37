"""A training that is hurt from inside, at steps and phases that its command line names. A program, not a test.

``job.py OUT [FAULT@STEP:RANK]...`` trains a few dozen tiny steps. Each fault comes once per directory, unless its name
ends with ``!``: then it comes every time. ``gate`` waits until the test has made the file ``gate-STEP``.
"""

import ctypes
import faulthandler
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from unisono.checkpoint import store
from unisono.collectives.process_groups.exchange import PieceExchange
from unisono.train.run_directory.checkpoints import Checkpoints

EPOCHS, STEPS, EVERY = 3, 24, 4
PHASES = ("data", "forward", "backward", "reduce", "update", "record", "save", "between", "result")
ACTIONS: dict[str, Callable[[], object]] = {
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "gil": lambda: ctypes.PyDLL(None).sleep(1000),
    "sleep": lambda: time.sleep(5),
    "hang": lambda: time.sleep(1000),
    "segfault": lambda: faulthandler._sigsegv(),
    "abort": os.abort,
    "raise": lambda: (_ for _ in ()).throw(ValueError("a bad sample")),
    "leave": lambda: sys.exit(0),
    "exit3": lambda: os._exit(3),
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "wait": lambda: time.sleep(0.05),
    "noise": lambda: None,
    "clock": lambda: jump(random.Random(0)),
    "loader": lambda: [os.kill(int(pid), signal.SIGKILL) for pid in children()],
    "memory": lambda: [b"\1" * (64 << 20) for _ in range(64)],
    "kernel": lambda: wait_in_the_kernel(),
}


def children() -> list[str]:
    """Return the process ids of this process's children."""
    return [pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]


def jump(chance: random.Random) -> None:
    """From now on every look at the wall clock finds it up to an hour off, and the time zone is another."""
    real = time.time
    time.time = lambda: real() + chance.uniform(-3600, 3600)
    os.environ["TZ"] = "Pacific/Kiritimati"
    time.tzset()


def wait_in_the_kernel() -> None:
    """Stay in a system call that no signal but SIGKILL ends (state D), holding the interpreter's lock.

    The parent of a `vfork` waits so until the child is gone; the child here only sleeps.
    """
    vfork = 0x00004000  # CLONE_VFORK, without sharing memory
    clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    libc = ctypes.PyDLL(None)
    if libc.syscall(clone, vfork | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        libc.sleep(1000)
        os._exit(0)


class Attacks:
    """Faults by phase, step and rank."""

    def __init__(self, marks: Path, wanted: list[str]) -> None:
        self.marks, self.step, self.rank = marks, 0, 0
        self.wanted = [self._parse(text) for text in wanted]

    @staticmethod
    def _parse(text: str) -> tuple[str, int, int, bool]:
        name, _, place = text.partition("@")
        step, _, rank = place.partition(":")
        return name.rstrip("!"), int(step), int(rank or 0), name.endswith("!")

    def at(self, phase: str) -> None:
        """Come to `phase`; what else than a phase is a fault's name comes between steps."""
        for name, step, rank, is_always in self.wanted:
            here = name if name in PHASES else "between"
            if (here, rank) != (phase, self.rank) or (step and step != self.step):
                continue
            if name == "gate":
                self._wait_at_gate()
            elif is_always or self._is_first(f"{name}-{step}-{rank}"):
                ACTIONS.get(name, lambda: os.kill(os.getpid(), signal.SIGKILL))()

    def _wait_at_gate(self) -> None:
        """Wait until the test opens this step's gate, so that what it does finds the run where it wants it."""
        deadline = time.monotonic() + 150
        while not (self.marks / f"gate-{self.step}").exists():
            assert time.monotonic() < deadline, "nobody has opened the gate"
            time.sleep(0.02)

    def _is_first(self, name: str) -> bool:
        try:
            os.close(os.open(self.marks / f"mark-{name}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class Images:
    """Random images whose label is easy to learn."""

    def __init__(self, attacks: Attacks) -> None:
        generator = np.random.default_rng(0)
        self.x = torch.from_numpy(generator.standard_normal((250, 16), dtype=np.float32))
        self.y = (self.x[:, 0] > 0).long()
        self.attacks = attacks

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]

    def fetch_micro_batch(self, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a micro-batch."""
        self.attacks.at("data")
        chosen = torch.from_numpy(indices)
        return self.x[chosen], self.y[chosen]


def hook(owner: object, name: str, before: Callable[[], None]) -> None:
    """Call `before` before each call of a function."""
    original = getattr(owner, name)

    def hooked(*args: object, **kwargs: object) -> object:
        before()
        return original(*args, **kwargs)

    setattr(owner, name, hooked)


def train(out: str, wanted: list[str]) -> str:
    """Train to the end and return the fingerprint."""
    attacks = Attacks(Path(out).parent, wanted)
    names = [fault[0] for fault in attacks.wanted]
    random.seed(0)
    for owner, name, phase in ((store, "commit", "save"), (Checkpoints, "load", "load")):
        if phase in names:
            hook(owner, name, lambda phase=phase: attacks.at(phase))
    strategy = os.environ.get("JOB_STRATEGY", "exact")
    with unisono.Run(seed=3, replicas=4, out=out, checkpoint_every=EVERY, strategy=strategy) as run:
        attacks.rank = run.world.rank
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))
        model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        for owner, name, phase in (
            (run.transport, "all_gather", "reduce"), (PieceExchange, "tell", "reduce"), (optimizer, "step", "update"),
            (run._record, "append", "record"), (run._record, "write_result", "result"),
        ):  # fmt: skip
            if phase in names:
                hook(owner, name, lambda phase=phase: attacks.at(phase))
        noise = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) / 1000  # which no checkpoint knows

        def loss_of(micro: object) -> torch.Tensor:
            attacks.at("forward")
            loss = F.cross_entropy(model(micro.x), micro.y)
            if "backward" in names:
                loss.register_hook(lambda gradient: attacks.at("backward"))
            return loss * (1 + noise) if "noise" in names else loss

        for batch in run.steps(
            run.loader(Images(attacks), batch_size=32, num_workers=int("loader" in names)), epochs=EPOCHS
        ):
            attacks.step = batch.step
            attacks.at("between")
            run.step(batch, loss_of)
        return run.fingerprint()


if __name__ == "__main__":
    train(os.environ.get("UNISONO_RUN_DIR") or sys.argv[1], sys.argv[2:])
