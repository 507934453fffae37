"""A recipe of unisono with a clock: one JSON line per epoch, like the baselines print.

    unisono run -n 2 --output leader benchmarks/timed_recipe.py '{"recipe": "imdb", ...}'

Seconds of training start when `Trainer.fit` is called and leave evaluation out.
"""

import json
import sys
import time
from typing import Any

import unisono
from unisono.recipes.catalog import Options
from unisono.recipes.execute import execute


class Clock:
    """Stands around `Trainer.evaluate`."""

    def __init__(self) -> None:
        self.since, self.epoch = 0.0, 0
        self.fit, self.evaluate = unisono.Trainer.fit, unisono.Trainer.evaluate

    def timed_fit(self, trainer: unisono.Trainer, train_set: Any, **more: Any) -> Any:
        self.num_samples, self.since, self.cpu = len(train_set), time.perf_counter(), time.process_time()
        return self.fit(trainer, train_set, show_progress=False, **more)

    def timed_evaluate(self, trainer: unisono.Trainer, *args: Any, **more: Any) -> Any:
        train_s, cpu_s = time.perf_counter() - self.since, time.process_time() - self.cpu
        scores = self.evaluate(trainer, *args, **more)
        self.epoch += 1
        if trainer.run.world.is_leader:
            line = {
                "epoch": self.epoch, "train_s": train_s, "samples_per_s": self.num_samples / train_s,
                "accuracy": scores["test_accuracy"],
                "cpu_s": cpu_s,
            }  # fmt: skip
            print(json.dumps(line), flush=True)
        self.since, self.cpu = time.perf_counter(), time.process_time()
        return scores


def main() -> None:
    clock = Clock()

    def fit(trainer: unisono.Trainer, train_set: Any, **more: Any) -> Any:
        return clock.timed_fit(trainer, train_set, **more)

    def evaluate(trainer: unisono.Trainer, *args: Any, **more: Any) -> Any:
        return clock.timed_evaluate(trainer, *args, **more)

    unisono.Trainer.fit, unisono.Trainer.evaluate = fit, evaluate
    execute(Options(**json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
