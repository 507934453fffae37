"""Start a launch, on one host or as one of several."""

import os
from typing import TYPE_CHECKING

from unisono.launchers.local import run_local
from unisono.launchers.spec import check_witness

if TYPE_CHECKING:
    from unisono.launchers.spec import LaunchSpec
    from unisono.nodes.plan import NodesPlan


def start(spec: "LaunchSpec", plan: "NodesPlan | None", *, program: str = "") -> None:
    """Start a launch on this host, or this host's part of one; see `run_local` and `run_nodes`.

    Args:
        spec: The launch on this host.
        plan: How the hosts meet; None: there is one.
        program: See `run_nodes`.

    Raises:
        ConfigError: A witness is asked for, and there is one worker.
    """
    if plan is None:
        check_witness(spec.witness, spec.workers)
        run_local(spec)
        return
    from unisono.nodes.launch import run_nodes

    run_nodes(spec, plan, os.environ, program=program)
