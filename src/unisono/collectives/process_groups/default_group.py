"""torch.distributed's default process group: who ends it, and what its errors mean."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from unisono.errors import PeerLost


class GroupOwner:
    """Ends the default process group, if it is its own to end."""

    def __init__(self, *, owns_group: bool) -> None:
        self._owns_group = owns_group

    def close(self) -> None:
        """Destroy the group if it is owned; safe to call twice."""
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()
        self._owns_group = False


def gloo_on_cpu() -> Any:
    """Return the default group's backend for CPU tensors if it is torch's own gloo, else None."""
    try:
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    except RuntimeError:
        return None  # of GPUs only
    return backend if isinstance(backend, dist.ProcessGroupGloo) else None


@contextlib.contextmanager
def lost_peers_named(rank: int, world_size: int, operation: str, culprit: str = "another rank") -> Iterator[None]:
    """Say what an error of torch.distributed inside means for the run; one of this rank's own goes through."""
    try:
        yield
    except (torch.OutOfMemoryError, torch.AcceleratorError):  # of memory, or of a kernel before
        raise
    except RuntimeError as error:
        if "invalid usage" in str(error):  # NCCL's word for what this rank has asked of it
            raise
        raise PeerLost(
            f"[rank {rank}/{world_size}] {operation} failed: {culprit} has died, hangs, or runs other code "
            f"({str(error).strip().splitlines()[-1]}). Look for the first failure in the ranks' logs."
        ) from error
