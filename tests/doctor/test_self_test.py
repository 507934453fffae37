"""Two processes talk; one that says wrong things, nothing, or too late is a finding."""

import os

import pytest

from unisono.collectives.loopback import run_ranks
from unisono.doctor import talk
from unisono.doctor.self_test import check_talk, judge_gpus, judge_talk, judge_torch

SEEN = {
    "torch": "2.13.0+cpu", "cpu_capability": "AVX2", "threads": 1, "cuda": None, "gpus": [], "gloo": True, "nccl": None,
    "transport": "ShmTransport", "wrong": 0, "latency_us": 20.0, "mb_per_s": 900.0,
}  # fmt: skip


@pytest.mark.slow
def test_two_real_processes_talk():
    """Through our launcher and the transport of training; a world around us does not get in."""
    outer = {"RANK": "5", "WORLD_SIZE": "9", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "1"}
    found = check_talk([], {**os.environ, **outer})
    assert [finding.name for finding in found] == ["torch", "gpus", "communication"]
    assert found[2].status == "ok", found[2]
    assert "sums are right" in found[2].detail


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_sums_are_right_and_wrong_ones_are_counted(world_size, monkeypatch):
    """The control: one element off by one on one rank, in each sum, is counted."""
    assert {seen["wrong"] for seen in run_ranks(lambda transport: talk.converse(transport, 2), world_size)} == {0}
    right = talk.tree_all_reduce

    def damaged(partials, placement, leaves, out, transport):
        right(partials, placement, leaves, out, transport)
        out[7] += transport.rank == 0

    monkeypatch.setattr(talk, "tree_all_reduce", damaged)
    assert {seen["wrong"] for seen in run_ranks(lambda transport: talk.converse(transport, 2), world_size)} == {4}


@pytest.mark.parametrize(
    ("program", "word"),
    [
        ("import sys; sys.exit('no such interface')", "(code 1): no such interface"),
        ("pass", "(code 0): no message"),
        ("import time; time.sleep(600)", "within 1 s"),
    ],
)
def test_processes_that_do_not_talk_are_a_failure(program, word):
    """A failure, silence and hanging end with one finding that says which."""
    (found,) = check_talk([], os.environ, ["-c", program], wait_s=1 if "sleep" in program else 60)
    assert (found.name, found.status, word in found.detail) == ("communication", "fail", True)


def test_the_build_of_torch():
    """Old, without gloo, without vector kernels: each has its verdict."""
    assert judge_torch(SEEN).status == "ok"
    assert judge_torch({**SEEN, "torch": "2.9.1"}).status == "fail"
    assert judge_torch({**SEEN, "gloo": False}).status == "fail"
    assert judge_torch({**SEEN, "cpu_capability": "DEFAULT"}).status == "warn"


def test_gpus():
    """None is well; some that torch cannot use, or several without NCCL, are not."""
    assert judge_gpus(SEEN, []).status == "ok"
    found = judge_gpus(SEEN, ["H100, 80 GiB"])
    assert (found.status, "CUDA build" in found.hint) == ("warn", True)
    two = {**SEEN, "cuda": "13.0", "gpus": ["H100", "H100"]}
    assert judge_gpus(two, ["H100", "H100"]).status == "fail"
    assert judge_gpus({**two, "nccl": "2.28.3"}, ["H100", "H100"]).status == "ok"


def test_wrong_sums_fail():
    """However fast they came."""
    assert judge_talk(SEEN).status == "ok"
    assert judge_talk({**SEEN, "wrong": 1}).status == "fail"
