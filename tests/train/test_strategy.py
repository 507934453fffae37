"""A run with a strategy: what belongs to its score, where it may go on, uneven placement."""

import json

import pytest

import unisono
from ranks import run_threads
from unisono.errors import ConfigError, EnvironmentDrift, ScoreMismatch


def test_uneven_shares_change_no_bit(toy, build, tmp_path):
    """Placed 1, 2, 1 or all but evenly, the fingerprint and the ledger are those of one process."""

    def play(world_size, shares, out):
        def one(transport):
            strategy = unisono.strategy("exact", shares=shares)
            return toy.train(build=build, transport=transport, strategy=strategy, out=tmp_path / out)[0]

        return run_threads(one, world_size)

    expected = play(1, None, "alone")[0]
    for number, shares in enumerate([(1, 2, 1), (5, 1, 1), (1, 1, 8)]):
        assert set(play(3, shares, str(number))) == {expected}
        assert (tmp_path / str(number) / "ledger.jsonl").read_text() == (tmp_path / "alone/ledger.jsonl").read_text()


def test_shares_for_other_processes_are_refused(toy):
    """One share a process."""
    with pytest.raises(ConfigError, match=r"one share for each of 1 processes, got shares 1,2\. Hint: --workers 2"):
        toy.train(strategy=unisono.strategy("exact", shares=(1, 2)))


def test_the_strategy_belongs_to_the_score(toy, tmp_path):
    """A directory is resumed with the strategy and the options it was started with."""
    toy.train(strategy=unisono.strategy("allreduce", algorithm="tree"), out=tmp_path, epochs=1)
    assert json.loads((tmp_path / "score.json").read_text())["strategy"]["algorithm"] == "tree"
    assert json.loads((tmp_path / "result.json").read_text())["strategy"] == "allreduce"
    for other in ("exact", "allreduce"):
        with pytest.raises(ScoreMismatch, match="strategy"):
            toy.train(strategy=other, out=tmp_path, epochs=2)


def test_another_number_of_ranks_is_drift_where_bits_depend_on_it(toy, tmp_path):
    """Refused with the way to go on, which is recorded; exact goes on as it is."""

    def play(world_size, strategy, **settings):
        out = tmp_path / strategy
        return run_threads(
            lambda transport: toy.train(transport=transport, strategy=strategy, out=out, **settings)[1], world_size
        )

    for strategy in ("exact", "allreduce"):
        play(2, strategy, epochs=1)
    assert play(1, "exact", epochs=2) == [[6, 7, 8, 9, 10]]
    with pytest.raises(EnvironmentDrift, match=r"world_size: 2 -> 1.*--allow-drift"):
        play(1, "allreduce", epochs=2)
    assert play(1, "allreduce", epochs=2, allow_drift=True) == [[6, 7, 8, 9, 10]]
    recorded = json.loads((tmp_path / "allreduce" / "environment.json").read_text())
    assert recorded["drifted"] == [["after step 5: world_size: 2 -> 1"]]
    assert recorded["world_size"] == 1
