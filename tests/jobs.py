"""Tiny trainings for the proofs of equal bits, as programs that ranks run (see `ranks`).

Nothing divides anything: 1001 samples, batches of 96 (eleven steps, the last of 41), five or eight replicas.
"""

import contextlib
import itertools
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unisono
from ranks import join
from reference import bits
from unisono.collectives.transport import Transport
from unisono.data.sets.digits import load_digits
from unisono.data.sets.texts import pack
from unisono.recipes.digits import DigitsCNN
from unisono.recipes.gated_cnn import BagOfWords, GatedCNN

NUM_SAMPLES, BATCH_SIZE = 1001, 96
VOCABULARY = 50


class PlainCNN(nn.Module):
    """One convolution, one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores."""
        return self.layers(x)


class Transformer(nn.Module):
    """One encoder layer with dropout over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
        self.classify = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores."""
        return self.classify(self.encoder(self.embed(x[:, 0])).mean(dim=1))


class RandomTexts:
    """Texts of random tokens and lengths, with a label that the tokens tell."""

    def __init__(self, num_samples: int = NUM_SAMPLES, longest: int = 140) -> None:
        random = np.random.default_rng(0)
        lengths = random.integers(3, longest, num_samples)
        self.texts = [random.integers(1, VOCABULARY, length) for length in lengths]
        self.labels = [int(text[0] % 2) for text in self.texts]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.texts[index], self.labels[index]

    def fetch_micro_batch(self, indices: Any) -> Any:
        """Return a packed micro-batch."""
        texts = pack([self.texts[index] for index in indices.tolist()])
        return texts, torch.tensor([self.labels[index] for index in indices.tolist()])


def save_digits(folder: Path) -> str:
    """Write the digits down once: importing scikit-learn in every process would take longer than the training."""
    np.savez(folder / "digits.npz", **asdict(load_digits()))
    return str(folder / "digits.npz")


def digits(data: str, num_samples: int = NUM_SAMPLES) -> unisono.ArrayDataset:
    """Return training images."""
    with np.load(data) as arrays:
        return unisono.ArrayDataset(arrays["train_images"][:num_samples], arrays["train_labels"][:num_samples])


def digits_for_test(data: str) -> unisono.ArrayDataset:
    """Return the test images."""
    with np.load(data) as arrays:
        return unisono.ArrayDataset(arrays["test_images"], arrays["test_labels"])


def sgd(model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
    """Return SGD with momentum."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), None


def adam(model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
    """Return Adam."""
    return torch.optim.Adam(model.parameters(), lr=2e-3), None


def adamw(model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
    """Return AdamW and a cosine schedule; the job clips."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=22)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training."""

    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], tuple[torch.optim.Optimizer, Any]]
    replicas: int
    clip_norm: float | None = None
    is_text: bool = False
    num_samples: int = NUM_SAMPLES


JOBS = {
    "cnn-sgd-8": Job(model=PlainCNN, optimizer=sgd, replicas=8),
    "batchnorm-adamw-8": Job(model=DigitsCNN, optimizer=adamw, replicas=8, clip_norm=0.5),
    "transformer-adam-8": Job(model=Transformer, optimizer=adam, replicas=8),
    "gcnn-sgd-8": Job(
        model=lambda: GatedCNN(VOCABULARY), optimizer=sgd, replicas=8, is_text=True, num_samples=301
    ),
    "bag-adam-8": Job(model=lambda: BagOfWords(VOCABULARY), optimizer=adam, replicas=8, is_text=True),
    "cnn-adam-5": Job(model=PlainCNN, optimizer=adam, replicas=5),
    "batchnorm-sgd-5": Job(model=DigitsCNN, optimizer=sgd, replicas=5),
    "transformer-adamw-5": Job(model=Transformer, optimizer=adamw, replicas=5, clip_norm=0.5),
    "gcnn-adamw-5": Job(
        model=lambda: GatedCNN(VOCABULARY), optimizer=adamw, replicas=5, clip_norm=0.1, is_text=True, num_samples=301
    ),
    "bag-sgd-5": Job(model=lambda: BagOfWords(VOCABULARY), optimizer=sgd, replicas=5, is_text=True),
}  # fmt: skip


def train_job(transport: Transport | None, data: str, name: str, out: str) -> dict[str, Any]:
    """Train one job to the end of an epoch and evaluate it; return all that must be equal."""
    job = JOBS[name]
    run = unisono.Run(seed=0, replicas=job.replicas, clip_norm=job.clip_norm, out=out, transport=transport or "auto")
    model = job.model()
    optimizer, scheduler = job.optimizer(model)
    trainer = unisono.Trainer(run, model, optimizer, loss=nn.CrossEntropyLoss(), scheduler=scheduler)
    train_set, test_set = (
        (RandomTexts(job.num_samples), RandomTexts(101)) if job.is_text else (digits(data), digits_for_test(data))
    )
    with contextlib.closing(run._record):  # not the run: it would close the transport, which the next job needs
        result = trainer.fit(train_set, epochs=1, batch_size=BATCH_SIZE, test_set=test_set, show_progress=False)
    return {
        "fingerprint": result["fingerprint"],
        "own_fingerprint": run.fingerprint(),
        "metrics": {metric: value.hex() for metric, value in result["metrics"].items()},
        "ledger": Path(out, "ledger.jsonl").read_text() if run.world.is_leader else "",
        "steps": result["steps"],
    }


def train_all(transport: Transport | None, data: str) -> dict[str, Any]:
    """Train every job that this many ranks can run, one after the other."""
    joined = join(transport)  # held open: the runs join it and leave it as it is
    with tempfile.TemporaryDirectory() as scratch:
        out = joined.all_gather_json(scratch)[0]
        return {
            name: train_job(transport, data, name, str(Path(out, name)))
            for name, job in JOBS.items()
            if job.replicas >= joined.world_size
        }


def play_leg(
    transport: Transport | None, data: str, out: str, stop_after: int | None, checkpoint_every: int | None = 3,
    compress: str = "none",
) -> dict[str, Any]:  # fmt: skip
    """Run one job from its last checkpoint on, for two epochs or until a step is done; leave only its files."""
    with unisono.Run(
        seed=7, replicas=8, clip_norm=0.5, out=out, checkpoint_every=checkpoint_every, transport=transport or "auto",
        strategy=unisono.strategy("exact", compress=compress),
    ) as run:  # fmt: skip
        model = DigitsCNN()
        optimizer, scheduler = adamw(model)
        model, optimizer = run.prepare(model, optimizer, scheduler)
        model.train()
        done = []
        for batch in run.steps(run.loader(digits(data), batch_size=BATCH_SIZE), epochs=2):
            if stop_after is not None and batch.step > stop_after:  # ends within a step: nothing of it is kept
                with contextlib.suppress(ZeroDivisionError):
                    run.step(batch, lambda _: 1 / 0)  # type: ignore[arg-type,return-value]
                break
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            done.append(batch.step)
        moments = {
            f"{index} {key}": bits(value).hex()
            for index, state in optimizer.state_dict()["state"].items()
            for key, value in state.items()
        }
        return {
            "done": done,
            "fingerprint": run.fingerprint(),
            "moments": moments,
            "lr": optimizer.param_groups[0]["lr"].hex(),
        }


def cheat(transport: Transport | None, data: str, how: str = "") -> dict[str, Any]:
    """Train a few steps in a way that must be seen in the bits: the negative controls."""
    run = unisono.Run(seed=1 if how == "seed" else 0, replicas=4, transport=transport or "auto")
    torch.manual_seed(5)  # the same first weights, whatever the seed
    model = PlainCNN()
    model, optimizer = run.prepare(model, sgd(model)[0])
    if how == "no steps":
        optimizer.step = lambda: None
    for batch in itertools.islice(run.steps(run.loader(digits(data, 100), batch_size=BATCH_SIZE // 4), epochs=2), 6):
        scale = 1 + run.world.rank if how == "rank" and batch.step > 1 else 1  # in step 1 the run refuses it
        run.step(batch, lambda micro, scale=scale: F.cross_entropy(model(micro.x * scale), micro.y))
    return {"fingerprint": run.fingerprint()}
