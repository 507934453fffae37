"""The plan by which reductions are cut: chosen from timings, kept per host, harmless."""

import pytest

from collectives import shm_programs
from ranks import run_processes
from unisono.collectives.shm.tuning import Plan, PlanTiming, choose, default_plan, load, plan_file, save

SHARED, WHOLE = 0, 1 << 30


def timing(num_bytes, whole_bytes, piece_bytes, seconds):
    return PlanTiming(num_bytes=num_bytes, plan=Plan(whole_bytes=whole_bytes, piece_bytes=piece_bytes), seconds=seconds)


def test_whole_up_to_where_it_pays():
    """Everything is added by everyone up to the last size at which that was faster, with the best large piece."""
    rows = [
        timing(100, WHOLE, 64, 1.0), timing(100, SHARED, 64, 2.0),
        timing(1000, WHOLE, 64, 3.0), timing(1000, SHARED, 64, 3.5),
        timing(9000, WHOLE, 64, 9.0), timing(9000, SHARED, 64, 6.0), timing(9000, SHARED, 256, 5.0),
    ]  # fmt: skip
    assert choose(rows) == Plan(whole_bytes=1000, piece_bytes=256)
    assert choose(reversed(rows)) == choose(rows)


def test_always_and_never_whole():
    """Faster for all measured sizes means always; slower for the smallest means never."""
    always = [timing(100, WHOLE, 64, 1.0), timing(100, SHARED, 64, 2.0)]
    never = [timing(100, WHOLE, 64, 2.0), timing(100, SHARED, 64, 1.0)]
    assert choose(always).whole_bytes > 1 << 35
    assert choose(never).whole_bytes == 0


def test_a_plan_is_kept(tmp_path):
    """What is saved is loaded, for this number of ranks."""
    plan = Plan(whole_bytes=77, piece_bytes=1 << 16)
    save(plan_file(tmp_path, 3), plan)
    assert load(plan_file(tmp_path, 3)) == plan
    assert load(plan_file(tmp_path, 4)) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"whole_bytes": 1}', '{"whole_bytes": -1, "piece_bytes": 1048576}'])
def test_rubbish_is_no_plan(tmp_path, text):
    """A damaged file costs a measurement, no error."""
    file = plan_file(tmp_path, 2)
    file.parent.mkdir()
    file.write_text(text)
    assert load(file) is None


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    """Where nothing can be kept, the next run measures again."""
    (tmp_path / "collectives").write_text("a file where the directory should be")
    save(plan_file(tmp_path, 2), default_plan(2))
    assert load(plan_file(tmp_path, 2)) is None


@pytest.mark.slow
def test_ranks_measure_once_and_agree(tmp_path):
    """The first run measures and keeps the plan, the second takes it; all ranks have the same one."""
    first, second = (run_processes(shm_programs.settle, 2, str(tmp_path)) for _ in range(2))
    assert first[0]["measured"]
    assert not second[0]["measured"]
    assert {str(rank["plan"]) for rank in first + second} == {str(first[0]["plan"])}
