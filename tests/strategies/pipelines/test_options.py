"""What a pipeline is asked for: its mesh, its replicas, and what is refused before anything starts."""

import pytest

from unisono.collectives.placement import cut
from unisono.errors import ConfigError
from unisono.strategies.catalog import find
from unisono.strategies.pipelines.options import PipelineOptions


@pytest.mark.parametrize(("options", "world_size", "mesh"), [
    ({"stages": 2}, 2, (2, 1)),
    ({"stages": 2}, 6, (2, 3)),
    ({"stages": 4}, 1, (1, 1)),
    ({"stages": 4}, 2, (2, 1)),
    ({"stages": 3, "schedule": "interleaved"}, 6, (3, 2)),
])  # fmt: skip
def test_ranks_are_a_mesh(options, world_size, mesh):
    """Processes of a pipeline by pipelines; fewer processes than stages take several each."""
    chosen = PipelineOptions(**options)
    assert chosen.mesh(world_size) == mesh
    width, pipelines = mesh
    rows = cut(8, pipelines)
    placed = chosen.place(8, world_size)
    assert placed[:pipelines] == rows == placed[-pipelines:]  # the first and the last process of every pipeline
    assert all(part == range(0) for part in placed[pipelines:-pipelines] if width > 2)


@pytest.mark.parametrize(("options", "world_size", "replicas", "message"), [
    ({"stages": 2}, 3, 8, r"3 processes are no rows of 2 stages\. Hint: --workers 2, or --stages 3"),
    ({"stages": 4}, 3, 8, r"Hint: --workers 4, or --stages 3"),
    ({"stages": 2}, 8, 3, r"a replica for each of 4 pipelines, got 3"),
    ({"micro_batches": 4}, 4, 4, r"micro_batches 4 in 2 pipelines means 8 replicas, got 4"),
])  # fmt: skip
def test_worlds_that_do_not_fit_are_refused(options, world_size, replicas, message):
    """With what to change."""
    with pytest.raises(ConfigError, match=message):
        PipelineOptions(**options).place(replicas, world_size)


@pytest.mark.parametrize(("given", "message"), [
    ({"stages": "1"}, "stages as a whole number of processes from 2 to 4,096, got 1"),
    ({"schedule": "zigzag"}, "expected schedule to be one of gpipe, 1f1b, interleaved, got 'zigzag'"),
    ({"chunks": "2"}, "schedule 1f1b has one stage a process, got chunks 2. Hint: 1f1b for one, interleaved"),
    ({"schedule": "interleaved", "chunks": "1"}, "schedule interleaved has several stages a process, got chunks 1"),
    ({"micro_batches": "0"}, "micro_batches as a whole number of micro-batches from 1"),
])  # fmt: skip
def test_wrong_options_are_refused(given, message):
    """As they are typed."""
    with pytest.raises(ConfigError, match=message):
        find("pipeline", given)


def test_the_score_says_what_changes_bits():
    """Neither stages nor schedule nor cuts do; the micro-batches are the replicas, which the score has anyway."""
    typed = {"stages": "4", "schedule": "gpipe", "cuts": "conv2,fc", "chunks": "2", "micro_batches": "8"}
    chosen = find("pipeline", typed)
    assert chosen.score() == find("pipeline").score() == {"name": "pipeline"}
    assert chosen.cuts == ("conv2", "fc")
    assert (chosen.num_stages, chosen.default_replicas(8), chosen.sets_replicas) == (8, 16, True)
    plain = PipelineOptions()
    assert (plain.num_stages, plain.default_replicas(2), plain.sets_replicas, plain.usual_workers(5)) == (
        2,
        4,
        False,
        4,
    )
    assert PipelineOptions(schedule="interleaved").num_stages == 4
