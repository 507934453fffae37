"""Start a launch, on one host or as one of several."""

import os
from typing import TYPE_CHECKING

from unisono.launchers.local import run_local

if TYPE_CHECKING:
    from unisono.launchers.spec import LaunchSpec
    from unisono.nodes.plan import NodesPlan


def start(spec: "LaunchSpec", plan: "NodesPlan | None", *, program: str = "") -> None:
    """Start a launch on this host, or this host's part of one; see `run_local` and `run_nodes`.

    Args:
        spec: The launch on this host.
        plan: How the hosts meet; None: there is one.
        program: See `run_nodes`.
    """
    if plan is None:
        run_local(spec)
        return
    from unisono.nodes.launch import run_nodes

    run_nodes(spec, plan, os.environ, program=program)
