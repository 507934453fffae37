"""Small trainings whose loss is one over the whole batch; every rank runs them, over any transport.

A case returns ``digest`` (must be equal on all ranks of all worlds) and ``claims`` (must all be true). V = 5; the third
batch leaves two replicas without a sample, and so ranks.
"""

import functools
import hashlib
import itertools
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import unisono
from ranks import join
from reference import bits
from strategies.exact_cases import message, take
from unisono.collectives import pieces
from unisono.collectives.placement import cut, place_evenly
from unisono.collectives.process_groups.transport import connect
from unisono.collectives.transport import Transport
from unisono.determinism.switches import set_determinism
from unisono.strategies.base import Gradients, Micro, StrategyContext
from unisono.strategies.exact import Exact
from unisono.strategies.objective import Objective
from unisono.strategies.options import ExactOptions
from unisono.world import World

REPLICAS = 5
SIZES = (23, 12, 3, 23)
PLACEMENTS = {2: [range(1), range(1, 5)], 3: [range(3), range(3, 4), range(4, 5)]}
"""Beside the even ones: as ``shares=1,5`` would have it, and its reverse."""
FIRST_ALONE = {2: PLACEMENTS[2], 3: [range(1), range(1, 3), range(3, 5)]}
"""Replica 0, which has what the loss learns, is the last one of its rank."""


class Sample(NamedTuple):
    """What embed gets."""

    step: int
    replica: int
    x: Tensor
    y: Tensor


class Pair(NamedTuple):
    """Two views of each sample, and its number."""

    left: Tensor
    right: Tensor
    label: Tensor


class Centred(nn.Module):
    """Subtracts a mean that it learns as a buffer, as BatchNorm does, and counts; of one sample, too."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Return the centred input."""
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(dim=0) / 10)
            self.calls += 1
        return x - self.mean


class Towers(nn.Module):
    """Two encoders and a temperature."""

    def __init__(self, *, is_plain: bool = False, width: int = 8, norm: Any = Centred) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.noise = 0.0 if is_plain else 0.1  # the loss draws, too
        own: list[Callable[[], nn.Module]] = [nn.Tanh] if is_plain else [lambda: norm(width), nn.Tanh, nn.Dropout]
        self.left, self.right = (
            nn.Sequential(nn.Linear(6, width), *(make() for make in own), nn.Linear(width, 4)) for _ in range(2)
        )
        self.temperature = nn.Parameter(torch.tensor(0.3))

    def pair(self, sample: Sample) -> Pair:
        """Embed both views."""
        return Pair(self.left(sample.x), self.right(-sample.x), sample.y)

    def loss(self, pair: Pair) -> Tensor:
        """Return the contrastive loss of a batch, both ways."""
        scores = F.normalize(pair.left) @ F.normalize(pair.right).T * self.temperature.exp()
        scores = F.dropout(scores, self.noise)
        here = torch.arange(len(scores))
        return (F.cross_entropy(scores, here) + F.cross_entropy(scores.T, here)) / 2


def samples(size: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets out of 4."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(32, 6, generator=generator)[:size], torch.randint(0, 4, (32,), generator=generator)[:size]


class Bench:
    """One model under the exact strategy on this rank."""

    def __init__(
        self, transport: Transport, model: Any, placement: Sequence[range] | None = None, replicas: int = REPLICAS,
        **options: str,
    ) -> None:  # fmt: skip
        self.model, self.transport, self.replicas = model, transport, replicas
        placement = placement or place_evenly(replicas, transport.world_size)
        self.hosted = placement[transport.rank]
        context = StrategyContext(transport=transport, placement=placement, seed=3, device=torch.device("cpu"))
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        self.strategy = Exact(model, self.optimizer, context, ExactOptions(**options))
        self.digest, self.step = hashlib.sha256(), 0

    def gradients(self, size: int, embed: Any = None, loss: Any = None) -> Gradients:
        """Compute the gradients of one step on the first `size` samples."""
        (x, y), self.step = samples(size), self.step + 1
        micros = (
            Micro(replica, len(part), Sample(self.step, replica, take(x, part), take(y, part)))
            for replica, part in enumerate(cut(size, self.replicas))
            if replica in self.hosted and len(part)
        )
        objective = Objective(loss or self.model.loss, embed=embed or self.model.pair)
        found = self.strategy.compute_gradients(self.step, micros, size, objective)
        self.digest.update(f"{found.loss.hex()} {found.checksum} {found.weights} {found.bad_replicas}".encode())
        return found

    def train(self, sizes: Sequence[int] = SIZES, embed: Any = None, loss: Any = None) -> list[Gradients]:
        """Do whole steps."""
        found = []
        for size in sizes:
            found.append(self.gradients(size, embed, loss))
            self.optimizer.step()
            for _, tensor in sorted(self.model.state_dict().items()):
                self.digest.update(bits(tensor))
        return found

    def report(self, **claims: Any) -> dict[str, Any]:
        """Return what a case returns."""
        self.strategy.close()
        return {"digest": self.digest.hexdigest(), "claims": {name: bool(value) for name, value in claims.items()}}


def one_batch(model: Any, size: int, embed: Any = None, loss: Any = None) -> tuple[float, list[Tensor | None]]:
    """Return plain autograd's loss and gradients on the whole batch at once."""
    parameters = list(model.parameters())
    value = (loss or model.loss)((embed or model.pair)(Sample(1, 0, *samples(size))))
    return value.item(), [*torch.autograd.grad(value, parameters, allow_unused=True)]


def are_close(expected: Sequence[Tensor | None], model: nn.Module) -> bool:
    """Whether the model has these gradients, up to rounding."""
    pairs = zip(expected, (parameter.grad for parameter in model.parameters()), strict=True)
    return all(
        (a is None) == (b is None) and (a is None or torch.allclose(a, b, rtol=1e-5, atol=1e-6)) for a, b in pairs
    )


def contrastive(transport: Transport) -> dict[str, Any]:
    """Two towers with statistics and dropout, a temperature, labels: losses fall, statistics move once a step."""
    bench = Bench(transport, Towers())
    told = bench.train(SIZES * 3)
    return bench.report(
        learns=told[-1].loss < told[0].loss,
        losses_alike=all({*each.losses} == {each.loss} for each in told) and len(told[0].losses) == 5,
        counted=int(bench.model.left[1].calls) == 3 * len(SIZES),
    )


def uneven(transport: Transport) -> dict[str, Any]:
    """The same with most replicas on one rank."""
    bench = Bench(transport, Towers(), PLACEMENTS.get(transport.world_size))
    bench.train(SIZES * 3)
    return bench.report()


def as_one_batch(transport: Transport) -> dict[str, Any]:
    """Loss and gradients are those of one big batch, the temperature's too, and of any part of the data."""
    bench, right, alike = Bench(transport, Towers(is_plain=True)), True, True
    for size in (*SIZES, 5, 1):
        loss, expected = one_batch(bench.model, size)
        found = bench.train((size,))[0]
        right &= are_close(expected, bench.model)
        alike &= abs(found.loss - loss) < 1e-6
    return bench.report(right=right, alike=alike, temperature=bench.model.temperature.grad is not None)


def statistics(transport: Transport) -> dict[str, Any]:
    """BatchNorm's buffers have the bits that a loss by micro-batch leaves: the first pass is forgotten."""
    once, twice = (Bench(transport, Towers(norm=nn.BatchNorm1d)) for _ in range(2))
    twice.gradients(23)
    objective = Objective(lambda sample: once.model.loss(once.model.pair(sample)))
    x, y = samples(23)
    micros = [
        Micro(replica, len(part), Sample(1, replica, take(x, part), take(y, part)))
        for replica, part in enumerate(cut(23, REPLICAS))
        if replica in once.hosted
    ]
    once.strategy.compute_gradients(1, micros, 23, objective)
    pairs = zip(once.model.buffers(), twice.model.buffers(), strict=True)
    return twice.report(same=all(bits(a) == bits(b) for a, b in pairs), moved=once.model.left[1].running_mean.any())


def forms(transport: Transport) -> dict[str, Any]:
    """A tensor, nested dictionaries and lists, several dtypes, rows without gradient; another form in later steps."""
    model = Towers(is_plain=True)
    bench, seen, scratch = Bench(transport, model), [], torch.zeros(23, 6)

    def nested(sample: Sample) -> Any:
        wide = model.left(sample.x)
        return {
            "a": [wide, (wide.double() ** 2, sample.y)],
            "b": {"mask": sample.x > 0, "half": wide.bfloat16()},
            "flat": wide.sum(dim=1),
            "cut": wide[:, :2],
            "complex": torch.complex(wide, -wide),
            "x": sample.x[:, :0],
            "used again": scratch[: len(sample.x)].copy_(sample.x),
        }

    def of_nested(rows: Any) -> Tensor:
        wide, (square, label) = rows["a"]
        seen.append([wide.shape, label.dtype, rows["b"]["mask"].dtype, rows["b"]["half"].dtype, rows["x"].shape])
        weight = rows["b"]["mask"].float().mean() + rows["complex"].abs().mean() + rows["b"]["half"].float().sum() / 99
        weight = weight + (rows["used again"] * wide.mean()).mean()
        return square.float().std() * weight + F.cross_entropy(wide, label) + rows["flat"].var() + rows["cut"].amax()

    def of_one(rows: Tensor) -> Tensor:
        return torch.pdist(rows).mean() * model.temperature

    right = True
    for embed, loss in itertools.islice(itertools.cycle([(nested, of_nested), (lambda s: model.left(s.x), of_one)]), 3):
        expected = one_batch(model, 23, embed, loss)[1]
        bench.gradients(23, embed, loss)
        right &= are_close(expected, model)
        bench.train((23, 3, 12), embed, loss)
    shapes = [torch.Size([23, 4]), torch.int64, torch.bool, torch.bfloat16, torch.Size([23, 0])]
    return bench.report(right=right, seen=shapes in seen or not len(bench.hosted))


def proxies(transport: Transport) -> dict[str, Any]:
    """A large matrix that the loss alone learns (a megabyte), and a layer that both learn, count once."""
    model = Towers(is_plain=True)
    model.proxies = nn.Parameter(torch.randn(70_000, 4, generator=torch.Generator().manual_seed(0)))
    bench = Bench(transport, model)

    def loss(pair: Pair) -> Tensor:
        again = model.left[-1](torch.tanh(pair.right @ torch.ones(4, 8)))  # of the encoder, once more
        return F.cross_entropy(pair.left @ model.proxies[:50].T, pair.label) + (again * model.proxies[-1]).mean()

    right = True
    for _ in range(3):
        expected = one_batch(model, 23, None, loss)[1]
        bench.train((23,), None, loss)
        right &= are_close(expected, model)
    bench.train((12, 3), None, loss)
    return bench.report(right=right, unused=model.temperature.grad is None)


def hooks(transport: Transport) -> dict[str, Any]:
    """A hook on a parameter of the loss sees its gradient once, as in one big batch."""
    bench, plain = Bench(transport, Towers(is_plain=True)), Towers(is_plain=True)
    for model in (bench.model, plain):
        model.temperature.register_hook(lambda grad: grad * 3)
    expected = one_batch(plain, 23)[1]
    bench.gradients(23)
    return bench.report(right=are_close(expected, bench.model))


class Encoders(nn.Module):
    """Parts whose kernels differ with and without gradients, and one that computes its forward pass twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(6, 8, num_layers=2, batch_first=True, dropout=0.3)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Embed sequences of six numbers, each the beginning of a row."""
        rows, _ = self.lstm(torch.stack([x.roll(shift, 1) for shift in range(5)], dim=1))
        return self.last(checkpoint(self.encoder, rows, use_reentrant=True)[:, 0])


def encoders(transport: Transport) -> dict[str, Any]:
    """LSTM, a transformer's layer, dropout and reentrant checkpointing: the second pass is like the first."""
    model = Encoders()
    bench = Bench(transport, model)
    told = bench.train((23, 12, 3), lambda sample: (model(sample.x), sample.y), lambda rows: F.cross_entropy(*rows))
    return bench.report(finite=not any(each.bad_replicas for each in told))


def rounded(transport: Transport) -> dict[str, Any]:
    """With rounded gradients what the loss learns is rounded too, wherever it is added."""
    bench = Bench(transport, Towers(), compress="bf16", codec="none")
    bench.train()
    grad = bench.model.temperature.grad
    return bench.report(rounded=torch.equal(grad, grad.bfloat16().float()))


def overlapped(transport: Transport) -> dict[str, Any]:
    """Gradients may leave during the second pass: the bits are the same."""
    placement = FIRST_ALONE.get(transport.world_size)
    off, on = (Bench(transport, Towers(width=20_000), placement, overlap=overlap) for overlap in ("off", "on"))
    for bench in (off, on):
        bench.train(SIZES[1:])
    early = on.strategy._sum._overlap is not None
    is_there = transport.world_size > 1 and not transport.is_one_thread
    return off.report(same=on.report()["digest"] == off.digest.hexdigest(), early=early == is_there)


def bad_numbers(transport: Transport) -> dict[str, Any]:
    """NaN in a replica's rows names it, in the loss alone names all, in a gradient too; a mask may be infinite."""
    model = Towers(is_plain=True)
    bench = Bench(transport, model)

    def poisoned(pair: Sample) -> Pair:
        found = model.pair(pair)
        return found._replace(left=found.left * (float("nan") if pair.replica == 3 else 1))

    def masked(sample: Sample) -> Any:
        return model.left(sample.x), torch.full_like(sample.x, float("-inf"))

    def steep(pair: Pair) -> Tensor:
        return model.loss(pair) + (model.temperature * 0).abs().sqrt()

    before = bits(model.temperature)
    found = {
        "rows": bench.gradients(23, poisoned).bad_replicas == (3,),
        "loss": bench.gradients(12, None, lambda pair: model.loss(pair) / 0).bad_replicas == (0, 1, 2, 3, 4),
        "slope": bench.gradients(23, None, steep).bad_replicas == (0, 1, 2, 3, 4),
        "short": bench.gradients(3, None, lambda pair: model.loss(pair) * float("nan")).bad_replicas == (0, 1, 2),
        "mask": bench.gradients(23, masked, lambda rows: rows[0].std() + rows[1].exp().sum()).bad_replicas == (),
    }
    return bench.report(**found, kept=bits(model.temperature) == before, good=bench.gradients(23).bad_replicas == ())


class Counting(Towers):
    """Counts its calls where nobody looks."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.own = 0, torch.Generator().manual_seed(0)
        self.register_buffer("centre", torch.zeros(4))


def refusals(transport: Transport) -> dict[str, Any]:
    """What cannot be right is a `StepError` that says what to change; a good step can follow."""
    bench = Bench(transport, Counting())
    model = bench.model

    def counted(sample: Sample) -> Tensor:
        model.calls += 1
        return model.left(sample.x) + model.calls

    def drawn(sample: Sample) -> dict[str, Tensor]:
        return {"fix": sample.x, "own": model.left(sample.x) + torch.rand(4, generator=model.own)}

    def in_place(sample: Sample) -> Tensor:
        return model.left(sample.x.mul_(2))

    def centred(pair: Pair) -> Tensor:
        model.centre = pair.left.detach().mean(dim=0)
        return model.loss(pair)

    def once(sample: Sample) -> Tensor:
        model.calls += 1
        return model.left(sample.x) if model.calls <= len(bench.hosted) else model.left(sample.x).detach()

    def silent(sample: Sample) -> Tensor:
        with torch.no_grad():
            return model.left(sample.x)

    lone = lambda rows: rows.var()  # noqa: E731
    cases: dict[str, tuple[Any, Any, str]] = {
        "counter": (counted, lone, "other numbers, unlike in its first pass"),
        "generator": (drawn, lambda rows: rows["own"].var(), "other numbers ['own'], unlike in its first pass"),
        "in_place": (in_place, lone, "changed in place"),
        "detached": (once, lone, "no gradient) in *, unlike"),
        "buffer": (None, centred, "has changed the buffer 'centre'"),
        "no_grad": (silent, lone, "nothing that embed returns depends on a trainable parameter"),
        "unrelated": (None, lambda _: model.temperature**2, "the loss depends on nothing that embed returns"),
        "vector": (None, lambda pair: pair.left, "expected a scalar loss, got shape (25, 4)"),
        "rows": (lambda sample: model.left(sample.x).flatten(), lone, "5 samples, got shape (20,)"),
        "mean": (lambda sample: {"all": model.left(sample.x).mean()}, lone, "got shape () as ['all']"),
        "number": (lambda sample: Pair(model.left(sample.x), 3, sample.y), lone, "got int as .right"),
        "nothing": (lambda _: {}, lone, "got dict"),
    }  # fmt: skip
    if transport.world_size == 1:  # else see `differing`
        cases["form"] = lambda sample: model.left(sample.x)[:, : 1 + sample.replica % 2], lone, "float32 (n, 2)"
    claims = {}
    for name, (embed, loss, words) in cases.items():
        model.calls = 0
        said = message(functools.partial(bench.gradients, 25, embed, loss))
        claims[f"{name}: {said}"] = said.startswith("StepError") and words in said and "Hint: " in said
        bench.strategy.begin_again(is_within=True)  # buffers are as before, and the next step has nothing of this one
    bench.step = 0
    bench.train()
    return bench.report(**claims)


def differing(transport: Transport) -> dict[str, Any]:
    """Negative control: a loss that knows its rank, and rows of another form on one rank, stop all ranks alike."""
    if transport.world_size == 1:
        return {"digest": "", "claims": {}}
    bench = Bench(transport, Towers())
    model, claims = bench.model, {}
    bench.train((23,))

    def ranked(pair: Pair) -> Tensor:
        return model.loss(pair) * (1 + (transport.rank == 1) * 1e-6)

    def shaped(sample: Sample) -> Any:
        left, right, label = model.pair(sample)
        return Pair(left, right, label.int() if transport.rank == 1 else label)

    said = message(lambda: bench.gradients(23, None, ranked))
    claims["loss"] = said.startswith("RankDivergence: step 2: the loss over the whole batch") and "rank 1 (" in said
    said = message(lambda: bench.gradients(23, shaped))
    claims["form"] = said.startswith("RankDivergence: step 3: embed has returned") and ".label int32" in said
    return {"digest": "", "claims": claims}


def train(transport: Transport | None, out: str, until: int, **settings: Any) -> dict[str, Any]:
    """Run from the last checkpoint on, as a program would; leave the loop when step `until` is done."""
    poison, workers = settings.pop("poison", None), settings.pop("num_workers", 0)
    told = []
    with unisono.Run(seed=3, replicas=REPLICAS, out=out, transport=transport or "auto", **settings) as run:
        model = Towers(norm=nn.BatchNorm1d)
        run.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-2))
        dataset = unisono.ArrayDataset(*samples(32))

        def embed(micro: Any) -> Pair:
            found = model.pair(Sample(0, 0, micro.x, micro.y))
            return found._replace(left=found.left * (float("nan") if poison == batch.step else 1))

        for batch in run.steps(run.loader(dataset, batch_size=16, num_workers=workers), epochs=99, max_steps=10):
            told.append([batch.step, run.step(batch, model.loss, embed=embed).hex()])
            if batch.step == until:
                break
        return {"told": told, "fingerprint": run.fingerprint(), "ledger": Path(out, "ledger.jsonl").read_text()}


EVERYWHERE = (
    contrastive, uneven, as_one_batch, statistics, forms, proxies, hooks, encoders, rounded, overlapped, bad_numbers,
    differing,
)  # fmt: skip
"""Run over every transport."""
IN_PROCESS = (refusals,)
"""Where ranks may fail one by one: in processes of their own the others would wait for them."""


def play(transport: Transport | None, *names: str, shares: bool = True) -> dict[str, dict[str, Any]]:
    """Run the cases of these names (all that run everywhere, if none); over messages unless it `shares` memory."""
    set_determinism(1)
    if transport is None:  # a process of its own
        pieces._LEAST_BYTES = 1 << 18  # so that a small model has several buckets
    joined = join(transport) if shares else transport or connect(World.current(), timeout_s=60, share_memory=False)
    cases = [case for case in EVERYWHERE + IN_PROCESS if case.__name__ in names] if names else EVERYWHERE
    return {case.__name__: _report(case, joined) for case in cases}


def over_messages(transport: Transport | None) -> dict[str, dict[str, Any]]:
    """Run the cases without shared memory."""
    return play(transport, shares=False)


def _report(case: Callable[[Transport], dict[str, Any]], transport: Transport) -> dict[str, Any]:
    try:
        return case(transport)
    except Exception:  # noqa: BLE001 - told as a broken claim, so that in a launch the other cases are judged too
        return {"digest": "", "claims": {traceback.format_exc(): False}}
