"""One rank on a Ray worker: the program in a process of its own, which dies with the actor.

Runs inside Ray's worker processes. Must not import torch.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from unisono.errors import LaunchError
from unisono.launchers.engines.joining import PARENT_VARIABLE, joined_environment
from unisono.launchers.engines.ray_job import RayJob
from unisono.launchers.engines.ray_places import ActorPlacement, RankPlace


@final
class RankActor:
    """Holds the resources of one rank, and starts its program when it has been told which rank it is."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def place(self) -> ActorPlacement:
        """Say where this actor is."""
        import ray

        context: Any = ray.get_runtime_context()
        address = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((address, 0))
            port = probe.getsockname()[1]
        gpus = tuple(str(gpu) for gpu in context.get_accelerator_ids().get("GPU", []))
        return ActorPlacement(node=context.get_node_id(), address=address, port=port, gpus=gpus)

    def run_program(self, job: RayJob, place: RankPlace, cwd: str | None) -> Iterator[bytes | int]:
        """Run the program; yield its output line by line, and its exit code at last (128 + n for signal n)."""
        if cwd is not None and not Path(cwd).is_dir():
            raise LaunchError(
                f"expected the working directory {cwd} on node {socket.gethostname()}, got none. "
                "Hint: --working-dir DIR lets Ray copy it there."
            )
        given = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}  # Ray's own guess
        env = joined_environment(place.world, {**given, **job.env}, job.threads)
        env[PARENT_VARIABLE] = str(os.getpid())
        if place.devices is not None:
            env["CUDA_VISIBLE_DEVICES"] = place.devices
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", "-m", "unisono.launchers.engines.joined", job.kind, job.target, *job.args],
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        for line in process.stdout:  # noqa: UP028 - Ray resumes with send(), which a file does not have
            yield line
        code = process.wait()
        yield code if code >= 0 else 128 - code

    def signal(self, signum: int) -> None:
        """Pass on a signal to the program, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signum)
