"""From the command to the end of the first step: `unisono train mnist` beside a bare torch program, in turn.

    python benchmarks/first_step.py --mnist DIRECTORY [--rounds 11] [--processes 1 2] [--out DIR]
    python benchmarks/first_step.py --quick     # the digits of scikit-learn, unisono alone

The bare program (this file, `--bare`) is what one writes without a framework: it reads the same four files with gzip
and NumPy, has the same layers, AdamW and OneCycleLR, takes a batch of 128 and does one step, one thread each, without
augmentation and without verifying the files, both of which unisono does. With several processes it wraps the model in
DistributedDataParallel over gloo and takes its share of the batch; its processes are started directly, side by side,
without torchrun, whose launcher would load torch a second time; that way is shown beside it. Of unisono the time
includes its launcher. Both ends are seen from outside, by looking every millisecond: a mark that each process of the
bare program leaves after its step, and the steps that unisono's workers tell their launcher.

In torch 2.13 making an optimizer imports `torch._dynamo`: about 1.1 s of the bare program's time. unisono does without
(docs/determinism.md). `bare, no optimizer` leaves AdamW out and updates by hand, which no program of today does: the
least that torch itself takes.

Bytecode is there on both sides, as an installation leaves it: the round before the first writes it.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness import UNISONO, in_turn, parser_of, rounds_of, save, slug
from results import Bar, Result

from unisono.system.heartbeat import HeartbeatPage

BATCH, PATIENCE_S = 128, 120


def bare(data: Path, mark: Path, *, has_optimizer: bool) -> None:
    """Train one step; the process's place is in the variables that torchrun sets."""
    import gc
    import gzip

    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional as F

    def read(name: str, start: int) -> "np.ndarray":
        with gzip.open(data / f"{name}.gz") as file:
            return np.frombuffer(file.read(), np.uint8, offset=start)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
            self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
            self.dropout1 = nn.Dropout(0.25)
            self.fc1 = nn.Linear(64 * 7 * 7, 128)
            self.dropout2 = nn.Dropout(0.5)
            self.fc2 = nn.Linear(128, 10)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            x = F.relu(F.max_pool2d(self.conv1(images), 2))
            x = F.relu(F.max_pool2d(self.conv2(x), 2))
            x = self.dropout2(F.relu(self.fc1(self.dropout1(x.flatten(1)))))
            return F.log_softmax(self.fc2(x), dim=1)

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    images = read("train-images-idx3-ubyte", 16).reshape(-1, 1, 28, 28)
    labels = read("train-labels-idx1-ubyte", 8)
    test_images, test_labels = read("t10k-images-idx3-ubyte", 16), read("t10k-labels-idx1-ubyte", 8)
    assert len(test_images) == 784 * len(test_labels)
    model: nn.Module = Network()
    if world_size > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    mine = torch.randperm(len(images))[rank:BATCH:world_size].numpy()
    x, y = torch.from_numpy(images[mine]).float(), torch.from_numpy(labels[mine].astype(np.int64))
    loss = F.nll_loss(model((x / 255 - 0.1307) / 0.3081), y)
    if has_optimizer:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01, fused=True)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=8 * 469)
        loss.backward()
        optimizer.step()
        scheduler.step()
    else:
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for weights, gradient in zip(model.parameters(), gradients, strict=True):
                weights.sub_(3e-3 * gradient)
    (mark / f"done-{rank}").touch()
    if world_size > 1:
        del model, loss  # they hold the group, whose threads must not outlive the interpreter
        gc.collect()
        torch.distributed.destroy_process_group()


def measure_bare(data: Path, processes: int, *flags: str, torchrun: bool = False) -> float:
    """Return the seconds until all processes of the bare program have done their step."""
    with tempfile.TemporaryDirectory() as home:
        program = [__file__, "--bare", str(data), home, *flags]
        started = []
        began = time.monotonic()
        if torchrun:
            torchrun_command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
            started.append(_start([sys.executable, *torchrun_command, *program]))
        else:
            # With a file they would need no port; MASTER_PORT is what programs are written for.
            port = str(_free_port())
            for rank in range(processes):
                place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_PORT": port}
                variables = {name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"}
                started.append(_start([sys.executable, *program], **variables))
        done = _wait(lambda: all((Path(home) / f"done-{rank}").exists() for rank in range(processes)), started)
        for process in started:
            if process.wait() != 0:
                raise RuntimeError(f"the bare program ended with {process.returncode}")
        return done - began


def measure_unisono(recipe: list[str], processes: int) -> float:
    """Return the seconds until all workers of `unisono train` have told that step 1 is done."""
    with tempfile.TemporaryDirectory() as home:
        pages: dict[Path, HeartbeatPage] = {}

        def are_done() -> bool:
            for path in Path(home).glob("unisono-*/heartbeat-*") if len(pages) < processes else ():
                if path not in pages and path.stat().st_size:
                    pages[path] = HeartbeatPage(path)
            return len(pages) == processes and all(page.read().done >= 1 for page in pages.values())

        began = time.monotonic()
        launcher = _start([*UNISONO, "train", *recipe, "-n", str(processes)], TMPDIR=home)
        done = _wait(are_done, [launcher])
        launcher.send_signal(signal.SIGINT)
        launcher.wait()
        return done - began


def _start(command: list[str], **variables: str) -> subprocess.Popen[bytes]:
    base = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    null = subprocess.DEVNULL
    environment = {**base, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(command, env=environment, cwd="/", stdin=null, stdout=null, stderr=null)


def _wait(is_done: Callable[[], bool], started: list[subprocess.Popen[bytes]]) -> float:
    """Return when `is_done` first holds, by the monotonic clock."""
    end = time.monotonic() + PATIENCE_S
    while not is_done():
        now = time.monotonic()
        failed = [process.returncode for process in started if process.poll()]
        if failed or now > end:
            raise RuntimeError(f"expected a first step within {PATIENCE_S} s; the program ended with {failed}")
        time.sleep(0.001)
    return time.monotonic()


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Measure all ways in turn."""
    parser = parser_of(__doc__, rounds=11)
    parser.add_argument("--mnist", type=Path)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--bare", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare:
        bare(Path(given.bare[0]), Path(given.bare[1]), has_optimizer="by-hand" not in given.bare)
        return
    if given.mnist is None and given.quick:
        seconds = [measure_unisono(["digits"], 1)]
        save(
            given,
            [Result.of("digits", seconds, what="from the command to the first step", unit="s", topic="Start and data")],
        )
        return
    if given.mnist is None:
        parser.error("expected --mnist DIRECTORY, with the four files of MNIST")
    data, found = given.mnist.resolve(), []
    recipe = ["mnist", "--data", str(data)]
    for processes in [1] if given.quick else given.processes:
        ways = {"unisono": partial(measure_unisono, recipe, processes), "bare": partial(measure_bare, data, processes)}
        if processes == 1 and not given.quick:
            ways["bare, no optimizer"] = partial(measure_bare, data, 1, "by-hand")
        if processes > 1:
            ways["torchrun"] = partial(measure_bare, data, processes, torchrun=True)
        times = in_turn(ways, rounds_of(given, quick=1), warm_up=int(not given.quick))
        for peer in list(ways)[1:]:
            # Ours may take 1.3 times as long: the ratio says how many times faster we are.
            bar = Bar(of="ratio", at_least=1 / 1.3) if peer == "bare" else None
            name = slug(f"first step {processes} beside {peer}")
            what = "from the command to the first step of MNIST"
            found.append(Result.of(name, times["unisono"], what=what, unit="s", topic="Start and data", bar=bar,
                                   peer=f"a torch program ({peer})", against=times[peer],
                                   settings={"processes": processes}))  # fmt: skip
    save(given, found)


if __name__ == "__main__":
    main()
