"""One rank of `hosts.py`, on a host of its own: does what its standard input asks for, and answers in lines of JSON.

    python benchmarks/hosts_rank.py exact REPLICAS OPTIONS [live] | plain

``exact`` steps with `unisono.Run`; ``live`` has two of them, and lets one go on without a rank, with a launcher that
has nothing to say. Where CORE is in the environment, a rank keeps to the core of that number.
``plain`` is torch alone: DDP in several ways, the same model without any exchange, and streams over TCP. All keep freed
memory, as `Run` does, so that nothing but the exchange differs.
"""

import contextlib
import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from exact_vs_ddp import JOBS, exact_step
from harness import leave_group
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import unisono
from unisono.system.memory import keep_freed_memory

Step = Callable[[], object]
WORDS, LENGTH, WIDTH, HEADS, LAYERS = 4096, 64, 320, 8, 6
PORT = 29400
SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")


class Block(nn.Module):
    """Attention and two layers, each after a norm and around a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.mix(self.norms[0](x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts.unbind(), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.layers(self.norms[1](x))


class GPT(nn.Module):
    """A language model of 10 M parameters; gives (sample, word, place), as `F.cross_entropy` takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x) + self.places(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(x))).transpose(1, 2)


def job(name: str, samples: int) -> tuple[nn.Module, Any, Tensor]:
    """Return a model, and so many samples with their labels: the same on all ranks."""
    torch.manual_seed(0)
    if name == "GPT":
        model: nn.Module = GPT()
        text = torch.randint(0, WORDS, (samples, LENGTH + 1))
        return model, text[:, :-1], text[:, 1:].contiguous()
    build, make, classes, _ = next(found for key, found in JOBS.items() if key.startswith(name))
    model = build()
    return model, make(samples), torch.randint(0, classes, (samples,))


class Exact:
    """Steps of `Run`."""

    def __init__(self, replicas: int, options: dict[str, Any], *, is_live: bool = False) -> None:
        self.replicas, self.options, self.is_live = replicas, options, is_live
        if isinstance(named := options.get("strategy"), dict):
            options["strategy"] = unisono.strategy(named.pop("name"), **named)
        self.open = contextlib.ExitStack()

    def build(self, model: str, samples: dict[str, int], ways: list[str]) -> tuple[dict[str, Step], dict[str, Any]]:
        """Return the ways, a run each; `samples` of a micro-batch by number of replicas."""
        self.open.close()
        return {way: self._step(model, samples[str(self.replicas)], is_live=way == "live") for way in ways}, {}

    def _step(self, model: str, samples: int, *, is_live: bool) -> Step:
        if is_live:
            self._hear_nothing()
        self.run = run = self.open.enter_context(unisono.Run(seed=0, replicas=self.replicas, **self.options))
        os.environ.pop("UNISONO_LIVE", None)
        return exact_step(run, *job(model, samples))

    def meet(self) -> None:
        """Wait for the others."""
        self.run.transport.barrier() if self.is_live else dist.barrier()

    def _hear_nothing(self) -> None:
        """Let this process be one of a launcher's that only listens, as in an undisturbed run."""
        own, launchers = socket.socketpair()
        os.environ |= {"UNISONO_LIVE": str(own.detach()), "UNISONO_RENDEZVOUS": "env://"}
        threading.Thread(target=lambda: [*iter(lambda: launchers.recv(1 << 16), b"")], daemon=True).start()


class Plain:
    """Steps of torch."""

    meet = staticmethod(dist.barrier)

    def build(self, model: str, samples: dict[str, int], ways: list[str]) -> tuple[dict[str, Step], dict[str, Any]]:
        """Return the ways: kinds of DDP, and ``compute-REPLICAS``, the bare loop over a rank's micro-batches."""
        size, found = dist.get_world_size(), {}
        self.wrapped: dict[str, DistributedDataParallel] = {}
        for way in ways:
            kind, _, replicas = way.partition("-")
            count = int(replicas) if kind == "compute" else size
            net, x, y = job(model, samples[str(count)])
            if kind == "ddp":
                self.wrapped[way] = net = wrap(net, replicas)
            found[way] = alone(net, x, y, -(-count // size))  # of the rank that has most
        return found, {"bytes": sum(parameter.nbytes for parameter in job(model, 1)[0].parameters())}

    def buckets(self) -> list[float]:
        """Return the megabytes of DDP's own buckets, as they are after its first steps."""
        told = self.wrapped["ddp"]._get_ddp_logging_data()
        return [
            round(int(size) / 1e6, 2) for size in str(told.get("rebuilt_bucket_sizes", "")).split(",") if size.strip()
        ]


def wrap(model: nn.Module, how: str) -> DistributedDataParallel:
    """Return a model under DDP: as torch does it by itself, in one bucket, or with one of its ways to send less.

    PowerSGD has one bucket too: over gloo its hook begins messages of several buckets in another order on each rank.
    """
    size = {"bucket_cap_mb": 1 << 20} if how in ("whole", "powersgd") else {}
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True, **size)
    if how == "bf16":
        wrapped.register_comm_hook(None, send_bf16)
    elif how == "powersgd":
        wrapped.register_comm_hook(
            powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook
        )
    return wrapped


def send_bf16(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Torch's own hook under another name: DDP refuses its name for any backend but NCCL's, though gloo adds bf16."""
    return default_hooks.bf16_compress_hook(state, bucket)


def alone(model: nn.Module, x: Any, y: Tensor, micros: int) -> Step:
    """Return the loop that everybody writes: so many micro-batches and one update."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5, foreach=True)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(micros):
            F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def block(step: Step, meet: Step, warm_up: int, steps: int) -> dict[str, Any]:
    """Take steps that all ranks begin together, and return the seconds of one, and its bytes on the wire."""
    for _ in range(warm_up):
        step()
    meet()
    before, began = int(SENT.read_text()), time.perf_counter()
    for _ in range(steps):
        step()
    taken = time.perf_counter() - began
    return {"seconds": taken / steps, "sent": (int(SENT.read_text()) - before) / steps}


def pairs(ways: dict[str, Step], meet: Step, count: int, steps: int) -> dict[str, Any]:
    """Take blocks of two ways in turn, every other time backwards, and return what `block` does, by way."""
    found: dict[str, Any] = {way: [] for way in ways}
    for index in range(count):
        for way in ways if index % 2 == 0 else reversed(ways):
            found[way].append(block(ways[way], meet, 1, steps))
    return found


def stream(num_bytes: int, peer: str | None, *, takes: bool) -> dict[str, Any]:
    """Send to `peer` if there is one, take what another host sends if this rank `takes`, and return bytes/s taken.

    The first fourth is left out, in which the connection finds its speed and the limit its first burst.
    """
    buffer = memoryview(bytearray(1 << 20))
    rate = None
    with contextlib.ExitStack() as still:
        server = still.enter_context(socket.create_server(("", PORT))) if takes else None
        dist.barrier()

        def send() -> None:
            with socket.create_connection((peer, PORT)) as out:
                for _ in range(math.ceil(num_bytes / len(buffer))):
                    out.sendall(buffer)

        thread = threading.Thread(target=send)
        if peer:
            thread.start()
        if server:
            taken, since, first = 0, 0.0, 0
            connection, _ = server.accept()
            with connection:
                while got := connection.recv_into(buffer):
                    taken += got
                    if not first and taken >= num_bytes / 4:
                        since, first = time.perf_counter(), taken
                rate = (taken - first) / (time.perf_counter() - since)
        if peer:
            thread.join()
    dist.barrier()
    return {"rate": rate}


def main() -> None:
    """Answer until there is nothing more to read."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else prints
    if core := os.environ.get("CORE"):
        os.sched_setaffinity(0, {int(core)})
    torch.set_num_threads(1)
    keep_freed_memory()
    kind, *words = sys.argv[1:]
    is_live = words[2:] == ["live"]
    if not is_live:  # a run that goes on without a rank has a group of its own
        dist.init_process_group("gloo")
    worker: Plain | Exact = Plain() if kind == "plain" else Exact(int(words[0]), json.loads(words[1]), is_live=is_live)
    ways: dict[str, Step] = {}
    answers.write("{}\n")
    for line in sys.stdin:
        asked = json.loads(line)
        match asked.pop("do"):
            case "build":
                ways.clear()
                ways, said = worker.build(**asked)
            case "block":
                said = block(ways[asked["way"]], worker.meet, asked["warm_up"], asked["steps"])
            case "pairs":
                said = pairs(ways, worker.meet, asked["count"], asked["steps"])
            case "buckets":
                said = {"buckets": worker.buckets() if isinstance(worker, Plain) else []}
            case "stream":
                said = stream(**asked)
            case "end":
                said = {"end": True}
        answers.write(json.dumps(said) + "\n")
        if said == {"end": True}:
            break
    if not is_live:
        leave_group()


if __name__ == "__main__":
    main()
