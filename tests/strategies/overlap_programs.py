"""Trainings whose gradients leave for the other ranks during the backward pass, in every way that could lose some.

Every case trains twice, with `overlap` off and on; the bits must be equal. The models have few parameters, yet several
buckets. A case returns its digest and claims that must all be true.
"""

import copy
import functools
import hashlib
import io
import threading
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from reference import bits
from strategies.exact_cases import take
from unisono.collectives import pieces
from unisono.collectives.placement import cut, place_evenly
from unisono.collectives.process_groups.transport import connect
from unisono.collectives.transport import Transport
from unisono.determinism.switches import set_determinism
from unisono.errors import UnisonoError
from unisono.strategies.base import Micro, StrategyContext
from unisono.strategies.exact import Exact
from unisono.strategies.objective import Objective
from unisono.strategies.options import ExactOptions
from unisono.world import World

SIZES = (23, 12, 3, 23)
"""Samples of each step's batch: the last but one leaves replicas, and so a rank, without a sample."""
WIDTH = 256


class Sample(NamedTuple):
    """What a loss function gets."""

    step: int
    replica: int
    x: Tensor
    y: Tensor


Loss = Callable[[Sample], Tensor]


class Training:
    """One model under the exact strategy on this rank."""

    def __init__(
        self, transport: Transport, overlap: str, model: nn.Module, *, placement: list[range] | None = None,
        lr: float = 0.1, **options: str,
    ) -> None:  # fmt: skip
        self.model, self.transport = model, transport
        self.placement = placement or place_evenly(5, transport.world_size)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        context = StrategyContext(transport=transport, placement=self.placement, seed=3, device=torch.device("cpu"))
        self.strategy = Exact(model, self.optimizer, context, ExactOptions(overlap=overlap, **options))
        self.digest, self.bad = hashlib.sha256(), list[tuple[int, ...]]()

    def train(self, sizes: tuple[int, ...] = SIZES, loss: Loss | None = None) -> "Training":
        """Do whole steps."""
        for size in sizes:
            generator, step = torch.Generator().manual_seed(1), len(self.bad) + 1
            x, y = torch.randn(size, 16, generator=generator), torch.randint(0, 4, (size,), generator=generator)
            micros = [
                Micro(replica=replica, num_samples=len(part), data=Sample(step, replica, take(x, part), take(y, part)))
                for replica, part in enumerate(cut(size, self.placement[-1].stop))
                if replica in self.placement[self.transport.rank] and len(part)
            ]
            found = self.strategy.compute_gradients(step, micros, size, Objective(loss or self.cross_entropy))
            self.bad.append(found.bad_replicas)
            self.digest.update(f"{found.loss.hex()} {found.checksum} {found.weights}".encode())
            if not found.bad_replicas:
                self.optimizer.step()
            for _, tensor in sorted(self.model.state_dict().items()):
                self.digest.update(bits(tensor))
        return self

    def cross_entropy(self, sample: Sample) -> Tensor:
        """Return the usual loss."""
        return F.cross_entropy(self.model(sample.x), sample.y)

    def report(self, **claims: bool) -> dict[str, Any]:
        """Take everything off the model; return what a case returns, and whether gradients have left early."""
        early = [thread for thread in threading.enumerate() if thread.name.startswith("unisono-")]
        self.strategy.close()
        self.strategy.close()
        for thread in early:
            thread.join(10)
        left = [parameter for parameter in self.model.parameters() if parameter._post_accumulate_grad_hooks]
        claims |= {"threads_end": not any(thread.is_alive() for thread in early), "hooks_end": len(left) == self.hooked}
        return {"digest": self.digest.hexdigest(), "claims": claims, "early": len(early)}

    hooked = 0
    """Parameters with hooks of the program's own."""


def mlp(*middle: nn.Module) -> nn.Sequential:
    """Return a model of several buckets, always the same."""
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(nn.Linear(16, WIDTH), nn.Tanh(), *middle, *layers, nn.Linear(WIDTH, 4))


def plain(transport: Transport, overlap: str) -> dict[str, Any]:
    """A usual model."""
    return Training(transport, overlap, mlp()).train().report()


def many_placements(transport: Transport, overlap: str) -> dict[str, Any]:
    """One replica for each rank, five, eight, evenly and nearly all on the last rank: one partial, and several."""
    digest, size = hashlib.sha256(), transport.world_size
    for replicas in (size, 5, 8):
        ends = [*range(size), replicas]
        for placement in (place_evenly(replicas, size), [range(ends[rank], ends[rank + 1]) for rank in range(size)]):
            report = Training(transport, overlap, mlp(), placement=placement).train((23, 5, 1)).report()
            digest.update(report["digest"].encode())
    return {**report, "digest": digest.hexdigest()}


class Recomputing(nn.Module):
    """Recomputes one layer three times in its backward pass, by autograd within autograd: its gradient comes thrice."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.before, self.reentrant, self.is_on = mlp(), reentrant, True
        self.again = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        x = self.before(x)
        for _ in range(3):
            x = checkpoint(self.again, x, use_reentrant=self.reentrant) if self.is_on else self.again(x)
        return x


def reentrant(transport: Transport, overlap: str) -> dict[str, Any]:
    """Gradients that arrive several times in one backward pass: nothing leaves early."""
    return Training(transport, overlap, Recomputing(reentrant=True)).train().report()


def recomputing(transport: Transport, overlap: str) -> dict[str, Any]:
    """Recomputing without autograd within autograd brings each gradient once."""
    return Training(transport, overlap, Recomputing(reentrant=False)).train().report()


def reentrant_later(transport: Transport, overlap: str) -> dict[str, Any]:
    """Where gradients begin to arrive several times after the first step, the step is refused with the way out."""
    model = Recomputing(reentrant=True)
    model.is_on = False
    training = Training(transport, overlap, model).train((23, 12))
    model.is_on = True
    said = message(lambda: training.train((23,)))
    again = message(lambda: training.train((23,)))
    told = "StepError: the gradient of 'again.weight' changed after" in said and "Hint: overlap='off'" in said
    training.digest = hashlib.sha256()  # one of the two has gone on
    return training.report(
        refused=told if overlap == "on" else not said, no_later_step=("earlier step failed" in again) == bool(said)
    )


def hooks(transport: Transport, overlap: str, *, how: str, when: str) -> dict[str, Any]:
    """Hooks of the program's own that write into ``.grad``, registered before the first step or in the middle."""
    model = mlp()

    def halve(parameter: Tensor) -> None:
        if how == "data":
            halve_data(parameter)
        elif how == "in place":
            parameter.grad.mul_(0.5)
        else:
            parameter.grad = parameter.grad * 0.5

    def register() -> None:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(halve)

    if when == "before":
        register()
    training = Training(transport, overlap, model)
    if when == "after":
        register()
    training.train((23, 12))
    untouched = training.digest.hexdigest()
    if when == "middle":
        register()
    training.hooked = len(list(model.parameters()))
    return training.train((23, 12)).report(moved=untouched != training.digest.hexdigest())


def halve_data(parameter: Tensor, *_: Any) -> None:
    """Write into a gradient so that its version does not tell."""
    parameter.grad.data.mul_(0.5)


def hooks_of_nodes(transport: Transport, overlap: str) -> dict[str, Any]:
    """A hook on autograd's own node, which runs behind all hooks of the parameter: nothing leaves early."""
    model, kept = mlp(), []
    for parameter in model.parameters():
        node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
        node.register_hook(functools.partial(halve_data, parameter))
        kept.append(node)
    return Training(transport, overlap, model).train().report()


def end_of_backward(transport: Transport, overlap: str) -> dict[str, Any]:
    """A callback at the end of the backward pass that writes through ``.data``: nothing leaves early."""
    model = mlp()

    def clamp() -> None:
        for parameter in model.parameters():
            parameter.grad.data.clamp_(-1e-3, 1e-3)

    model[-1].register_full_backward_hook(lambda *_: torch.autograd.Variable._execution_engine.queue_callback(clamp))
    return Training(transport, overlap, model).train().report()


class Choosy(nn.Module):
    """Uses other layers for each step and replica, and one never."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.never, self.last = nn.Linear(16, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
        self.some = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, sample: Sample) -> Tensor:
        """Return scores."""
        x = torch.tanh(self.first(sample.x))
        for index, layer in enumerate(self.some):
            if (index + sample.replica + sample.step) % 3:
                x = torch.tanh(layer(x))
        return self.last(x)


def absent(transport: Transport, overlap: str) -> dict[str, Any]:
    """Parameters without a gradient in some steps, on some replicas, always."""
    model = Choosy()
    training = Training(transport, overlap, model).train(loss=lambda sample: F.cross_entropy(model(sample), sample.y))
    return training.report(none=model.never.weight.grad is None)


def frozen(transport: Transport, overlap: str) -> dict[str, Any]:
    """Parameters frozen and unfrozen between steps: the layout is new, and watched anew."""
    model = mlp()
    training = Training(transport, overlap, model).train((23, 12))
    model[2].requires_grad_(False)
    training.train((23, 12, 12))
    model[2].requires_grad_(True)
    return training.train((23, 12, 12)).report(none=True)


class Poison(torch.autograd.Function):
    """The identity, with a gradient times some number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None


def not_finite(transport: Transport, overlap: str) -> dict[str, Any]:
    """The replica whose gradient is NaN or infinite is named, be it a rank's last or not."""
    digest, claims = hashlib.sha256(), {}
    for culprit in range(5):
        model = mlp()

        def loss(sample: Sample, culprit: int = culprit, model: nn.Sequential = model) -> Tensor:
            factor = {2: float("nan"), 4: float("inf")}.get(sample.step, 1.0) if sample.replica == culprit else 1.0
            return F.cross_entropy(model[5:](Poison.apply(model[:5](sample.x), factor)), sample.y)

        training = Training(transport, overlap, model).train((23, 23, 12, 23), loss)
        claims[f"named_{culprit}"] = training.bad == [(), (culprit,), (), (culprit,)]
        digest.update((report := training.report())["digest"].encode())
    return {"digest": digest.hexdigest(), "claims": claims | report["claims"], "early": report["early"]}


class Mixed(nn.Module):
    """Parameters and buffers of six dtypes, an empty one among them, and statistics."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.front, self.norm, self.back = nn.Linear(16, WIDTH), nn.BatchNorm1d(WIDTH), mlp()[2:]
        self.wide, self.brain = nn.Linear(WIDTH, 300).double(), nn.Linear(300, WIDTH).bfloat16()
        self.turns = nn.Parameter(torch.randn(300, WIDTH, dtype=torch.complex64) / 16)
        self.empty = nn.Parameter(torch.empty(0, dtype=torch.float16))
        self.register_buffer("mean", torch.randn(300, 300))
        self.register_buffer("phase", torch.randn(30, dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        x = torch.tanh(self.norm(self.front(x)))
        x = x + self.brain(self.wide(x.double()).bfloat16()).float()
        x = x + (x.to(torch.complex64) @ self.turns.t()).abs().sum(1, keepdim=True) / 1000 + self.empty.sum().float()
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean())
        return self.back(x)


def mixed(transport: Transport, overlap: str) -> dict[str, Any]:
    """Several flat buffers, and floating-point buffers that are merged with the gradients."""
    model = Mixed()
    start = model.mean.clone()
    training = Training(transport, overlap, model, lr=1e-3).train((23, 12, 23))
    return training.report(merged=not torch.equal(start, model.mean), counted=int(model.norm.num_batches_tracked) == 3)


def rounded(transport: Transport, overlap: str, *, kind: str, share: float) -> dict[str, Any]:
    """Rounded gradients: as many times fewer bytes, in both rounds of the exchange; a rank has several subtrees."""
    sent = []
    for compress in ("none", kind):
        before = transport.bytes_sent
        options = {"compress": compress, "codec": "none"}
        report = Training(transport, overlap, mlp(Centred()), **options).train().report()
        sent.append(transport.bytes_sent - before)
    claims = {"fewer_bytes": share * sent[0] <= sent[1] <= (share + 0.01) * sent[0]}  # buffers are not rounded
    return report | {"claims": report["claims"] | claims}


class Centred(nn.Module):
    """Subtracts a mean that it learns as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return the centred input."""
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(dim=0) / 10)
        return x - self.mean


def one_parameter(transport: Transport, overlap: str) -> dict[str, Any]:
    """A parameter that lies in many buckets."""
    torch.manual_seed(0)
    model = nn.Linear(16, 20_000)
    return Training(transport, overlap, model).train(loss=lambda sample: model(sample.x).square().mean()).report()


def penalty(transport: Transport, overlap: str) -> dict[str, Any]:
    """A loss that differentiates twice."""
    model = mlp()

    def loss(sample: Sample) -> Tensor:
        inputs = sample.x.requires_grad_()
        value = F.cross_entropy(model(inputs), sample.y)
        grads = torch.autograd.grad(value, [inputs, *model.parameters()], create_graph=True)
        return value + sum(grad.square().sum() for grad in grads)

    return Training(transport, overlap, model).train(loss=loss).report()


def copies(transport: Transport, overlap: str) -> dict[str, Any]:
    """Copies of the model (averages, files) have no hooks; passes between steps, theirs and its own, change nothing."""
    model = mlp()
    training = Training(transport, overlap, model).train((23, 12))
    twin, file = copy.deepcopy(model), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    read = torch.load(file, weights_only=False)
    for other in (twin, read, model):
        other(torch.ones(2, 16)).sum().backward()
    hooked = [parameter for other in (twin, read) for parameter in other.parameters() if _hooks_of(parameter)]
    training.optimizer.zero_grad()
    return training.train((23, 12)).report(no_hooks=not hooked, grads=twin[0].weight.grad is not None)


def _hooks_of(parameter: Tensor) -> Any:
    return parameter._post_accumulate_grad_hooks


def failing(transport: Transport, overlap: str) -> dict[str, Any]:
    """A step that fails on all ranks, while gradients leave, leaves nothing on the way that another training meets."""
    model = mlp()
    training = Training(transport, overlap, model).train((23, 12))

    def fail(sample: Sample) -> Tensor:
        if sample.replica == training.placement[transport.rank][-1]:
            raise ValueError(f"replica {sample.replica}")
        return training.cross_entropy(sample)

    said = message(lambda: training.train((23,), fail))
    transport.all_gather_json("the ranks go on")
    report = training.report(own_error=said.startswith("ValueError: replica "))
    after = Training(transport, overlap, mlp()).train().report()
    return {"digest": after["digest"], "claims": report["claims"] | after["claims"], "early": after["early"]}


def message(act: Callable[[], object]) -> str:
    """Return class and message of the error that `act` raises, empty for none."""
    try:
        act()
    except (UnisonoError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


NEVER_EARLY = ("reentrant", "hooks_of_nodes", "end_of_backward")
CASES: dict[str, Callable[[Transport, str], dict[str, Any]]] = {
    **{
        case.__name__: case
        for case in (
            plain, many_placements, reentrant, recomputing, reentrant_later, hooks_of_nodes, end_of_backward, absent,
            frozen, not_finite, mixed, one_parameter, penalty, copies, failing,
        )
    },
    "rounded bf16": functools.partial(rounded, kind="bf16", share=1 / 2),
    "rounded int8": functools.partial(rounded, kind="int8", share=17 / 64),
    **{
        f"hooks {how} {when}": functools.partial(hooks, how=how, when=when)
        for how in ("data", "in place", "new") for when in ("before", "after", "middle")
    },
}  # fmt: skip


def play(transport: Transport | None, names: list[str], overlaps: list[str], shares: bool = False) -> dict[str, Any]:
    """Run cases with each setting of `overlap`, over messages or (if it `shares`) shared memory.

    Buckets are small, so that a small model has several.
    """
    set_determinism(1)
    if transport is None:
        pieces._LEAST_BYTES = 1 << 18
    joined = transport or connect(World.current(), timeout_s=60, share_memory=shares)
    return {f"{name} {overlap}": _report(name, joined, overlap) for name in names for overlap in overlaps}


def _report(name: str, transport: Transport, overlap: str) -> dict[str, Any]:
    try:
        return CASES[name](transport, overlap)
    except Exception:  # noqa: BLE001 - told as a broken claim, so that the other cases are judged too
        return {"digest": "", "claims": {traceback.format_exc(): False}, "early": 0}
