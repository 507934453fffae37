"""What slow links between hosts cost, and which other way of training would help."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unisono.experiments.job import plan, run_in
from unisono.experiments.trials import Tell, silent, turns
from unisono.launchers.scratch import scratch_directory
from unisono.nodes.plan import NodesPlan
from unisono.scaling.slow_links import WAYS, command, propose


def compare_links(
    recipe: str, ways: Sequence[str] = tuple(WAYS), *, workers: int | None = None, repeat: int = 2, steps: int = 40,
    nodes: NodesPlan | None = None, tell: Tell = silent, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Train a few steps of a recipe in each way that slow links invite, and propose one.

    Returns:
        What ``unisono bench links --json`` prints: samples a second of each run by way, the proposal, why, its command.
    """
    names = list(dict.fromkeys(["exact", *ways]))
    rates: dict[str, list[float]] = {name: [] for name in names}
    with scratch_directory("links") as scratch:
        for number, (turn, _, name) in enumerate(turns(names, repeat)):
            tell(f"run {turn + 1} of {repeat}: {name} ...")
            # At a port of its own: the last run's rendezvous may still be there.
            here = nodes and replace(nodes, port=nodes.port + number)
            setting = {"threads": 1, **options, **WAYS[name].setting}
            job = plan(recipe, str(workers or (1 if nodes else 2)), setting, None, here)
            result = run_in(job, Path(scratch) / str(number), env={"UNISONO_LAST_STEP": str(steps)})
            rates[name].append(float(result["samples_per_s_within"]))
    chosen, why = propose(rates)
    return {"recipe": recipe, "rates": rates, "proposal": chosen, "why": why, "command": command(recipe, chosen)}
