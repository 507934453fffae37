"""Small trainings of several models, as programs that ranks run: a game, an actor and its critic, a teacher, a critic
that learns more often.

Each case says what is trained and what a loop does with a batch. `play` trains it by a run, `play_plainly` by a loop
of plain PyTorch in one process.
"""

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import unisono
from unisono.data.sampler import ExactSampler
from unisono.determinism.seeding import mix
from unisono.determinism.switches import set_generators
from unisono.train.steps.loop import pin

SEED, NUM_SAMPLES, BATCH_SIZE, WIDTH, NOISE = 3, 70, 24, 12, 6
Loss = Callable[[Any], Tensor]
Step = Callable[[str, Loss], float]


def data() -> unisono.ArrayDataset:
    """Return inputs of 12 features, in 3 classes."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(NUM_SAMPLES) % 3
    x = torch.randn(NUM_SAMPLES, WIDTH, generator=generator) + F.one_hot(labels, WIDTH) * 2
    return unisono.ArrayDataset(x.numpy(), labels.numpy())


class Case:
    """What is trained, by name, and what a loop does with a batch."""

    clip_norm: ClassVar[dict[str, float] | None] = None

    def __init__(self) -> None:
        self.models: dict[str, nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.schedulers: dict[str, Any] = {}

    def body(self, step: Step) -> None:
        """Do all updates of a batch."""


class Gan(Case):
    """Batch statistics in both, dropout in one: D, then G."""

    clip_norm: ClassVar = {"D": 0.5}

    def __init__(self) -> None:
        super().__init__()
        G = nn.Sequential(nn.Linear(NOISE, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, WIDTH))
        D = nn.Sequential(
            nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(16, 1)
        )
        self.models = {"G": G, "D": D}
        self.optimizers = {"G": torch.optim.Adam(G.parameters(), 2e-2), "D": torch.optim.SGD(D.parameters(), 5e-2, 0.9)}
        self.schedulers = {"G": torch.optim.lr_scheduler.ExponentialLR(self.optimizers["G"], 0.9)}

    def fake(self, micro: Any) -> Tensor:
        """Return invented inputs."""
        return self.models["G"](torch.randn(len(micro.x), NOISE))

    def d_loss(self, micro: Any) -> Tensor:
        """Tell the real ones from the invented ones."""
        D = self.models["D"]
        return F.softplus(-D(micro.x)).mean() + F.softplus(D(self.fake(micro).detach())).mean()

    def g_loss(self, micro: Any) -> Tensor:
        """Invent what D takes for real."""
        return F.softplus(-self.models["D"](self.fake(micro))).mean()

    def body(self, step: Step) -> None:
        step("D", self.d_loss)
        step("G", self.g_loss)


class Wgan(Gan):
    """Three steps of the critic on one batch, with a gradient penalty."""

    clip_norm = None

    def __init__(self) -> None:
        super().__init__()
        D = self.models["D"] = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1))
        self.optimizers["D"] = torch.optim.Adam(D.parameters(), 1e-2, betas=(0.0, 0.9))

    def d_loss(self, micro: Any) -> Tensor:
        D, fake = self.models["D"], self.fake(micro).detach()
        between = torch.lerp(micro.x, fake, torch.rand(len(micro.x), 1)).requires_grad_()
        (slope,) = torch.autograd.grad(D(between).sum(), between, create_graph=True)
        return D(fake).mean() - D(micro.x).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()

    def body(self, step: Step) -> None:
        for _ in range(3):
            step("D", self.d_loss)
        step("G", self.g_loss)


class Head(nn.Module):
    """A layer on a trunk that another model may share."""

    def __init__(self, trunk: nn.Module, width: int) -> None:
        super().__init__()
        self.trunk, self.layer = trunk, nn.Linear(16, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's outputs."""
        return self.layer(self.trunk(x))


class ActorCritic(Case):
    """One trunk, one optimizer with parameters of both; a temperature learns by another."""

    clip_norm: ClassVar = {"both": 0.3}

    def __init__(self) -> None:
        super().__init__()
        trunk = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Dropout(0.1))
        actor, critic, temperature = Head(trunk, 3), Head(trunk, 1), nn.Linear(1, 1)
        self.models = {"actor": actor, "critic": critic, "temperature": temperature}
        both = [*actor.parameters(), *critic.layer.parameters()]
        self.optimizers = {
            "both": torch.optim.AdamW([{"params": both[:4]}, {"params": both[4:], "lr": 1e-3}], 1e-2),
            "temperature": torch.optim.SGD(temperature.parameters(), 0.1),
        }

    def entropy(self, micro: Any) -> Tensor:
        """Return how undecided the actor is, by sample."""
        return torch.distributions.Categorical(logits=self.models["actor"](micro.x)).entropy()

    def both_loss(self, micro: Any) -> Tensor:
        """Act as the critic likes it, and let the critic learn from that."""
        policy = torch.distributions.Categorical(logits=self.models["actor"](micro.x))
        action, value = policy.sample(), self.models["critic"](micro.x)[:, 0]
        gain = (action == micro.y).float() - value
        weight = self.models["temperature"](torch.ones(1, 1)).detach().exp()
        return (-policy.log_prob(action) * gain.detach() + gain.square() - weight * policy.entropy()).mean()

    def temperature_loss(self, micro: Any) -> Tensor:
        """Keep the actor about as undecided as it should be."""
        return (self.models["temperature"](torch.ones(1, 1)) * (self.entropy(micro).detach() - 0.5)).mean()

    def body(self, step: Step) -> None:
        step("both", self.both_loss)
        step("temperature", self.temperature_loss)


class Teacher(Case):
    """A student learns from a frozen teacher and from its own average: models without an optimizer."""

    def __init__(self) -> None:
        super().__init__()
        make = lambda: nn.Sequential(nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))  # noqa: E731
        student, teacher = make(), make().eval()
        ema = AveragedModel(student, multi_avg_fn=get_ema_multi_avg_fn(0.8)).eval()
        self.models = {"student": student, "teacher": teacher, "ema": ema}
        self.optimizers = {"student": torch.optim.Adam(student.parameters(), 1e-2)}

    def loss(self, micro: Any) -> Tensor:
        """Agree with the label, the teacher, and one's own average."""
        scores = self.models["student"](micro.x).log_softmax(1)
        with torch.no_grad():
            told = [self.models[name](micro.x).softmax(1) for name in ("teacher", "ema")]
        return F.nll_loss(scores, micro.y) - sum((scores * each).sum(1).mean() for each in told)

    def body(self, step: Step) -> None:
        step("student", self.loss)
        self.models["ema"].update_parameters(self.models["student"])


class Large(Gan):
    """A game whose gradients are added, and leave for other ranks, while others are computed."""

    def __init__(self) -> None:
        super().__init__()
        for name, first, last in (("G", NOISE, WIDTH), ("D", WIDTH, 1)):
            layers = nn.Linear(first, 600), nn.BatchNorm1d(600), nn.ReLU(), nn.Linear(600, 512), nn.Linear(512, last)
            self.models[name] = nn.Sequential(*layers)
            self.optimizers[name] = torch.optim.Adam(self.models[name].parameters(), 1e-3)
        self.schedulers = {}


CASES: dict[str, type[Case]] = {
    "gan": Gan, "wgan": Wgan, "actor-critic": ActorCritic, "teacher": Teacher, "large": Large,
}  # fmt: skip


def play(
    transport: Any, name: str, out: str | None = None, *, replicas: int = 4, epochs: int = 2,
    at: Callable[[int, int], object] | None = None, **settings: Any,
) -> str:  # fmt: skip
    """Train a case, calling ``at(step, number)`` before every update; return the fingerprint."""
    with unisono.Run(seed=SEED, replicas=replicas, out=out, transport=transport or "auto", **settings) as run:
        case = CASES[name]()
        run.prepare(case.models, case.optimizers, case.schedulers, clip_norm=case.clip_norm)
        for batch in run.steps(run.loader(data(), batch_size=BATCH_SIZE), epochs=epochs):
            number = itertools.count()

            def step(update: str, loss: Loss, batch: Any = batch, number: Iterator[int] = number) -> float:
                if at is not None:
                    at(batch.step, next(number))
                return run.step(batch, loss, update=update)

            case.body(step)
        return run.fingerprint()


def play_plainly(name: str, epochs: int = 2) -> dict[str, str]:
    """Train a case as plain PyTorch does, from the keys of a run with one replica; return the bits of each tensor."""
    torch.manual_seed(SEED)
    case, dataset = CASES[name](), data()
    sampler = ExactSampler(NUM_SAMPLES, BATCH_SIZE, 1, seed=SEED, shuffle=True)
    for optimizer in case.optimizers.values():
        pin(optimizer)
    for done in range(1, epochs * 3 + 1):
        micro = SimpleNamespace(**dict(zip("xy", dataset.fetch_micro_batch(sampler.batch(done)), strict=True)))
        number = itertools.count()

        def step(update: str, loss: Loss, done: int = done, micro: Any = micro, number: Any = number) -> float:
            k, optimizer = next(number), case.optimizers[update]
            set_generators(mix(SEED, "replica", done, 0, *([k] if k else [])))
            optimizer.zero_grad()
            value = loss(micro)
            value.backward()
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            if update in (case.clip_norm or {}):
                nn.utils.clip_grad_norm_(parameters, case.clip_norm[update], foreach=True)
            optimizer.step()
            if update in case.schedulers:
                case.schedulers[update].step()
            return value.item()

        case.body(step)
    return tensors(case)


def tensors(case: Case) -> dict[str, str]:
    """Return the bits of all parameters and buffers by name."""
    from reference import bits  # not found by ranks that know this directory alone

    return {key: bits(value).hex() for key, value in nn.ModuleDict(case.models).state_dict().items()}


def play_and_die(transport: Any, out: str, name: str, deadly: tuple[int, int] | None) -> str:
    """Train a case on the ranks of a launch; where it is said, rank 1 dies just before an update."""

    def at(step: int, number: int) -> None:
        if deadly is not None and (step, number) == (*deadly,) and unisono.World.current().rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    return play(transport, name, out, at=at, checkpoint_every=2)
