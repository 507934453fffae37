"""Pipeline schedules: they cannot hang, leave nothing out, keep what they promise, and are idle as the formula says."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

from strategies.pipelines.schedule_proofs import PlanError, check, idle_share, timeline
from unisono.errors import ConfigError
from unisono.strategies.pipelines.schedule import SCHEDULES, Action, bubble, plan

RANKS, CHUNKS, MICROS = st.integers(1, 6), st.integers(1, 3), st.integers(0, 17)


@given(st.sampled_from(SCHEDULES), RANKS, CHUNKS, MICROS)
def test_no_plan_hangs_and_none_leaves_anything_out(schedule, ranks, chunks, micros):
    """Any number of micro-batches, also fewer than ranks, or not a multiple of them."""
    check(plan(schedule, ranks, chunks, micros), ranks * chunks, micros)


@pytest.mark.parametrize(("change", "message"), [
    (lambda actions: (actions[0], (*actions[1][1:2], *actions[1][:1], *actions[1][2:])),
     "forward moves of stage 1|for ever"),
    (lambda actions: (actions[0][:-1], actions[1]), r"expected 4 backward moves of stage 0 on rank 0.*got \[0, 1, 2\]"),
    (lambda actions: (actions[1], actions[0]), "stage 0 on rank 0"),
    (lambda actions: ((*actions[0], Action("forward", 1, 0)), actions[1]), "not its own"),
    (lambda actions: (tuple(sorted(actions[0], key=lambda m: (m.direction, m.micro))), actions[1]),
     "for ever: rank 0: backward of micro-batch 0 in stage 0; rank 1: forward of micro-batch 0 in stage 1"),
])  # fmt: skip
def test_a_wrong_plan_is_found(change, message):
    """The control: two moves swapped, one left out, one too many, backward before forward."""
    actions = plan("1f1b", 2, 1, 4)
    check(actions, 2, 4)
    with pytest.raises(PlanError, match=message):
        check(change(actions), 2, 4)


@given(RANKS, CHUNKS, st.integers(1, 5))
def test_the_idle_share_is_the_formulas(ranks, chunks, groups):
    """For equal stages, messages that take no time, and a multiple of the ranks as micro-batches."""
    micros = groups * ranks
    actions = plan("interleaved" if chunks > 1 else "1f1b", ranks, chunks, micros)
    assert idle_share(timeline(actions, ranks * chunks)) == pytest.approx(bubble(ranks, chunks, micros))


@given(RANKS, st.integers(1, 17))
def test_gpipe_and_1f1b_are_equally_idle(ranks, micros):
    """1f1b saves memory, not time."""
    for schedule in ("gpipe", "1f1b"):
        assert idle_share(timeline(plan(schedule, ranks, 1, micros), ranks)) == pytest.approx(bubble(ranks, 1, micros))
    assert bubble(ranks, 1, 0) == 0.0


@given(RANKS, st.integers(1, 17))
def test_1f1b_keeps_as_many_micro_batches_as_ranks(ranks, micros):
    """Between their two passes; gpipe keeps all of them."""

    def most(actions):
        kept = [0]
        for action in actions:
            kept.append(kept[-1] + (1 if action.direction == "forward" else -1))
        return max(kept)

    assert [most(own) for own in plan("1f1b", ranks, 1, micros)] == [min(micros, ranks - r) for r in range(ranks)]
    assert {most(own) for own in plan("gpipe", ranks, 1, micros)} == {micros}


@pytest.mark.parametrize(("ranks", "chunks", "micros"), [(2, 2, 4), (3, 2, 6), (2, 3, 8), (4, 2, 8)])
def test_interleaved_is_that_of_torch(ranks, chunks, micros):
    """Move by move, where torch allows the number of micro-batches."""
    stages = [
        SimpleNamespace(
            stage_index=index * ranks, num_stages=ranks * chunks, group_size=ranks, group_rank=0, group=None,
            is_first=index == 0, is_last=False, has_backward=True, device=None, submod=None,
        )
        for index in range(chunks)
    ]  # fmt: skip
    theirs = ScheduleInterleaved1F1B(stages, micros, loss_fn=None).pipeline_order
    for rank, own in enumerate(plan("interleaved", ranks, chunks, micros)):
        names = {"FORWARD": "forward", "FULL_BACKWARD": "backward"}
        found = [
            Action(names[action.computation_type.name], action.stage_index, action.microbatch_index)
            for action in theirs[rank]
            if action is not None
        ]
        assert list(own) == found


def test_an_unknown_schedule_is_refused():
    """With those that there are."""
    with pytest.raises(ConfigError, match="gpipe, 1f1b, interleaved; got 'zb'"):
        plan("zb", 2, 1, 4)
