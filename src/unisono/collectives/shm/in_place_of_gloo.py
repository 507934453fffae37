"""``unisono run --backend shm``: a program that asks torch.distributed for gloo on the CPU gets shared memory instead.

In: the call that makes a group. Out: the group, which goes by gloo's name. Libraries know a few backends by name, and
where they meet another one some train without DDP and say nothing (ignite 0.5.5), others ask for what only NCCL offers.
So `dist.get_backend` answers what the program has asked for; ``group.name()`` and `dist.get_backend_config` say "shm".
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from unisono.collectives.shm.backend import NAME, ShmProcessGroup
from unisono.errors import ConfigError


def make_group(make: Callable[..., Any], call: inspect.BoundArguments) -> Any:
    """Make a group as the program asks, but of shared memory where it asks for gloo. `make` is one of torch's
    functions, `call` its arguments; these are changed.

    Returns:
        What `make` returns.

    Raises:
        ConfigError: It asks for gloo beside another backend.
    """
    asked = call.arguments.get("backend")
    if asked is None and dist.is_initialized():
        asked = str(dist.get_backend())  # a sub-group takes after its group
    backend = instead_of_gloo(asked)
    if backend != asked:
        call.arguments["backend"] = backend
    made = make(*call.args, **call.kwargs)
    group = made if made is not None else dist.group.WORLD
    if isinstance(group, ShmProcessGroup) and NAME not in str(asked).lower():
        known = dist.distributed_c10d._world.pg_map
        known[group] = (dist.Backend.GLOO, known[group][1])
    return made


def instead_of_gloo(asked: str | None) -> str | None:
    """Return the backend for a program that asks for `asked` and shall use ``shm`` on the CPU."""
    if asked is None:
        return None if torch.accelerator.is_available() else NAME
    parts = dict(part.rpartition(":")[::2] for part in asked.lower().split(","))
    if parts in ({"": "gloo"}, {"cpu": "gloo"}, {"cpu": NAME}):
        return NAME
    if parts.get("cpu") in ("gloo", NAME):
        raise ConfigError(
            f"shm cannot take gloo's place in {asked!r}: torch takes a backend written in Python for all devices. "
            "Hint: run this program without --backend shm."
        )
    return asked
