"""Thirty drawn cases of the sweep that `make adversary` runs ten thousand of, and a control of each kind."""

import json
import random

import pytest

from adversary.damages import forget
from adversary.found import Found
from adversary.sweep import KINDS, QUICK, kind_of, summary, sweep
from cases import some_are_slow

SEED = 0


@pytest.fixture(scope="module", autouse=True)
def _clean():
    yield
    forget()


@pytest.mark.parametrize("number", some_are_slow(range(30), 12))
@pytest.mark.filterwarnings("default")
def test_drawn_cases(number):
    """Nothing is found. The case is repeated by ``python -m adversary --kinds quick --seed 0 --first NUMBER``."""
    (tried,) = sweep(SEED, range(number, number + 1), None, QUICK)
    assert tried["outcome"] == "right", tried["words"]


@pytest.mark.slow
def test_drawn_kills():
    """Killed twice at drawn moments, launched again on other numbers of workers, nothing outlives a launcher."""
    outcomes = [tried["outcome"] for tried in sweep(SEED, range(4), None, ["kill"])]
    assert "found" not in outcomes
    assert outcomes.count("right") >= 3


@pytest.mark.parametrize("kind", [*QUICK, pytest.param("kill", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("default")
def test_what_is_wrong_is_found(kind, monkeypatch):
    """The control: a rank that lies, a sample twice, a lost batch, an adopted stranger, another job are all found."""
    monkeypatch.setattr("unisono.strategies.witness.first_loss.FirstLoss.compare", lambda *_: None)  # it refuses them
    with pytest.raises(Found):
        KINDS[kind][0](random.Random(3), cheat=True)


def test_a_sweep_goes_on_where_it_was(tmp_path):
    """A log holds each case once; the same command tries only what is missing, and the same number is the same case."""
    log = tmp_path / "log.jsonl"
    first = [*sweep(4, range(3), log, ["sampler"])]
    more = [*sweep(4, range(5), log, ["sampler"])]
    assert [tried["number"] for tried in first + more] == [0, 1, 2, 3, 4]
    assert len(log.read_text().splitlines()) == 5
    again = [*sweep(4, range(3), None, ["sampler"])]
    assert [tried["words"] for tried in again] == [tried["words"] for tried in first]
    assert len({tried["words"] for tried in first}) == 3
    assert "sampler                    5      0" in summary(log)
    assert json.loads(log.read_text().splitlines()[0])["outcome"] == "right"


def test_every_kind_is_drawn():
    """A thousand numbers hold cases of each kind."""
    assert {kind_of(1, number)[0] for number in range(1000)} == set(KINDS)
