"""The named jobs: what is started, in which order, on how many workers; command lines as the README has them."""

from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
SCRIPT, PLANT = PROGRAMS / "train.py", PROGRAMS / "plant.py"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One command.

    Attributes:
        workers: Processes that train.
        command: What follows ``unisono``; ``{out}`` and the names of `material.prepare` stand for paths.
    """

    workers: int
    command: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Job:
    """Launches into one directory, one after the other; every run directory below it is compared.

    Attributes:
        launches: In order; a later one goes on where the one before has stopped.
        instead: What is started where a file that the launches name is not at hand.
        steps: Of all its trainings together: a job that has trained less has not been compared.
    """

    launches: tuple[Launch, ...]
    steps: int
    instead: "Job | None" = None

    @property
    def is_script(self) -> bool:
        """Whether it starts our script, into which a change can be planted."""
        return all(str(SCRIPT) in launch.command for launch in self.launches)

    def needs(self, name: str) -> bool:
        """Whether it reads the file of that name."""
        return any(f"{{{name}}}" in word for launch in self.launches for word in launch.command)


def recipe(name: str, workers: int, *more: str, steps: int, instead: Job | None = None) -> Job:
    """Return the job that trains a recipe for one epoch."""
    command = ("train", name, "-n", str(workers), "--out", "{out}", "--epochs", "1", *more)
    return Job(launches=(Launch(workers=workers, command=command),), steps=steps, instead=instead)


def _launch(workers: int, *arguments: str) -> Launch:
    return Launch(workers=workers, command=("run", "-n", str(workers), str(SCRIPT), "{out}", *arguments))


def script(workers: int, *names: str) -> Job:
    """Return the job that runs trainings of the script, ten steps each, in one launch."""
    return Job(launches=(_launch(workers, *names),), steps=10 * len(names))


def resumed(name: str, first: int, then: int) -> Job:
    """Return the job that is left after step 5, past the checkpoint of step 3, and goes on with other workers."""
    legs = _launch(first, name, "--stop-after", "5"), _launch(then, name, "--stop-after", "0")
    return Job(launches=legs, steps=10)


_SMALL = ("--limit", "400", "--batch-size", "64")

JOBS: dict[str, Job] = {
    # the recipes
    "digits-2-workers": recipe("digits", 2, *_SMALL, steps=7),
    "mnist-1-worker": recipe(
        "mnist", 1, *_SMALL, "--data", "{mnist}", steps=7,
        instead=recipe("images", 1, *_SMALL, "--data", "{digits}", "--augment", "shift=2,rotate=10", steps=4),
    ),
    "imdb-2-workers": recipe("imdb", 2, "--data", "{imdb}", "--min-freq", "2", "--batch-size", "20", steps=6),
    "text-3-workers": recipe("text", 3, "--data", "{texts}", "--model", "bag", "--batch-size", "30", steps=8),
    "images-1-worker": recipe(
        "images", 1, "--data", "{images}", "--augment", "flip,shift=1", "--batch-size", "40", steps=6
    ),
    "lm-2-workers": recipe("lm", 2, "--data", "{imdb}", "--batch-size", "32", steps=10),
    # the strategies that promise bits
    "exact-1-worker": script(1, "sgd", "adamw"),
    "exact-3-workers": script(3, "adamw", "sgd", "gloo"),
    "fsdp-2-workers": script(2, "fsdp", "fsdp-sgd"),
    "pipeline-2-workers": script(2, "pipeline", "pipeline-interleaved"),
    # stopped, and continued by others
    "resume-3-then-1": resumed("adamw", 3, 1),
    "resume-fsdp-1-then-2": resumed("fsdp", 1, 2),
    # the strategies whose bits depend on the number of processes, which is the same here
    "ddp-2-workers": script(2, "ddp"),
    "allreduce-3-workers": script(3, "ring", "tree", "halving-doubling", "local-sgd"),
    "servers-3-workers": script(3, "ps", "ps-two-servers"),
    "async-server-2-workers": script(2, "ps_async"),  # one of them trains: nobody comes first
    "devices-1-worker": script(1, "dp", "balanced_dp", "model_parallel"),
}  # fmt: skip
"""By the name that ``--jobs`` takes: all recipes, all strategies, 1, 2 and 3 workers."""
