"""A training in its own process, slow enough to be hit: ``launched.py OUT DESCRIPTION``. A program, not a test."""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from adversary import trainings
from unisono import Run

if __name__ == "__main__":
    step = Run.step

    def slow(self: Run, *args: object) -> float:
        time.sleep(0.01)
        return step(self, *args)  # type: ignore[arg-type]

    Run.step = slow  # type: ignore[method-assign]
    trainings.run_training(json.loads(sys.argv[2]), out=sys.argv[1], checkpoint_every=5)
