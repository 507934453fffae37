"""Certify a machine: checks, each with a control that must fail, as one certificate; and look at one that was made."""

from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from unisono.errors import ConfigError
from unisono.experiments.certify import certificate as papers
from unisono.experiments.certify.bench import CPU, Bench
from unisono.experiments.certify.checks import rows
from unisono.experiments.trials import Tell, silent
from unisono.launchers.scratch import scratch_directory
from unisono.system.machine import usable_cores


def certify(device: str = CPU, *, quick: bool = False, tell: Tell = silent) -> dict[str, Any]:
    """Run all checks on a device and return the certificate, see `certificate.seal`.

    Args:
        device: ``cpu``, or a GPU by torch's name.
        quick: About a minute: fewer processes and repetitions, nothing compiled.
        tell: Takes a line about what is going on.

    Raises:
        ConfigError: There is no such device.
    """
    with scratch_directory("certify") as scratch:
        bench = Bench(scratch=Path(scratch), device=device, is_quick=quick, tell=tell)
        facts = machine_facts(bench)
        found = rows(bench)
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    about = {"written": written, "device": device, "quick": quick, "unisono": metadata.version("unisono")}
    return papers.seal({**facts, "cores": usable_cores()}, found, **about)


def machine_facts(bench: Bench) -> dict[str, Any]:
    """Return what decides bits on this machine, as a worker sees it.

    Raises:
        ConfigError: There is no such device.
    """
    from unisono.experiments.certify.programs import look  # loads torch

    seen = bench.run(look, 1, bench.device, own=True)
    if "refused" in seen:
        raise ConfigError(seen["refused"])
    bench.gpus = seen["gpus"]
    facts: dict[str, Any] = seen["facts"]
    return facts


def check(path: Path) -> dict[str, Any]:
    """Return a certificate that was written by `certify`, if it is whole and of this machine.

    Raises:
        ConfigError: It is not, or cannot be read.
    """
    from unisono.determinism.switches import drift  # loads torch

    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"expected a certificate at {path}: {error.strerror}.") from None
    found = papers.read(content, str(path))
    with scratch_directory("certify") as scratch:
        facts = machine_facts(Bench(scratch=Path(scratch), device=found["device"], is_quick=True, tell=silent))
    papers.check_machine(found, facts, str(path), drift)
    return found
