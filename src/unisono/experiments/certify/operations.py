"""Single operations again and again, with memory that was used otherwise and a neighbour at work: is it one result?

Each goes forward and backward on inputs that are the same everywhere; what is compared is a hash of its result and of
its gradients.
"""

import hashlib
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from unisono.determinism import devices
from unisono.determinism.switches import set_determinism

CONTROL = "a sum in a random order"
ATOMIC = "index_add with determinism off"
_SIZE = 1 << 15
Operation = Callable[..., Tensor]


def _scatter(x: Tensor, y: Tensor) -> Tensor:
    index = torch.arange(len(x), device=x.device) % 7
    return torch.zeros(7, x.shape[1], device=x.device, dtype=x.dtype).index_add(0, index, x * y)


def _embedding(x: Tensor, y: Tensor) -> Tensor:
    index = torch.arange(4 * len(x), device=x.device) * 37 % len(x)
    return F.embedding(index, x) * y[0]


def _convolution(x: Tensor, y: Tensor) -> Tensor:
    return F.conv2d(x.reshape(4, 8, -1, 32), y.reshape(-1)[: 16 * 8 * 9].reshape(16, 8, 3, 3), padding=1)


def _attention(x: Tensor, y: Tensor) -> Tensor:
    query, key = x.reshape(4, 4, -1, 32), y.reshape(4, 4, -1, 32)
    return F.scaled_dot_product_attention(query, key, key, is_causal=True)


def _shuffled_sum(x: Tensor, y: Tensor) -> Tensor:
    order = torch.randperm(x.numel(), generator=torch.Generator().manual_seed(secrets.randbits(62)))
    return (x * y).reshape(-1)[order.to(x.device)].float().sum()  # in bf16 nearly all orders round to one number


def _atomic_sum(x: Tensor, y: Tensor) -> Tensor:
    torch.use_deterministic_algorithms(False)
    try:
        index = torch.arange(x.numel(), device=x.device) % 3
        return torch.zeros(3, device=x.device, dtype=x.dtype).index_add(0, index, (x * y).reshape(-1))
    finally:
        torch.use_deterministic_algorithms(True)


OPERATIONS: dict[str, Operation] = {
    "matmul": lambda x, y: x.T @ y,
    "convolution": _convolution,
    "index_add": _scatter,
    "scatter_add": lambda x, y: torch.zeros_like(x).scatter_add(0, (x.argsort(0) % 5), y) * x,
    "cumsum": lambda x, y: (x * y).cumsum(0),
    "sort": lambda x, y: x.sort(0).values * y,
    "embedding": _embedding,
    "softmax": lambda x, y: F.softmax(x, dim=1) * y,
    "layer_norm": lambda x, y: F.layer_norm(x, (x.shape[1],), y[0], y[1]),
    "attention": _attention,
    "sum": lambda x, y: (x * y).sum(),
}
"""Each takes x and y (256, 128)."""
CONTROLS: dict[str, Operation] = {CONTROL: _shuffled_sum, ATOMIC: _atomic_sum}
"""Those whose bits must differ; the second on GPUs alone, whose threads add in the order in which they come."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def repeat_all(device: str, times: int, dtypes: Sequence[str], out: str) -> None:
    """Repeat every operation, and write by precision and name how many different results there were.

    Of one that torch refuses, since it has no deterministic kernel for it, its message is written.
    """
    set_determinism(torch.get_num_threads())
    where = torch.device(device)
    repeated = OPERATIONS | CONTROLS
    if not devices.is_gpu(where):
        del repeated[ATOMIC]
    with _neighbour(where):
        found = {
            dtype: {name: different(one, where, DTYPES[dtype], times) for name, one in repeated.items()}
            for dtype in dtypes
        }
    Path(out).write_text(json.dumps(found))


def different(operation: Operation, device: torch.device, dtype: torch.dtype, times: int) -> int | str:
    """Return how many different results an operation had in so many repetitions, or that torch refuses it."""
    random = torch.Generator().manual_seed(5)
    given = [torch.randn(256, _SIZE // 256, generator=random).to(device, dtype) for _ in range(2)]
    hashes: set[str] = set()
    kept: list[Tensor] = []
    for turn in range(times):
        kept = [*kept[-3:], torch.full((secrets.randbelow(1 << 18) + 1,), float(turn), device=device)]
        x, y = (part.clone().requires_grad_() for part in given)
        try:
            result = operation(x, y)
            result.float().square().sum().backward()
        except RuntimeError as error:
            if "deterministic" not in str(error):
                raise
            return f"refused by torch: {str(error).splitlines()[0]}"
        gradients = [part.grad for part in (x, y) if part.grad is not None]
        hashes.add(_hash([result, *gradients]))
    return len(hashes)


def _hash(tensors: Sequence[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def _neighbour(device: torch.device) -> Iterator[None]:
    """Let another thread multiply matrices on the same device meanwhile."""
    is_over = threading.Event()

    def work() -> None:
        block = torch.ones(192, 192, device=device)
        while not is_over.is_set():
            block = torch.mm(block, block).clamp_(0, 1)

    thread = threading.Thread(target=work, name="neighbour")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
