"""Who fits together, who sits where, and whom a message names."""

import re
from dataclasses import replace

import pytest

from unisono.nodes.roll import NodeInfo, check_counts, check_roll, disagreement, first_ranks, order, skew, unreached

FIRST = NodeInfo(
    number=0, host="a", address="10.0.0.1", probe_port=1, pid=10, workers=2, nodes="2:2", node_rank=0,
    program="train.py",
    code="c" * 64, arguments="a" * 64, software="torch 2.13", threads="1", rules="--max-restarts 0",
)  # fmt: skip
SECOND = replace(FIRST, number=1, host="b", address="10.0.0.2", pid=20, node_rank=1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodes": "3:3"}, r"number of hosts \(--nnodes\): 3:3 on node rank 1 \(b, 10\.0\.0\.2, process 20\), 2:2 on"),
        ({"code": "d" * 64}, "code of the program, as SHA-256: dddddddddddd on node rank 1 .* cccccccccccc on node ra"),
        ({"software": "torch 2.12"}, "software: torch 2.12 on"),
        ({"threads": "2"}, r"threads per worker .*: 2 on"),
        ({"rules": "--max-restarts 3"}, "settings of the launcher: --max-restarts 3 on"),
        ({"node_rank": -1}, "--node-rank is given on one of"),
    ],
)
def test_what_must_agree(change, words):
    """A host that differs is named with what it has, beside the first host with what that one has."""
    assert disagreement(SECOND, FIRST) == ""
    assert disagreement(replace(SECOND, workers=7, arguments="x"), FIRST) == ""  # may differ
    problem = disagreement(replace(SECOND, **change), FIRST)
    assert re.search(words, problem), problem


def test_clocks():
    """Clocks that differ by more than the rendezvous bears are named, with the direction."""
    assert skew(1000.0, 1004.0, SECOND, FIRST) == ""
    assert "node rank 1 (b, 10.0.0.2, process 20) is 60 s ahead of" in skew(1060.0, 1000.0, SECOND, FIRST)
    assert "is 60 s behind" in skew(1000.0, 1060.0, SECOND, FIRST)


def test_two_hosts_with_one_rank():
    """Both are named, the earlier one first; hosts without numbers cannot collide."""
    assert check_roll([SECOND, FIRST]) == ""
    twin = replace(SECOND, number=2, host="c", pid=30)
    problem = check_roll([twin, FIRST, SECOND])
    assert (
        "two hosts say that they are node rank 1: node rank 1 (b, 10.0.0.2, process 20) and node rank 1 (c," in problem
    )
    assert check_roll([replace(FIRST, node_rank=-1), replace(SECOND, node_rank=-1)]) == ""


def test_who_sits_where():
    """As numbered; else as they came, with the launchers of one machine side by side, and ranks without gaps."""
    assert order([SECOND, FIRST]) == [1, 0]
    came = [replace(FIRST, node_rank=-1, number=n, host=host) for n, host in ((3, "a"), (0, "a"), (1, "b"), (2, "c"))]
    assert order(came) == [1, 0, 2, 3]
    assert first_ranks([FIRST, replace(SECOND, workers=3)]) == [0, 2, 5]


def test_pairs_that_cannot_talk():
    """Each pair is named with the reason, and whether the way back works."""
    infos = [FIRST, SECOND, replace(FIRST, number=2, host="c", node_rank=2)]
    assert unreached(infos, [{}, {}, {}]) == ""
    one_way = unreached(infos, [{}, {"2": "no answer"}, {}])
    assert (
        "node rank 1 (b, 10.0.0.2, process 20) cannot reach node rank 2 (c, 10.0.0.1, process 10): no answer" in one_way
    )
    assert "the way back works" in one_way
    assert "neither way works" in unreached(infos, [{}, {"2": "no answer"}, {"1": "no answer"}])


def test_hosts_that_have_not_come():
    """Those who have are listed; of numbered hosts the missing ones are named."""
    error = str(check_counts([FIRST], 3, 60))
    assert "expected 3 hosts (--nnodes) within 60 s (--rdzv-timeout), got 1: node rank 0 (a," in error
    assert "Missing: node rank 1, 2." in error
    assert "Missing" not in str(check_counts([replace(FIRST, node_rank=-1)], 3, 60))
