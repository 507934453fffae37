"""What checks of a certificate run their trainings on: a device, a directory, and what was found already.

In: programs and numbers of processes. Out: what the programs have written.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from unisono.errors import ConfigError
from unisono.experiments.certify.certificate import all_equal
from unisono.experiments.certify.trainings import MODELS, WAYS, Training, claims, controls
from unisono.experiments.trials import Tell
from unisono.launchers.api import describe_function
from unisono.launchers.local import run_local
from unisono.launchers.spec import LaunchSpec

CPU = "cpu"
Found = dict[str, dict[str, Any]]


@final
@dataclass(kw_only=True)
class Bench:
    """Where checks run, and what they have found already."""

    scratch: Path  #: A directory of its own.
    device: str  #: ``cpu``, or a GPU by torch's name.
    is_quick: bool
    tell: Tell
    gpus: int = 0  #: That are visible.
    found: dict[int, Found] = field(default_factory=dict)  #: Of the claim's trainings, by number of processes.
    _launches: int = 0

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of processes on which the claim is looked at."""
        return (1, 2) if self.is_quick else (1, 2, 3, 4, 8)

    @property
    def models(self) -> tuple[str, ...]:
        """Models that are trained."""
        return ("cnn", "lstm") if self.is_quick else MODELS

    def run(
        self,
        program: Callable[..., None],
        workers: int,
        *args: Any,
        threads: int = 1,
        env: Mapping[str, str] | None = None,
        own: bool = False,
    ) -> Any:
        """Run ``program(*args, FILE)`` on so many processes, and return what it has written.

        GPUs are shared, unless each process is to have its `own`.

        Raises:
            WorkerFailed: One of them failed.
        """
        self._launches += 1
        out = self.scratch / f"{self._launches}.json"
        places: dict[str, Any] = {"devices": ()} if self.device == CPU else {"share_devices": not own}
        target = describe_function(program, (*args, str(out)))
        run_local(LaunchSpec(target=target, workers=workers, threads=threads, output="quiet", env=env or {}, **places))
        return json.loads(out.read_text())

    def train(
        self,
        trainings: Sequence[Training],
        workers: int,
        env: Mapping[str, str] | None = None,
        *,
        own: bool = False,
        backwards: bool = False,
    ) -> Found:
        """Train on so many processes, which share one GPU or have their `own`; see `programs.train_all`."""
        from unisono.experiments.certify.programs import train_all  # loads torch

        self.tell(f"  {len(trainings)} trainings on {workers} process{'es' * (workers > 1)} ...")
        place = self.device if self.device == CPU or ":" in self.device or own else f"{self.device}:0"
        found: Found = self.run(train_all, workers, trainings, place, backwards, env=env, own=own)
        return found

    def claims(self, way: str) -> list[Training]:
        """Return the trainings of one of the `WAYS` on this device."""
        return claims(way, self.models, on_gpu=self.device != CPU)

    def claimed(self, workers: int) -> Found:
        """Return what the claim's trainings, and the controls that so many processes can run, have left."""
        if workers not in self.found:
            ways = WAYS if workers in self.counts else ()
            claimed = [one for way in ways for one in self.claims(way)]
            self.found[workers] = self.train([*claimed, *controls(workers)], workers)
        return self.found[workers]


def fingerprint(found: Found, name: str) -> str:
    """Return the fingerprint of a training; `ConfigError` where it was refused."""
    if "refused" in found[name]:
        raise ConfigError(f"{name}: {found[name]['refused']}")
    return str(found[name]["fingerprint"])


def said(name: str, prints: Mapping[str, str]) -> str:
    """Return what fingerprints, by the way in which each was made, say of a training."""
    if all_equal(prints):
        return f"{name}: {next(iter(prints.values()))}"
    return f"{name}: DIFFERENT, {', '.join(f'{way}: {value}' for way, value in prints.items())}"
