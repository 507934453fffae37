"""Real ranks for tests: a function on several processes, through unisono's own launcher, and what it returned.

A program is a module-level function of a module that new processes can import (not of a test file, which would import
pytest there). It takes a transport first: in a process of its own it gets None and joins the world it finds.
"""

import functools
import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unisono.collectives.loopback import run_ranks
from unisono.collectives.process_groups.transport import connect
from unisono.collectives.transport import Transport
from unisono.launchers.api import describe_function
from unisono.launchers.local import run_local
from unisono.launchers.spec import LaunchSpec
from unisono.world import World

Program = Callable[..., Any]


def run_processes(program: Program, world_size: int, *args: Any) -> list[Any]:
    """Run ``program(None, *args)`` in `world_size` processes and return the JSON-able results in rank order."""
    with tempfile.TemporaryDirectory() as folder:
        target = describe_function(_play, (program, folder, args))
        run_local(LaunchSpec(target=target, workers=world_size, threads=1))
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(world_size)]


def run_threads(program: Program, world_size: int, *args: Any) -> list[Any]:
    """Run ``program(transport, *args)`` on `world_size` ranks in this process; results as processes give them."""
    results = run_ranks(lambda transport: program(transport, *args), world_size)
    return json.loads(json.dumps(results))


def join(transport: Transport | None) -> Transport:
    """Return the transport a program was given, or join the world this process was started in."""
    return connect(World.current(), timeout_s=60) if transport is None else transport


def once(make: Callable[..., Any]) -> Callable[..., Any]:
    """Let `make` run once for the same arguments; a failure is remembered too, since a launch is dear."""
    made: dict[Any, Any] = {}

    @functools.wraps(make)
    def get(*args: Any) -> Any:
        if args not in made:
            try:
                made[args] = make(*args)
            except Exception as error:  # noqa: BLE001 - raised below, each time
                made[args] = error
        if isinstance(made[args], Exception):
            raise made[args]
        return made[args]

    return get


def _play(program: Program, folder: str, args: tuple[Any, ...]) -> None:
    warnings.simplefilter("error")
    result = program(None, *args)
    Path(folder, f"{World.current().rank}.json").write_text(json.dumps(result))
