"""Ways to train over slow links, and what to say of how fast each was (pure).

All but the first change the result: they send fewer bits of the gradients, or send seldom. So they are proposed, never
taken.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from unisono.scaling.choice import spell

WORTHWHILE = 1.25
"""Times faster than the exact step that another way must be, beyond all scatter, to be proposed."""


@final
@dataclass(frozen=True, slots=True)
class Way:
    """One way."""

    setting: Mapping[str, Any]  #: Options of ``unisono train``, by parameter.
    price: str  #: What it costs beside speed; empty for nothing.


_DDP = "bits depend on the number of workers"
WAYS = {
    "exact": Way({}, ""),
    "exact_bf16": Way({"compress": "bf16"}, "gradients of 8 significant bits, the same on any number of workers"),
    "exact_int8": Way(
        {"compress": "int8"}, "gradients of 7 bits and a sign, the same on any number of workers: compare the accuracy"
    ),
    "ddp": Way({"strategy": "ddp"}, _DDP),
    "bf16": Way({"strategy": "ddp", "comm_hook": "bf16"}, f"{_DDP}; gradients of 8 significant bits on their way"),
    "powersgd": Way(
        {"strategy": "ddp", "comm_hook": "powersgd", "powersgd_rank": 2},
        f"{_DDP}; gradients of rank 2 on their way: compare the accuracy",
    ),
    "local_sgd": Way(
        {"strategy": "allreduce", "sync_every": 8}, f"{_DDP}; ranks train alone for 8 steps: compare the accuracy"
    ),
}


def propose(rates: Mapping[str, Sequence[float]]) -> tuple[str, str]:
    """Return the way to propose, and why.

    Another way than ``exact`` is proposed where its slowest run was `WORTHWHILE` times faster than the fastest exact
    one; of those, the first in the order of `WAYS` that is no slower than the fastest by more than a tenth: it costs
    least.
    """
    medians = {name: statistics.median(found) for name, found in rates.items()}
    best_exact = max(rates["exact"])
    faster = [
        name for name in WAYS if name in rates and name != "exact" and min(rates[name]) >= WORTHWHILE * best_exact
    ]
    if not faster:
        top = max(medians, key=lambda name: medians[name])
        gain = medians[top] / medians["exact"]
        if top == "exact":
            return "exact", "nothing that was measured is faster"
        return "exact", f"the fastest ({top}) is {gain:.2f} times as fast, which is not worth another result"
    fastest = max(medians[name] for name in faster)
    chosen = next(name for name in faster if medians[name] >= 0.9 * fastest)
    return chosen, f"{medians[chosen] / medians['exact']:.1f} times as fast as exact; {WAYS[chosen].price}"


def command(recipe: str, way: str) -> str:
    """Return what to type for a way."""
    return f"unisono train {recipe} {spell(dict(WAYS[way].setting))}".rstrip()
