"""Strategies, checkpoints, loaders and metrics on a device that is as strict as a GPU: the CPU's bits."""

from collections import Counter

import pytest
import torch

import device_lines
import device_programs
from device_programs import CASES
from forks import run_forked
from ranks import once, run_processes
from unisono.determinism.devices import named
from unisono.errors import ConfigError


@once
def everything():
    """What the programs of `device_programs` give, in one process of their own."""
    return run_forked(device_programs.everything, 1)[0]


@once
def played(program):
    """What one of them gives, or another one in a process of its own."""
    found = everything()
    return found[program] if program in found else run_forked(getattr(device_programs, program), 1)[0]


@pytest.mark.parametrize("case", CASES)
def test_a_strategy_has_the_cpus_bits(case):
    """Losses, weights and metrics of every strategy that needs no torch.distributed: nothing meets another device."""
    found = played("strategies")[case]
    assert not isinstance(found["fake"], str), found["fake"]
    assert found["fake"] == found["cpu"]
    assert len(found["cpu"]) == CASES[case][0]
    assert len(set(found["cpu"][0][0])) > 1, "it has learned something"


def needs(case):
    """How many GPUs a case takes."""
    ranks, _, options, _ = CASES[case]
    return ranks * options["devices"] if case.startswith("model_parallel") else options.get("devices", 1)


GPUS = torch.cuda.device_count()
ON_GPUS = [
    pytest.param("cuda", case, marks=pytest.mark.skipif(needs(case) > GPUS, reason="too few GPUs")) for case in CASES
]


@pytest.mark.parametrize(("device", "case"), [("fake", "exact, two ranks"), *ON_GPUS])
def test_a_gpu_repeats_its_bits(device, case):
    """Where there are some, whose bits are not the CPU's; the device of the tests shows the program."""
    first, again = run_processes(device_programs.repeated, 1, device, case)[0]
    assert first == again
    assert len(first) == CASES[case][0]


MORE = ("ddp", "ps", "model_parallel", "pipeline", "islands")
ONCE = [case for case in CASES if not case.startswith(MORE) and not case.endswith("weighed")]
"""What the others wait for besides is in `test_what_waits_more_is_known`."""


@pytest.mark.parametrize("case", [*ONCE, "ps, two servers"])
def test_a_step_waits_once(case):
    """Losses, finiteness and checksums come in one read; buffers, gradients and parameters meet on the devices.

    With replicas, losses of the first step are computed and read once more: this rank's first, and replica 0's.
    """
    ranks = CASES[case][0]
    others = [[4, ranks - 1]] if ranks > 1 else []
    first = [[3, 1], *others] if case.startswith("exact") else []
    assert played("strategies")[case]["waits"] == [[1, 6 * ranks - sum(count for _, count in first)], *first]


def test_what_waits_more_is_known():
    """Two devices are read one by one; a server's norm is read first; torch's DDP waits in its first forward pass.

    Islands read once more where they meet, and stages once for what they hand on; first steps as above.
    """
    found = {case: told["waits"] for case, told in played("strategies").items()}
    assert found["model_parallel"] == [[2, 6]], "the control: one wait more is counted"
    assert found["ps"] == [[1, 12], [3, 6]], "the server reads the norm, and sends its limit"
    assert found["ddp"][0] == [1, 5]
    assert found["islands"] == [[1, 4], [2, 6], [3, 2]], "every second step they meet, and merge buffers"
    # Each of 4 replicas goes through the host, once to the other stage or once back; with 4 stages, 3 times.
    assert found["pipeline, gpipe"] == [[1 + 4, 12]]
    assert found["pipeline"] == [[1 + 4 + 1, 12]], "norms travel through the host, too"
    assert found["pipeline, interleaved"] == [[1 + 4 * 3, 12]]
    # Each replica says what it weighs; losses are read before the sum is scaled.
    assert found["exact, weighed"] == [[2 + 1 + 2, 10], [7, 1], [8, 1]], "and the sum is looked at by itself"
    assert found["allreduce, weighed"] == [[1 + 1 + 1, 12]], "which has a replica for each rank"


def test_the_device_is_strict():
    """The control: tensors of two devices, or of one and the CPU, do not meet."""
    found = played("strict")
    assert all("expected all tensors on the same device" in told for told in found.values()), found


def test_streams_are_in_no_order_by_themselves():
    """The control of what uses several: work on the same memory needs an event, a wait or the CPU between."""
    found = played("ordered")
    assert "does not wait for what stream" in found.pop("reads, nothing")
    assert "overwrites what stream" in found.pop("overwrites, nothing")
    assert found.pop("its stream") == str([7.0] * 3)
    assert str([7.0] * 3) not in (found.pop("before"), found.pop("another stream"))
    assert set(found.values()) == {"nothing"}, found


def test_a_checkpoint_waits_for_every_device():
    """Copies from each device have arrived when the writing begins, not only those of the current one."""
    *before, first, second, (taken, needed) = played("staged")
    assert before == [[0.0] * 3] * 2, "the control: nothing has arrived by itself"
    assert [first, second] == [[1.0] * 3, [2.0] * 3]
    assert taken == 128
    assert needed == 128


def test_a_run_is_resumed():
    """From a checkpoint made on the device, or on the CPU: the bits of a run that never stopped."""
    whole, *others = played("resumed")
    assert others == [whole, whole]


def test_arrays_on_a_device_are_fetched_there():
    """A data set's arrays may lie on a device; loader processes, which could not read them, are refused."""
    found = played("loaded")
    assert [place for place, _ in found["fake:1"]] == ["fake:1"] * 2
    assert [values for _, values in found["fake:1"]] == [values for _, values in found["cpu"]]
    assert "loader processes cannot read arrays on fake:1" in found["processes"]
    assert "num_workers=0" in found["processes"]


@pytest.mark.parametrize("strategy", ["dp", "model_parallel"])
def test_every_device_draws_numbers_of_its_own(strategy):
    """Two devices of one process do not drop the same places."""
    (first, one), (second, two) = played("drawn")[strategy]
    assert (first, second) == ("fake:0", "fake:1")
    size = min(len(one), len(two))
    assert one[:size] != two[:size]


@pytest.mark.slow
def test_pushes_reach_a_server():
    """`ps_async`, whose ranks are processes: the CPU's bits on all, each on a device that each step waits for once."""
    for found in run_processes(device_programs.served, 3):
        assert (found["fake"][0], found["cpu"][0]) == ("fake", "cpu")
        assert (found["fake"][1], found["cpu"][1]) == ([1] * 6, [0] * 6)
        assert found["fake"][2:] == found["cpu"][2:]


@pytest.mark.slow
def test_slices_are_gathered_and_reduced_on_streams_that_wait_for_each_other():
    """`fsdp` on two processes, whose torch uses five streams: the bits of the CPU, and of `exact`; one wait a step."""
    for found in run_processes(device_programs.sharded, 2):
        assert (found["fake"][0], found["cpu"][0]) == ("fake", "cpu")
        assert (found["fake"][1], found["cpu"][1]) == ([1] * 6, [0] * 6)
        assert found["fake"][2:] == found["cpu"][2:] == found["exact"][2:]


def test_rnns_draw_alike_in_stages():
    """Their dropout follows the run's seed, step and replica, though cuDNN has a state of its own for it."""
    whole, *others = played("recurrent")
    assert others == [whole] * 2


def test_a_devices_stream_is_put_back():
    """`capture` and `restore` hold the generator of the device, too."""
    first, again, later = played("drawn")["streams"]
    assert first == again
    assert later != again, "the control"


def test_a_resume_compares_what_decides_a_devices_bits():
    """The number of multiprocessors, from which torch's random kernels choose their grid; runs on a CPU have none."""
    count, drifted, is_on_cpu = played("described")
    assert (count, is_on_cpu) == (1, False)
    assert [line.partition(":")[0] for line in drifted] == ["device_facts"]


@pytest.mark.slow
def test_ranks_find_out_whether_they_share_a_gpu():
    """By what they tell each other, whatever was allowed: NCCL takes no card twice, nor two parts of one."""
    for found in run_processes(device_programs.met, 2):
        assert found["one each"] == [[False], False]
        assert found["one each, may share"] == [[False], False], "nobody shares: no detour through the host"
        assert found["two parts of one"] == [[True], True]
        assert found["one for both, may share"] == [[True], True]
        assert "have the same GPU" in found["one for both"]
        assert found["workspaces"] == [":4096:8", *[":16:8"] * 4], "of cuBLAS: set, unless the user has"


def test_time_is_that_of_the_device():
    """Where a kernel takes a millisecond: between two instants, read after a wait; a pipeline's busy time, too."""
    found = played("timed")
    assert "have been reached" in found["before"]
    assert found["after"] == 0.005
    assert found["busy_ms"] > 10
    assert found["busy_ms"] == pytest.approx(round(found["busy_ms"]), abs=1e-6), "kernels, not the CPU's clock"


def test_limits_of_the_device():
    """More devices than there are, for strategies that take several; the memory that a run has had on one."""
    found = played("limits")
    assert found["dp"] == "expected devices <= 4, got 9. Hint: --devices 4."
    assert "expected GPUs 0 to 8 for this process, got 4 GPUs" in found["model_parallel"]
    assert found["memory"] == [3.0]


def test_a_torch_for_rocm_is_refused(monkeypatch):
    """It calls its GPUs cuda, too."""
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(ConfigError, match=r"was built for ROCm.*device='cpu'"):
        named("cuda")
    assert named("cpu").type == "cpu"


def test_large_tensors_are_not_joined_on_the_device():
    """What is brought to the CPU takes no second place there, comes whole, and with one wait."""
    found = played("large")
    assert found == {"bytes": 3 * 4, "waits": 1, "equal": [True] * 4}


@pytest.mark.parametrize(
    ("source", "reached"),
    [
        ("if is_gpu(d):\n  a()\nelse:\n  b()", ["a()"]), ("if not is_gpu(d):\n  return\na()", ["a()"]),
        ("if d.type == 'cpu' and x:\n  a()\nelse:\n  b()", []),
        ("if d.type == 'cpu' or x:\n  a()\nelse:\n  b()", ["b()"]),
        ("if reads is None:\n  a()\nelse:\n  b()", ["b()"]), ("if 'nccl' in b:\n  a()", ["a()"]), ("if x:\n  a()", []),
        ("if asked == 'cpu':\n  return\na()", []),
        ("for module in BUILT:\n  a()", ["a()"]), ("try:\n  a()\nexcept OutOfMemoryError:\n  b()", ["b()"]),
    ],
)  # fmt: skip
def test_what_only_a_gpu_reaches_is_found(source, reached):
    """By the conditions before it."""
    body = "\n".join(f"  {line}" for line in source.splitlines())
    assert [each.text for each in device_lines.statements("a.py", f"def f():\n{body}")] == reached


def test_the_list_of_what_no_test_has_run_is_that_of_today():
    """Each statement is where docs/design/gpu-lines.md says, but for a few lines; none was added that it does not know.

    After a change: make gpu-lines.
    """
    unrun, counts = device_lines.told(device_lines.PAGE.read_text())
    there = device_lines.all_statements()
    places = {(each.file, each.function, each.text): each.line for each in there}
    assert unrun
    for one in unrun:
        assert abs(places[one.file, one.function, one.text] - one.line) < 40, one
    assert {file: number for file, (number, _) in counts.items()} == Counter(each.file for each in there)
    assert {file: missing for file, (_, missing) in counts.items() if missing} == Counter(one.file for one in unrun)


def test_programs_run_apart():
    """The device is registered with torch for good, so never in this process."""
    assert not hasattr(torch, "fake")
