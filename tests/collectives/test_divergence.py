"""What ranks are told that do different things."""

from unisono.collectives.divergence import divergence


def said(*told, first_rank=0):
    return str(divergence("[rank 0/2]", first_rank, told, "in meeting 7"))


def test_who_is_in_a_step():
    """The rank that adds gradients is told from those that evaluate; without such a pair, or with all, nobody is."""
    gather, add = "step 1: all_gather_single of (250,) uint8", "step 2: tree_all_reduce of 544 x float32, 4 leaves"
    assert "Rank 1 adds gradients, in run.step; the others are in another call, such as" in said(gather, add)
    assert "Rank 4, 6 adds" in said(add, gather, add, first_rank=4)
    assert "run.step" not in said(gather, "step 1: barrier")
    other = "step 2: tree_all_reduce of 100 x float32, 4 leaves"
    assert "tensors of equal shape" in said(add, other)
    assert "run.step" not in said(add, other)
    before = said("run.evaluate, its metrics", "run.steps, its score")
    assert "rank 0: run.evaluate, its metrics; rank 1: run.steps, its score." in before
    assert "Every rank makes each of these calls, or none (no `if run.world.is_leader:` around it)." in before
