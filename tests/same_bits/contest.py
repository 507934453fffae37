"""One job in both trees, and the verdict."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from same_bits.compare import Difference, compare_jobs, fingerprints, num_steps
from same_bits.jobs import JOBS, PLANT, SCRIPT, Job
from same_bits.trees import Tree, run

LIMIT_S = 240.0


@dataclass(kw_only=True)
class Verdict:
    """What came of a job.

    Attributes:
        name: The job's.
        seconds: Of each tree.
        steps: Lines in the ledgers of each tree.
        fingerprints: Of each tree, one a run directory.
        failures: What kept it from being compared, with the tree's name.
        differences: Of its runs.
    """

    name: str
    seconds: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    fingerprints: list[list[str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether the job has trained in both trees, with the same bits."""
        return not self.failures and not self.differences


def chosen(names: Sequence[str]) -> dict[str, Job]:
    """Return the jobs of these names, all where there is none.

    Raises:
        ValueError: There is no such job.
    """
    unknown = [name for name in names if name not in JOBS]
    if unknown:
        raise ValueError(f"no job {', '.join(unknown)}. There are: {', '.join(JOBS)}.")
    return {name: JOBS[name] for name in names or JOBS}


def at_hand(job: Job, paths: dict[str, str]) -> Job:
    """Return the job, or what is trained instead where the real data it reads is not there."""
    return job.instead if job.instead and job.needs("mnist") and "mnist" not in paths else job


def play(name: str, job: Job, trees: Sequence[Tree], folder: Path, paths: dict[str, str], planted: str = "") -> Verdict:
    """Train a job in each tree, one after the other, and compare.

    Args:
        name: The job's.
        job: As `at_hand` gives it.
        trees: Two.
        folder: Where files go; what lies below it is compared.
        paths: Of the data.
        planted: Name of the tree in which a weight's bit is flipped.
    """
    verdict = Verdict(name=name)
    outs = []
    for tree in trees:
        where = folder / name / tree.name
        out = where / "runs"
        began = time.monotonic()
        for launch in job.launches:
            command = [word.format(out=out, **paths) for word in launch.command]
            if tree.name == planted:
                command = [part for word in command for part in ([str(PLANT), word] if word == str(SCRIPT) else [word])]
            wrong = run(tree, command, where=where, caches=folder / "caches", workers=launch.workers, limit_s=LIMIT_S)
            if wrong:
                verdict.failures.append(f"{tree.name}: {wrong}")
                break
        verdict.seconds.append(time.monotonic() - began)
        outs.append(out)
        verdict.steps.append(num_steps(out))
        verdict.fingerprints.append(fingerprints(out))
        if not wrong and verdict.steps[-1] != job.steps:
            verdict.failures.append(f"{tree.name}: expected {job.steps} steps, found {verdict.steps[-1]}")
    if not verdict.failures:
        verdict.differences = compare_jobs(*outs)
    return verdict
