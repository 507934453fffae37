"""Small trainings with everything a model can do to a strategy; every rank runs them, over any transport.

A case returns ``digest`` (must be equal on all ranks of all worlds) and ``claims`` (must all be true). V = 5 unless
said otherwise; the last of the batch sizes leaves two replicas without a sample.
"""

import hashlib
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ranks import join
from reference import bits, pairwise_sum
from unisono.collectives.placement import cut, place_evenly
from unisono.collectives.transport import Transport
from unisono.determinism.switches import set_determinism
from unisono.errors import StepError, UnisonoError
from unisono.strategies.base import Gradients, Micro, StrategyContext
from unisono.strategies.exact import Exact
from unisono.strategies.objective import Objective
from unisono.strategies.options import ExactOptions

SIZES = (23, 12, 23, 7, 23, 3)
Loss = Callable[[tuple[int, Tensor, Tensor]], Tensor]


def data(width: int = 6) -> tuple[Tensor, Tensor]:
    """Return 32 inputs and 32 targets out of 4."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(32, width, generator=generator), torch.randint(0, 4, (32,), generator=generator)


def take(values: Tensor, part: range) -> Tensor:
    """Return some rows as a tensor of their own."""
    return values[part.start : part.stop].clone()


def exact(model: nn.Module, optimizer: torch.optim.Optimizer, transport: Transport, replicas: int = 5) -> Exact:
    """Return the strategy at work on this rank."""
    placement = place_evenly(replicas, transport.world_size)
    context = StrategyContext(transport=transport, placement=placement, seed=3, device=torch.device("cpu"))
    return Exact(model, optimizer, context, ExactOptions())


class FunctionalEmbedding(nn.Module):
    """An embedding that does not say of itself that its gradients are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean over the words."""
        return F.embedding(x, self.weight, sparse=True).mean(dim=1)


class Bench:
    """One model under the exact strategy on this rank."""

    def __init__(
        self,
        transport: Transport,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        replicas: int = 5,
    ) -> None:
        self.model, self.transport, self.replicas = model, transport, replicas
        self.hosted = place_evenly(replicas, transport.world_size)[transport.rank]
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = optimizer or torch.optim.SGD(trainable, lr=0.1, momentum=0.9)
        self.strategy = exact(model, self.optimizer, transport, replicas)
        self.digest = hashlib.sha256()
        self.step = 0

    def gradients(self, size: int, loss: Loss | None = None, x: Tensor | None = None) -> Gradients:
        """Compute the gradients of one step on the first `size` samples."""
        inputs, targets = data()
        inputs = inputs if x is None else x
        micros = [
            Micro(replica=replica, num_samples=len(part), data=(replica, take(inputs, part), take(targets, part)))
            for replica, part in enumerate(cut(size, self.replicas))
            if replica in self.hosted and len(part)
        ]
        self.step += 1
        found = self.strategy.compute_gradients(self.step, micros, size, Objective(loss or self.cross_entropy))
        self.digest.update(f"{found.loss.hex()} {found.checksum} {found.weights} {found.bad_replicas}".encode())
        return found

    def train(self, sizes: tuple[int, ...] = SIZES, loss: Loss | None = None, x: Tensor | None = None) -> None:
        """Do whole steps."""
        for size in sizes:
            self.gradients(size, loss, x)
            self.optimizer.step()
            for _, tensor in sorted(self.model.state_dict().items()):
                self.digest.update(bits(tensor))

    def cross_entropy(self, micro: tuple[int, Tensor, Tensor]) -> Tensor:
        """Return the usual loss."""
        return F.cross_entropy(self.model(micro[1]), micro[2])

    def report(self, **claims: bool) -> dict[str, Any]:
        """Return what a case returns."""
        return {"digest": self.digest.hexdigest(), "claims": {name: bool(value) for name, value in claims.items()}}


def mlp() -> nn.Sequential:
    """Return a small model, always the same."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def whole_batch_gradients(model: nn.Module, size: int, loss: Loss) -> list[Tensor | None]:
    """Return plain autograd's gradients of the mean over the whole batch."""
    inputs, targets = data()
    parameters = list(model.parameters())
    grads = torch.autograd.grad(loss((0, inputs[:size], targets[:size])), parameters, allow_unused=True)
    return [None if grad is None else grad.clone() for grad in grads]


def plain(transport: Transport) -> dict[str, Any]:
    """The gradient is that of the mean over the whole batch."""
    bench = Bench(transport, mlp())
    right = True
    for size in SIZES:
        expected = whole_batch_gradients(bench.model, size, bench.cross_entropy)
        bench.train((size,))
        found = [parameter.grad for parameter in bench.model.parameters()]
        right &= all(torch.allclose(a, b, atol=1e-6) for a, b in zip(expected, found, strict=True))
    return bench.report(right=right)


def sums_by_hand(transport: Transport) -> dict[str, Any]:
    """The gradient's bits are those of the replicas' weighted gradients, added pairwise; serial addition's are not."""
    bench = Bench(transport, mlp(), replicas=7)
    by_hand, serial = [], []
    inputs, targets = data()
    for part in cut(23, 7):
        loss = F.cross_entropy(bench.model(take(inputs, part)), take(targets, part))
        loss.backward(torch.full_like(loss, len(part) / 23))
        by_hand.append([parameter.grad.clone() for parameter in bench.model.parameters()])
        bench.model.zero_grad()
    expected = [pairwise_sum(list(column), torch.add) for column in zip(*by_hand, strict=True)]
    serial = [sum(column[1:], start=column[0]) for column in zip(*by_hand, strict=True)]
    bench.gradients(23)
    found = [parameter.grad for parameter in bench.model.parameters()]
    return bench.report(
        tree=all(bits(a) == bits(b) for a, b in zip(expected, found, strict=True)),
        control=any(bits(a) != bits(b) for a, b in zip(serial, found, strict=True)),
    )


class Choosy(nn.Module):
    """Uses one part always, one only where it is told to, one never."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.always, self.sometimes, self.never = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor, *, is_chosen: bool, is_zero: bool = False) -> Tensor:
        """Return scores."""
        scores = self.always(x)
        if is_chosen:
            return scores + self.sometimes(x)
        return scores + 0 * self.sometimes(x) if is_zero else scores


def unused(transport: Transport) -> dict[str, Any]:
    """No gradient on any replica is None, so not even decay moves the weights; on some, the others count as zero."""

    def train(*, is_zero: bool) -> Bench:
        model = Choosy()
        bench = Bench(transport, model, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1))

        def loss(micro: tuple[int, Tensor, Tensor]) -> Tensor:
            return F.cross_entropy(model(micro[1], is_chosen=micro[0] in (1, 4), is_zero=is_zero), micro[2])

        bench.train(loss=loss)
        return bench

    bench, explicit, fresh = train(is_zero=False), train(is_zero=True), Choosy()
    last_batch_has_it = bench.model.sometimes.weight.grad is not None  # 3 samples: replicas 0, 1, 2
    bench.train((1,), lambda micro: F.cross_entropy(bench.model(micro[1], is_chosen=False), micro[2]))
    return bench.report(
        never=bench.model.never.weight.grad is None,
        never_decays=torch.equal(bench.model.never.weight, fresh.never.weight),
        sometimes=last_batch_has_it,
        sometimes_moves=not torch.equal(bench.model.sometimes.weight, fresh.sometimes.weight),
        none_when_nobody=bench.model.sometimes.weight.grad is None,
        as_if_zero=torch.equal(explicit.model.sometimes.weight, bench.model.sometimes.weight),
    )


class Tied(nn.Module):
    """Embeds with the same matrix that it scores with."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        return self.last(torch.tanh(self.first(x)))


def tied(transport: Transport) -> dict[str, Any]:
    """A tied parameter gets the sum of both uses, once."""
    bench = Bench(transport, Tied())
    expected = whole_batch_gradients(bench.model, 23, bench.cross_entropy)
    bench.train((23,))
    right = torch.allclose(expected[0], bench.model.first.weight.grad, atol=1e-6)
    bench.train()
    return bench.report(right=right, still_tied=bench.model.first.weight is bench.model.last.weight)


def frozen(transport: Transport) -> dict[str, Any]:
    """A frozen parameter gets no gradient and keeps its bits."""
    model, fresh = mlp(), mlp()
    model[0].requires_grad_(False)
    bench = Bench(transport, model, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1))
    bench.train()
    return bench.report(
        none=model[0].weight.grad is None,
        kept=torch.equal(model[0].weight, fresh[0].weight),
        control=not torch.equal(model[2].weight, fresh[2].weight),
    )


def unfreezing(transport: Transport) -> dict[str, Any]:
    """A parameter unfrozen between steps is trained from then on, like in a model that had it from the start."""
    model, fresh = mlp(), mlp()
    model[0].requires_grad_(False)
    bench = Bench(transport, model, torch.optim.SGD(model.parameters(), lr=0.1))
    bench.train((23, 12))
    before = model[0].weight.clone()
    model[0].requires_grad_(True)
    expected = whole_batch_gradients(model, 7, bench.cross_entropy)
    bench.train((7,))
    right = all(torch.allclose(a, p.grad, atol=1e-6) for a, p in zip(expected, model.parameters(), strict=True))
    bench.train()
    return bench.report(
        kept=torch.equal(before, fresh[0].weight), right=right, moved=not torch.equal(before, model[0].weight)
    )


def freezing(transport: Transport) -> dict[str, Any]:
    """A parameter frozen between steps keeps its bits from then on, as after `zero_grad` in a loop of one's own."""
    model = mlp()
    bench = Bench(transport, model, torch.optim.SGD(model.parameters(), lr=0.1))
    bench.train((23, 12))
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    bench.train((23, 7))
    return bench.report(kept=torch.equal(before, model[0].weight))


def groups(transport: Transport) -> dict[str, Any]:
    """Several parameter groups, in another order than the model's, each keep their own settings."""
    model, fresh = mlp(), mlp()
    optimizer = torch.optim.AdamW(
        [
            {"params": model[2].parameters(), "lr": 0.01},
            {"params": model[0].parameters(), "lr": 0.0, "weight_decay": 0.5},
        ]
    )
    bench = Bench(transport, model, optimizer)
    bench.train()
    return bench.report(
        still=torch.equal(model[0].weight, fresh[0].weight), moved=not torch.equal(model[2].weight, fresh[2].weight)
    )


def few_samples(transport: Transport) -> dict[str, Any]:
    """Fewer samples than replicas, down to one: ranks without a sample take part and get the same gradient."""
    bench = Bench(transport, mlp())
    right = True
    for size in (1, 2, 3, 4, 5, 6):
        expected = whole_batch_gradients(bench.model, size, bench.cross_entropy)
        bench.train((size,))
        right &= all(
            torch.allclose(a, p.grad, atol=1e-6) for a, p in zip(expected, bench.model.parameters(), strict=True)
        )
    return bench.report(right=right)


def batch_norm(transport: Transport) -> dict[str, Any]:
    """Statistics are the replicas' weighted mean, bit for bit, each from the step's start; the counter counts steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    bench = Bench(transport, model)
    inputs, _ = data()
    right = True
    for size in (23, 12, 31):
        start, left = {name: buffer.clone() for name, buffer in model.named_buffers()}, []
        for part in cut(size, 5):
            with torch.no_grad():
                model(take(inputs, part))
            left.append([model[1].running_mean.mul(len(part) / size), model[1].running_var.mul(len(part) / size)])
            for name, buffer in model.named_buffers():
                buffer.copy_(start[name])
        mean, variance = (pairwise_sum(list(column), torch.add) for column in zip(*left, strict=True))
        bench.train((size,))
        right &= bits(mean) == bits(model[1].running_mean) and bits(variance) == bits(model[1].running_var)
    return bench.report(
        right=right,
        steps=int(model[1].num_batches_tracked) == 3,
        control=not torch.equal(mean, start["1.running_mean"]),
    )


class Constant(nn.Module):
    """Scales its input by a constant that it keeps as a buffer."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 4)
        self.register_buffer("value", value)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        used = self.value.real[0] if self.value.is_floating_point() or self.value.is_complex() else self.value[0]
        return self.linear(x) * torch.where(torch.isfinite(used), used, 1.0)


def constant_buffer(transport: Transport) -> dict[str, Any]:
    """A buffer that nobody changes keeps its bits, although thirds of it do not add up to it (V = 3)."""
    values = torch.rand(100, generator=torch.Generator().manual_seed(0)) + 0.1
    bench = Bench(transport, Constant(values.clone()), replicas=3)
    thirds = [values * (5 / 15)] * 3
    bench.train((15, 15))
    return bench.report(
        kept=bits(bench.model.value) == bits(values), control=bits(pairwise_sum(thirds, torch.add)) != bits(values)
    )


def infinite_buffer(transport: Transport) -> dict[str, Any]:
    """A constant buffer may hold infinities, as attention masks do: the gradients are finite."""
    values = torch.full((4,), float("-inf"))
    bench = Bench(transport, Constant(values.clone()))
    found = bench.gradients(23)
    return bench.report(kept=bits(bench.model.value) == bits(values), finite=found.bad_replicas == ())


def complex_buffer(transport: Transport) -> dict[str, Any]:
    """A constant buffer may be complex, as rotary position embeddings are."""
    values = torch.polar(torch.ones(4), torch.arange(4.0))
    bench = Bench(transport, Constant(values.clone()))
    bench.train()
    return bench.report(kept=bits(bench.model.value) == bits(values))


class Mover(nn.Module):
    """Puts new tensors in the place of its buffers instead of writing into them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 4)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(4, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        self.mean = 0.5 * self.mean + 0.5 * x.mean(dim=0)
        self.calls = self.calls + 1
        self.seen = self.seen | (torch.arange(4) == len(x) % 4)
        return self.linear(x - self.mean)


def moved_buffer(transport: Transport) -> dict[str, Any]:
    """A module may reassign its buffers: they are merged all the same, and no replica sees another's."""
    bench = Bench(transport, Mover())
    inputs, _ = data()
    bench.train((23,))
    expected = 0.5 * inputs[:23].mean(dim=0)
    right = torch.allclose(bench.model.mean, expected, atol=1e-6)
    seen = bench.model.seen.tolist() == [True, True, False, False]  # micro-batches of 5 and 4 samples
    bench.train((23, 12))
    return bench.report(right=right, calls=int(bench.model.calls) == 3, seen=seen)


def late_buffer(transport: Transport) -> dict[str, Any]:
    """A buffer registered as None and filled in the first step is refused: it could not be kept apart."""

    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(6, 4)
            self.register_buffer("mean", None)

        def forward(self, x: Tensor) -> Tensor:
            here = x.mean(dim=0)
            self.mean = here if self.mean is None else 0.5 * self.mean + 0.5 * here
            return self.linear(x - self.mean)

    bench = Bench(transport, Late())
    try:
        bench.train((23,))
    except StepError as error:
        return bench.report(refused="'mean' of Late was registered as None" in str(error))
    return bench.report(refused=False)


def channels_last(transport: Transport) -> dict[str, Any]:
    """Gradients of channels_last parameters have the parameters' own strides, and the right values."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 4)).to(
        memory_format=torch.channels_last
    )
    x = torch.randn(32, 2, 2, 3, generator=torch.Generator().manual_seed(5)).to(memory_format=torch.channels_last)
    bench = Bench(transport, model)
    expected = torch.autograd.grad(F.cross_entropy(model(x[:23]), data()[1][:23]), list(model.parameters()))
    bench.train((23,), x=x)
    found = [parameter.grad for parameter in model.parameters()]
    right = all(torch.allclose(a, b, atol=1e-6) for a, b in zip(expected, found, strict=True))
    bench.train(x=x)
    return bench.report(right=right, strides=model[0].weight.grad.stride() == model[0].weight.stride() == (8, 1, 4, 2))


def bfloat16(transport: Transport) -> dict[str, Any]:
    """A model in bfloat16 gets bfloat16 gradients."""
    bench = Bench(transport, mlp().to(torch.bfloat16))
    bench.train(x=data()[0].to(torch.bfloat16))
    return bench.report(dtype=bench.model[0].weight.grad.dtype == torch.bfloat16)


class Mixed(nn.Module):
    """Computes in three dtypes, parameters of which take turns, and has scalar and empty parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide = nn.Linear(6, 8).double()
        self.narrow = nn.Linear(8, 8)
        self.short = nn.Linear(8, 4).to(torch.bfloat16)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.empty = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        x = self.narrow(self.wide(x.double()).float())
        return self.short(x.to(torch.bfloat16)).float() * self.scale + self.empty.sum()


def mixed_dtypes(transport: Transport) -> dict[str, Any]:
    """Parameters of several dtypes, scalars and empty ones live together, each with its own dtype and shape."""
    bench = Bench(transport, Mixed())
    expected = whole_batch_gradients(bench.model, 23, bench.cross_entropy)
    bench.train((23,))
    found = [parameter.grad for parameter in bench.model.parameters()]
    right = all(
        a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=0.05, atol=0.02)
        for a, b in zip(expected, found, strict=True)
    )
    bench.train()
    return bench.report(right=right)


def dropout(transport: Transport) -> dict[str, Any]:
    """Each replica and step draws its own numbers, whatever was drawn before."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 4))
    bench, masks = Bench(transport, model), set()

    def loss(micro: tuple[int, Tensor, Tensor]) -> Tensor:
        masks.add((bench.step, micro[0], bits(model[1](torch.ones(64)))))
        return bench.cross_entropy(micro)

    bench.train((20, 20), loss)
    torch.rand(transport.rank + 5)  # disturb the process-wide stream, on each rank differently
    bench.train((20, 20), loss)
    return bench.report(distinct=len({mask for *_, mask in masks}) == len(masks) == 4 * len(bench.hosted))


def message(act: Callable[[], object]) -> str:
    """Return class and text of the error that `act` raises."""
    try:
        act()
    except UnisonoError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def refusals(transport: Transport) -> dict[str, Any]:
    """What no step can be computed from is a `StepError` (or `ConfigError`) that says what to change."""
    bench = Bench(transport, mlp())
    model = bench.model
    wrong = {
        "vector": lambda micro: F.cross_entropy(model(micro[1]), micro[2], reduction="none"),
        "number": lambda micro: F.cross_entropy(model(micro[1]), micro[2]).item(),
        "detached": lambda micro: F.cross_entropy(model(micro[1]), micro[2]).detach(),
        "none": lambda micro: None,
    }
    said = {name: message(lambda loss=loss: bench.gradients(25, loss)) for name, loss in wrong.items()}
    sparse = Bench(transport, FunctionalEmbedding())
    tokens = torch.arange(32 * 3).reshape(32, 3) % 8
    said["sparse"] = message(lambda: sparse.gradients(23, x=tokens))
    frozen_model = mlp().requires_grad_(False)
    said["frozen"] = message(lambda: exact(frozen_model, bench.optimizer, transport))
    said["empty"] = message(lambda: exact(nn.ReLU(), bench.optimizer, transport))
    bench.train()  # and after all that, a good step is computed
    return bench.report(
        vector="StepError" in said["vector"] and "(5,)" in said["vector"] and "mean" in said["vector"],
        number="StepError" in said["number"] and "float" in said["number"],
        detached="StepError" in said["detached"] and "detach" in said["detached"],
        none="StepError" in said["none"] and "return loss" in said["none"],
        sparse="StepError" in said["sparse"] and "'weight'" in said["sparse"] and "sparse=False" in said["sparse"],
        frozen="ConfigError" in said["frozen"] and "4 parameters" in said["frozen"],
        empty="ConfigError" in said["empty"] and "ReLU" in said["empty"],
    )


def wrong_micros(transport: Transport) -> dict[str, Any]:
    """Micro-batches that are not this rank's replicas are refused, not silently left out."""
    bench = Bench(transport, mlp())
    inputs, targets = data()
    only = Micro(replica=bench.hosted.start, num_samples=5, data=(0, inputs[:5], targets[:5]))
    too_many = [only] * (len(bench.hosted) + 1)
    said = [
        message(lambda m=m: bench.strategy.compute_gradients(1, m, 25, Objective(bench.cross_entropy)))
        for m in ([], too_many)
    ]
    return bench.report(none="StepError" in said[0], too_many="StepError" in said[1])


def not_finite(transport: Transport) -> dict[str, Any]:
    """A NaN or infinity in some replicas' loss or gradient is reported alike on all ranks, by replica."""
    bench = Bench(transport, mlp())
    model = bench.model

    def poisoned(replicas: set[int], poison: Callable[[Tensor], Tensor]) -> tuple[int, ...]:
        def loss(micro: tuple[int, Tensor, Tensor]) -> Tensor:
            good = F.cross_entropy(model(micro[1]), micro[2])
            return poison(good) if micro[0] in replicas else good

        return bench.gradients(23, loss).bad_replicas

    def bad_gradient(good: Tensor) -> Tensor:
        # Finite, but sqrt has an infinite slope at zero: 0 * inf is NaN.
        return good + (model[0].weight * 0).abs().sum().sqrt()

    return bench.report(
        good=poisoned(set(), lambda good: good) == (),
        loss=poisoned({3}, lambda good: good * float("nan")) == (3,),
        infinite=poisoned({1, 4}, lambda good: good * float("inf")) == (1, 4),
        gradient=poisoned({2}, bad_gradient) == (2,),
        all_of_them=poisoned({0, 1, 2, 3, 4}, lambda good: good / 0) == (0, 1, 2, 3, 4),
        good_again=poisoned(set(), lambda good: good) == (),
    )


def drifted(transport: Transport) -> dict[str, Any]:
    """One flipped bit in one rank's weights is found in the same step, and that rank is named on all ranks."""
    if transport.world_size < 3:  # nobody can say which of two is wrong, and one alone is never wrong
        return {"digest": "", "claims": {}}
    claims = {}
    for culprit in range(transport.world_size):
        bench = Bench(transport, mlp())
        bench.train((23,))
        if transport.rank == culprit:
            with torch.no_grad():
                flipped = bench.model[2].bias.view(torch.int32)
                flipped[1] ^= 1
        said = message(lambda bench=bench: bench.gradients(23))
        claims[f"rank_{culprit}"] = said.startswith(f"RankDivergence: step 2: rank {culprit} holds other weights")
        claims[f"parameter_{culprit}"] = "first in '2.bias' (1 of 4 tensors)" in said
    other_step = Bench(transport, mlp())
    other_step.step = 10 if transport.rank == 1 else 0
    said = message(lambda: other_step.gradients(23))
    claims["step"] = "RankDivergence" in said and "rank 0: step 1: " in said and "rank 1: step 11: " in said
    return {"digest": "", "claims": claims}


EVERYWHERE = (
    plain, sums_by_hand, unused, tied, frozen, unfreezing, freezing, groups, few_samples, batch_norm, constant_buffer,
    infinite_buffer, moved_buffer, channels_last, bfloat16, mixed_dtypes, dropout, refusals, not_finite, drifted,
)  # fmt: skip
"""Run over every transport."""
IN_PROCESS = (complex_buffer, late_buffer, wrong_micros)
"""Where ranks may fail one by one: in processes of their own the others would wait for them."""


def play(transport: Transport | None, *names: str) -> dict[str, dict[str, Any]]:
    """Run the cases of these names (all that run everywhere, if none) on this rank."""
    set_determinism(1)
    joined = join(transport)
    cases = [case for case in EVERYWHERE + IN_PROCESS if case.__name__ in names] if names else EVERYWHERE
    return {case.__name__: _report(case, joined) for case in cases}


def _report(case: Callable[[Transport], dict[str, Any]], transport: Transport) -> dict[str, Any]:
    try:
        return case(transport)
    except (UnisonoError, RuntimeError, TypeError):
        # Told as a broken claim, so that in a launch the other cases are judged too.
        return {"digest": "", "claims": {traceback.format_exc(): False}}
