"""Small trainings of every kind, drawn from a generator and described by plain values, and how one is run."""

import contextlib
import random
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unisono

Description = dict[str, Any]
WIDTH, CLASSES = 6, 4

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5, centered=True),
    "asgd": lambda p: torch.optim.ASGD(p, lr=1e-2),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
}
SCHEDULERS = {
    "none": lambda optimizer: None,
    "step": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5),
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=7),
    "lambda": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "chained": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3),
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        ],
        [3],
    ),
}


class Normed(nn.Module):
    """Batch normalisation, whose statistics are merged over replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Recurrent(nn.Module):
    """An LSTM over the features, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 5, batch_first=True)
        self.read = nn.Sequential(nn.Dropout(0.2), nn.Linear(5, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.lstm(x[:, :, None])[0][:, -1])


class Tied(nn.Module):
    """One weight used twice, one frozen, one that no sample reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.unused = nn.Linear(2, 2)
        self.read = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(torch.tanh(self.shared(torch.tanh(self.frozen(self.shared(x))))))


class Attentive(nn.Module):
    """An encoder layer with dropout, and embeddings of the features' signs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(2 * WIDTH, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.read = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        codes = (x > 0).long() + 2 * torch.arange(WIDTH)
        return self.read(self.encoder(self.embed(codes)).mean(dim=1))


MODELS = {
    "linear": lambda: nn.Linear(WIDTH, CLASSES),
    "mlp": lambda: nn.Sequential(nn.Linear(WIDTH, 9), nn.GELU(), nn.Dropout(0.3), nn.Linear(9, CLASSES)),
    "double": lambda: nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double(),
    "conv": lambda: nn.Sequential(
        nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(),
        nn.Linear(4 * (WIDTH - 2), CLASSES),
    ),
    "normed": Normed,
    "recurrent": Recurrent,
    "tied": Tied,
    "attentive": Attentive,
}  # fmt: skip


def draw(chance: random.Random) -> Description:
    """Return a training: what is drawn here is its score, and nothing else decides its bits."""
    model = chance.choice(sorted(MODELS))
    replicas = chance.randint(1, 8)
    batch_size = chance.randint(2 * replicas, 40) if model == "normed" else chance.randint(replicas, 40)
    num_samples = chance.randint(1, 3) * batch_size if model == "normed" else chance.randint(batch_size, 100)
    return {
        "model": model,
        "optimizer": chance.choice(sorted(OPTIMIZERS)),
        "scheduler": chance.choice(sorted(SCHEDULERS)),
        "clip": chance.choice([{}, {}, {"clip_norm": 0.3}, {"clip_value": 0.01}]),
        "replicas": replicas,
        "batch_size": batch_size,
        "num_samples": num_samples,
        "epochs": chance.randint(1, 3),
        "shuffle": chance.random() < 0.8,
        "seed": chance.choice([0, 1, chance.randrange(2**31)]),
        "bf16": chance.random() < 0.15 and model != "double",
        "penalty": chance.random() < 0.15,
        "noise": chance.random() < 0.3,
    }


def num_steps(description: Description) -> int:
    """Return how many steps a training has."""
    return description["epochs"] * -(-description["num_samples"] // description["batch_size"])


def samples(description: Description) -> unisono.ArrayDataset:
    """Return the data: random features, targets that some of them tell."""
    generator = torch.Generator().manual_seed(description["num_samples"])
    x = torch.randn(description["num_samples"], WIDTH, generator=generator)
    x = x.double() if description["model"] == "double" else x
    return unisono.ArrayDataset(x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0.5).long())


def noisy(sample: Any) -> Any:
    """A random transform: keyed by the sample, so the same whoever computes it."""
    x, y = sample
    return x + 0.1 * torch.randn(x.shape, dtype=x.dtype), y


def run_training(
    description: Description,
    *,
    transport: Any = "auto",
    out: str | Path | None = None,
    stop_after: int | None = None,
    how: str = "break",
    checkpoint_every: int | None = None,
    cheat: bool = False,
) -> dict[str, Any]:
    """Run a training, from its last checkpoint where there is one; return what must not depend on who computes it.

    Args:
        description: From `draw`.
        transport: Joins the ranks.
        out: Run directory.
        stop_after: The last step of this launch.
        how: It ends by ``break`` after that step, or by an ``error`` inside the next.
        checkpoint_every: Steps.
        cheat: Let the loss know its rank: the control.
    """
    run = unisono.Run(
        seed=description["seed"], replicas=description["replicas"], out=out, transport=transport,
        checkpoint_every=checkpoint_every, strategy=description.get("strategy", "exact"), **description["clip"],
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        if isinstance(transport, str):  # another's transport is not ours to close
            stack.callback(run.close)
        model = MODELS[description["model"]]()
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = OPTIMIZERS[description["optimizer"]](parameters)
        scheduler = SCHEDULERS[description["scheduler"]](optimizer)
        model, optimizer = run.prepare(model, optimizer, scheduler)
        loader = run.loader(
            samples(description), batch_size=description["batch_size"], shuffle=description["shuffle"],
            transform=noisy if description["noise"] else None,
        )  # fmt: skip
        scale = 1 + run.world.rank if cheat else 1
        if cheat:  # or the run itself would refuse it in its first step
            run._need_stepper().parts.strategy.first_loss.is_over = True

        def loss_of(micro: Any) -> Tensor:
            x = micro.x.requires_grad_() if description["penalty"] else micro.x
            with torch.autocast("cpu", torch.bfloat16, enabled=description["bf16"]):
                scores = model(x)
            loss = F.cross_entropy(scores.float() if description["bf16"] else scores, micro.y) * scale
            if description["penalty"] and description["model"] != "attentive":
                (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
                loss = loss + 0.1 * gradient.square().sum(dim=1).mean()
            return loss

        losses = []
        for batch in run.steps(loader, epochs=description["epochs"]):
            if stop_after is not None and batch.step > stop_after:
                if how == "error":
                    with contextlib.suppress(ZeroDivisionError, unisono.PeerLost):  # a rank may have no sample here
                        run.step(batch, lambda micro: 1 / 0)  # type: ignore[arg-type,return-value]
                break
            losses.append(run.step(batch, loss_of).hex())
        ledger = Path(out, "ledger.jsonl").read_text() if out is not None and run.world.is_leader else ""
        state = hash_of(optimizer.state_dict()) if description.get("strategy", "exact") == "exact" else ""
        if not isinstance(transport, str):
            run._record.close()  # the directory, not the transport, which the next training needs
        return {"fingerprint": run.fingerprint(), "losses": losses, "optimizer": state, "ledger": ledger}


def hash_of(value: Any) -> str:
    """Return nested values as text in which every bit shows."""
    if isinstance(value, Tensor):
        return f"{value.dtype}{tuple(value.shape)}{value.double().tolist() if value.numel() < 1000 else value.sum()}"
    if isinstance(value, dict):
        return str({str(key): hash_of(part) for key, part in sorted(value.items(), key=lambda item: str(item[0]))})
    if isinstance(value, list | tuple):
        return str([hash_of(part) for part in value])
    return value.hex() if isinstance(value, float) else str(value)


def on_ranks(description: Description, world_size: int, **more: Any) -> list[dict[str, Any]]:
    """Run a training on so many ranks of this process; each rank's report."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return unisono.run_ranks(lambda transport: run_training(description, transport=transport, **more), world_size)
