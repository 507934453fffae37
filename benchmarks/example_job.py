"""One process of an example, as `play_examples.py` starts it.

    python benchmarks/example_job.py NAME OUT whole|plain|prepare|STEP

``whole`` trains with the run directory OUT; a number of a step says after which one rank 1 kills itself. ``plain`` is
the same program (model, data, loss, optimizer, schedule) with `Plain` in place of `unisono.Run`: a loop as one writes
it without a framework. Each leaves ``OUT.json``: what a step took from one optimizer step to the next, in milliseconds:
CPU time of the process, the mean over all steps but the first ones, and the median by the wall.
"""

import importlib.util
import itertools
import json
import math
import os
import signal
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from results import ROOT
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, IterableDataset

import unisono
from unisono.data.batches import XY

WARM_UP = 5  # steps that do not count


@dataclass(frozen=True)
class Example:
    """How an example's `main` is called, what has to be there before, and how many updates a step has."""

    call: Callable[[ModuleType, str], Any] = lambda example, out: example.main(out)
    prepare: Callable[[ModuleType], None] = lambda example: None
    updates: int = 1


def to_its_main(example: ModuleType, out: str) -> None:
    example.main(out, None)  # nobody kills itself


EXAMPLES = {
    "hf_classification": Example(prepare=lambda example: example.learn(example.FILE)),
    "hf_causal_lm": Example(),
    "lora": Example(prepare=lambda example: example.pretrain(example.BASE)),
    "resnet_augmented": Example(),
    "vit": Example(),
    "vae": Example(),
    "gan": Example(to_its_main, updates=2),
    "contrastive": Example(),
    "two_losses_weighted": Example(),
    "token_file": Example(lambda example, out: example.main("runs", out), lambda one: one.write_tokens(Path("runs"))),
    "shards": Example(to_its_main, lambda example: example.write_shards(Path("runs/points"))),
    "stream": Example(to_its_main, lambda example: example.write_file()),
    "accelerate_script": Example(lambda example, out: example.main(project_dir=out, checkpoint_every=20)),
    "fabric_script": Example(lambda example, out: example.main(16, out=out, checkpoint_every=20)),
}


class Items(IterableDataset):
    """A stream, each item changed."""

    def __init__(self, source: Callable[[], Iterator[Any]], change: Callable[[Any], Any]) -> None:
        self.source, self.change = source, change

    def __iter__(self) -> Iterator[Any]:
        return map(self.change, self.source())


class Changed:
    """A data set with numbers, each sample changed."""

    def __init__(self, dataset: Any, change: Callable[[Any], Any]) -> None:
        self.dataset, self.change = dataset, change

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.change(self.dataset[index])


class Whole:
    """Batches of arrays in memory, taken at once: quicker than a DataLoader, which would collate single samples."""

    def __init__(self, arrays: Any, batch_size: int, *, drops: bool) -> None:
        self.arrays, self.batch_size = [torch.as_tensor(array) for array in arrays], batch_size
        self.count = len(self.arrays[0]) - (len(self.arrays[0]) % batch_size if drops else 0)

    def __len__(self) -> int:
        return math.ceil(self.count / self.batch_size)

    def __iter__(self) -> Iterator[XY]:
        for chosen in torch.randperm(len(self.arrays[0]))[: self.count].split(self.batch_size):
            yield XY(*(array[chosen] for array in self.arrays))


class Plain:
    """What a training loop does without a framework, with the face of `unisono.Run`: one backward pass a batch."""

    def __init__(self, *, seed: int = 0, clip_norm: float | None = None, **_: Any) -> None:
        torch.manual_seed(seed)
        self.world, self.device = SimpleNamespace(rank=0, is_leader=True), torch.device("cpu")
        self.limits: Any = clip_norm

    def prepare(self, model: Any, optimizer: Any, scheduler: Any = None, *, clip_norm: Any = None) -> tuple[Any, Any]:
        self.models, self.optimizers, self.schedulers = (
            part if isinstance(part, dict) else {None: part} for part in (model, optimizer, scheduler)
        )
        self.limits = clip_norm or dict.fromkeys(self.optimizers, self.limits)
        return model, optimizer

    def loader(self, dataset: Any, *, batch_size: int, transform: Any = None, collate: Any = None, last: str = "short",
               num_workers: int = 0) -> Any:  # fmt: skip
        drops = last != "short"
        if isinstance(dataset, unisono.Stream):
            return DataLoader(Items(dataset.source, transform), batch_size)
        if isinstance(dataset, unisono.ArrayDataset) and not (transform or collate):
            return Whole(dataset.arrays, batch_size, drops=drops)
        changed = Changed(dataset, transform) if transform else dataset
        return DataLoader(
            changed, batch_size, shuffle=True, collate_fn=collate, num_workers=num_workers, drop_last=drops
        )

    def steps(self, loader: Any, *, epochs: int) -> Iterator[SimpleNamespace]:
        step = 0
        for _ in range(epochs):
            for model in self.models.values():
                model.train()
            for data in loader:
                step += 1
                yield SimpleNamespace(step=step, data=XY(*data) if type(data) is list else data)
        for model in self.models.values():
            model.eval()

    def step(self, batch: Any, loss_function: Any, *, weight: Any = None, reduction: str = "mean",
             update: str | None = None, embed: Any = None) -> float:  # fmt: skip
        optimizer, scheduler = self.optimizers[update], self.schedulers.get(update)
        optimizer.zero_grad()
        loss = loss_function(embed(batch.data) if embed else batch.data)
        if weight is not None and reduction == "sum":
            loss = loss / weight(batch.data)
        loss.backward()
        if limit := self.limits.get(update):
            torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], limit)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        return loss.item()

    def evaluate(self, *_: Any, **__: Any) -> Any:
        return defaultdict(lambda: 1.0)

    def fingerprint(self) -> str:
        return "a plain loop"


class PlainTrainer:
    """The loop of `unisono.Trainer` over `Plain`."""

    def __init__(self, run: Plain, model: Any, optimizer: Any, *, loss: Any, **_: Any) -> None:
        self.run, self.model, self.loss = run, model, loss
        run.prepare(model, optimizer)

    def fit(self, train_set: Any, *, epochs: int, batch_size: int, **_: Any) -> Any:
        for batch in self.run.steps(self.run.loader(train_set, batch_size=batch_size), epochs=epochs):
            self.run.step(batch, lambda data: self.loss(self.model(data[0]), data[1]))
        return {"metrics": defaultdict(lambda: 1.0), "fingerprint": self.run.fingerprint()}


def accelerator() -> type:
    """Return accelerate's own class, which takes what ours takes: one process has the micro-batches of four."""
    import accelerate

    class Theirs(accelerate.Accelerator):
        last_loss, run = 0.0, SimpleNamespace(fingerprint=lambda: "accelerate")

        def __init__(self, gradient_accumulation_steps: int, replicas: int, **_: Any) -> None:
            super().__init__(gradient_accumulation_steps=gradient_accumulation_steps * replicas, cpu=True)

    return Theirs


def fabric() -> type:
    """Return Fabric's own class, which takes what ours takes: one process, with the batch of all four."""
    import lightning_fabric

    class Theirs(lightning_fabric.Fabric):
        last_loss, unisono = 0.0, SimpleNamespace(fingerprint=lambda: "Fabric")

        def __init__(self, **_: Any) -> None:
            super().__init__(accelerator="cpu", devices=1)

        def setup_dataloaders(self, *loaders: DataLoader, **_: Any) -> Any:
            whole = [DataLoader(each.dataset, 4 * each.batch_size, shuffle=True) for each in loaders]
            return super().setup_dataloaders(*whole)

    return Theirs


def die_after(step: int, ledger: Path) -> None:
    """Kill this process once the ledger has so many steps; whatever it is doing then."""
    while not ledger.exists() or ledger.read_bytes().count(b"\n") < step:
        time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGKILL)


def load(name: str) -> ModuleType:
    """Import an example."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    example = importlib.util.module_from_spec(spec)
    sys.modules[name] = example  # workers of a loader find its functions
    spec.loader.exec_module(example)
    return example


def main() -> None:
    name, out, way = sys.argv[1:]
    if way == "plain":
        unisono.Run, unisono.Trainer = Plain, PlainTrainer
    played, example = EXAMPLES[name], load(name)
    if way == "prepare":
        played.prepare(example)
        return
    if way == "plain" and name == "accelerate_script":
        example.Accelerator = accelerator()
    if way == "plain" and name == "fabric_script":
        example.Fabric = fabric()
    if way.isdigit() and os.environ["RANK"] == "1":
        threading.Thread(target=die_after, args=(int(way), Path(out, "ledger.jsonl")), daemon=True).start()
    marks: list[tuple[float, float]] = []
    register_optimizer_step_post_hook(lambda *_: marks.append((time.process_time(), time.perf_counter())))
    played.call(example, out)
    ends = marks[played.updates - 1 :: played.updates][WARM_UP:]
    if len(ends) > 1 and os.environ.get("RANK", "0") == "0":
        cpu, wall = (
            [1000 * (after - before) for before, after in itertools.pairwise(one)] for one in zip(*ends, strict=True)
        )
        Path(f"{out}.json").write_text(json.dumps({"cpu": statistics.mean(cpu), "wall": statistics.median(wall)}))


if __name__ == "__main__":
    main()
