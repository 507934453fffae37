"""The error for ranks that do different things: it says what each of them does."""

from collections.abc import Sequence

from unisono.errors import RankDivergence

_IN_STEP, _CALL = "tree_all_reduce", "run."


def divergence(who: str, first_rank: int, told: Sequence[str], where: str) -> RankDivergence:
    """Return the error for ranks that do different things."""
    listed = "; ".join(f"rank {rank}: {what}" for rank, what in enumerate(told, start=first_rank))
    hint = "collectives must be called by all ranks, in one order."
    if len({what.partition(" of ")[0] for what in told}) == 1:
        hint = "all ranks must pass tensors of equal shape and dtype; one that has got no samples often makes others."
    adding = [str(rank) for rank, what in enumerate(told, start=first_rank) if _IN_STEP in what]
    if 0 < len(adding) < len(told):
        hint += (
            f" Rank {', '.join(adding)} adds gradients, in run.step; the others are in another call, such as "
            "run.evaluate: all ranks make it, or none (no `if run.world.is_leader:` around it)."
        )
    elif not adding and any(_CALL in what for what in told):
        hint += " Every rank makes each of these calls, or none (no `if run.world.is_leader:` around it)."
    return RankDivergence(f"{who} the ranks are doing different things {where}: {listed}. Hint: {hint}")
