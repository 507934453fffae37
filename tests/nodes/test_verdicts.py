"""What follows when an attempt has ended somehow on every host: one rule, tried in all cases."""

import itertools
import json
from dataclasses import asdict

import pytest

from unisono.launchers.supervision.restarts import Ending
from unisono.nodes.verdicts import NodeEnding, Verdict, judge

DONE, LOST = NodeEnding(kind="done"), NodeEnding(kind="lost")
ENDED = NodeEnding(kind="ended")


def failed(rank=1, *, step=5, done=4, saved=4, **more):
    ending = Ending(rank=rank, what=f"rank {rank} broke.", step=step, done=done, saved=saved, **more)
    return NodeEnding(kind="failed", message=f"rank {rank} broke", exit_code=3, ending=ending)


BLAMES = failed(-1)


def verdict(endings, history=(), **rules):
    settings = {"min_nodes": len(endings), "is_elastic": False, "max_restarts": 0, "keeper": 0, **rules}
    return judge(endings, ["A", "B", "C", "D"][: len(endings)], list(history), **settings)


def test_all_well():
    """Done everywhere is done."""
    assert verdict([DONE, DONE]).what == "done"


def test_a_failure_of_its_own_explains_those_that_blame_others():
    """Whatever the order, the root speaks; a wrong setting before all; without restarts everyone ends with its code."""
    for endings in itertools.permutations([BLAMES, failed(2), ENDED]):
        found = verdict(list(endings))
        assert (found.what, found.exit_code, found.rank) == ("failed", 3, 2)
        assert found.text.splitlines()[0] == "rank 2 broke"
        assert "the newest checkpoint is of step 4" in found.text.splitlines()[1]
    assert verdict([failed(0), failed(3, is_final=True)]).rank == 3
    assert verdict([BLAMES, DONE]).what == "failed"


def test_restarts_are_counted_over_all_hosts():
    """The budget is the same as on one host, and goes from verdict to verdict, also through JSON."""
    history = []
    for _ in range(2):
        found = verdict([failed(0), ENDED], history, max_restarts=2)
        assert found.what == "again"
        history = json.loads(json.dumps(asdict(found)))["history"]
    # The first failure came after progress (from nothing to step 4), so two more are free of it.
    history = verdict([failed(0), ENDED], history, max_restarts=2).history
    found = verdict([failed(0), ENDED], history, max_restarts=2)
    assert found.what == "failed"
    assert "2 restarts in a row made no progress" in found.text
    again = verdict([failed(0, step=9, done=8), ENDED], history, max_restarts=2)
    assert again.text.endswith("on all hosts from the last checkpoint.")  # progress: no restart of the two is gone
    again = verdict([failed(0, step=9, done=8), ENDED], again.history, max_restarts=2)
    assert again.text.endswith("from the last checkpoint (1 of 2 restarts without progress).")


def test_a_lost_host():
    """Elastic: the others go on, free of charge; else it counts as a failure, and the way out is named."""
    found = verdict([BLAMES, LOST, ENDED], min_nodes=2, is_elastic=True)
    assert (found.what, found.history) == ("again", [])
    assert found.text == "B does not answer any more. The others go on from the last checkpoint, if there is one."
    assert "1 more must come first" in verdict([BLAMES, LOST], min_nodes=2, is_elastic=True).text
    found = verdict([BLAMES, LOST])
    assert found.what == "failed"
    assert "Hint: --nnodes MIN:MAX" in found.text
    assert verdict([BLAMES, LOST], max_restarts=1).what == "again"
    # A failure of its own weighs more: that host was not lost for nothing.
    assert verdict([failed(0), LOST], is_elastic=True, min_nodes=1).what == "failed"


@pytest.mark.parametrize("signum", [2, 15])
def test_a_host_that_is_asked_to_stop(signum):
    """Elastic: it leaves, the others go on; else, or where it keeps the store, all stop, saved where they could."""
    leaves = NodeEnding(kind="stopped", step=7, signum=signum)
    stays = NodeEnding(kind="stopped", step=7)
    found = verdict([stays, leaves, stays], is_elastic=True, min_nodes=2)
    assert (found.what, found.leaving) == ("again", [1])
    for endings, rules in (
        ([stays, leaves], {}),
        ([leaves, stays, stays], {"is_elastic": True, "min_nodes": 1}),
        ([stays, leaves], {"is_elastic": True, "min_nodes": 2}),
    ):
        found = verdict(endings, **rules)
        assert (found.what, found.step) == ("stopped", 7)
    found = verdict([BLAMES, NodeEnding(kind="interrupted", signum=signum)])
    assert (found.what, found.exit_code) == ("interrupted", 128 + signum)


def test_a_host_that_comes():
    """All stop between two steps and meet again; scripts that cannot are ended, and meet again too."""
    stopped = NodeEnding(kind="stopped", step=7)
    assert verdict([stopped, stopped], is_elastic=True, min_nodes=1).what == "again"
    assert verdict([ENDED, ENDED], is_elastic=True, min_nodes=1).what == "again"


def test_values_survive_the_store():
    """What is told through the store is what was meant."""
    for ending in (failed(1, samples=(1, 2), replica=3, error="ValueError"), DONE, LOST):
        assert NodeEnding.unpacked(json.loads(json.dumps(asdict(ending)))) == ending
    found = verdict([failed(1, samples=(1, 2)), ENDED], max_restarts=1)
    assert Verdict(**json.loads(json.dumps(asdict(found)))).what == found.what
