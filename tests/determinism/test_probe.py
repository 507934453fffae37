"""The probe sees what a process computes, whatever it says of itself."""

import os
import subprocess
import sys

import pytest
import torch

from determinism.probe_programs import begin
from forks import run_forked
from ranks import run_threads
from unisono.determinism.probe import compare_probes, probe
from unisono.determinism.switches import describe_environment, drift
from unisono.environment import CPU_LEVELS
from unisono.errors import RankDivergence
from unisono.train.steps.loop import check_alike

CPU = torch.device("cpu")
ALL = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def test_equal_arithmetic_has_one_hash():
    """The same again, with other generators, gradients off or on, and another default dtype."""
    found = probe(CPU, *ALL)
    assert [*found] == ["float32", "float64", "bfloat16", "float16"]
    assert len({*found.values()}) == 4
    torch.manual_seed(99)
    state = torch.get_rng_state()
    with torch.inference_mode():
        assert probe(CPU, *ALL) == found
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", ["exp", "conv2d", "addmm", "layer_norm"])
def test_one_bit_of_one_kernel_is_seen(name, monkeypatch):
    """The last bit of one number of one result."""
    before = probe(CPU, torch.float32)
    owner = torch.Tensor if name == "exp" else torch
    right = getattr(owner, name)

    def wrong(*args, **kwargs):
        found = right(*args, **kwargs)
        first = found.view(-1)[:1]
        first.copy_(torch.nextafter(first, torch.tensor([9.0])))
        return found

    monkeypatch.setattr(owner, name, wrong)
    assert compare_probes(before, probe(CPU, torch.float32))


def test_only_what_both_have_is_compared():
    """A dtype that one of them did not look at, and a run of a version that knew no probe, differ in nothing."""
    assert compare_probes({"float32": "a", "float64": "b"}, {"float32": "a", "bfloat16": "c"}) == []
    assert compare_probes({"float32": "a"}, {"float32": "d"}) == ["computed bits of float32: a -> d"]
    environment = describe_environment(threads=1, device=CPU)
    without = {name: value for name, value in environment.items() if name != "probe"}
    assert drift(without, environment) == []
    other = environment | {"probe": {"float32": "0"}}
    assert drift(environment, other) == [f"computed bits of float32: {environment['probe']['float32']} -> 0"]


def test_a_level_of_the_cpu():
    """Told before torch is imported, its libraries take other kernels where the CPU has newer ones."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("this CPU has nothing newer than AVX2")
    look = "from unisono.determinism.probe import *; from torch.backends import cpu; import torch; "
    say = "print(cpu.get_cpu_capability(), probe(torch.device('cpu'), torch.float32)['float32'])"
    base = os.environ | {"OMP_NUM_THREADS": "1"}
    told = [
        subprocess.run([sys.executable, "-c", look + say], env=env, capture_output=True, text=True, check=True).stdout
        for env in (base, base | CPU_LEVELS["avx2"])
    ]
    (newest, before), (level, after) = (line.split() for line in told)
    assert (newest, level) == ("AVX512", "AVX2")
    assert before != after


def test_a_rank_that_computes_other_bits_is_refused_at_the_start():
    """Two processes with the same software, variables and flags; in one of them MKL takes other kernels.

    The control are all other tests on several ranks, which begin.
    """
    told = run_forked(begin, 2, [1])
    if not told[1][1]:
        pytest.skip("no MKL")
    host = os.uname().nodename
    for message, _ in told:
        assert "computed bits of float32: " in message
        assert f"(host {host})" in message
        assert "Hint: hosts with the same software and the same type of CPU" in message


def test_ranks_that_share_out_replicas_otherwise_are_named():
    """In place of an error of sizes within the first step."""

    def program(transport, placements):
        try:
            check_alike(transport, {}, {}, {"replicas from, to": {"rank 0": placements[transport.rank]}})
        except RankDivergence as error:
            return str(error)
        return ""

    for text in run_threads(program, 2, [[0, 4], [0, 3]]):
        assert "replicas from, to.rank 0: [0, " in text
        assert "--shares" in text
    assert run_threads(program, 2, [[0, 4], [0, 4]]) == ["", ""]
