"""Which GPU each rank computes on."""

import pytest

from gpus import pretend_gpus, told
from unisono.errors import ConfigError
from unisono.system.devices import (
    check_devices,
    choose_devices,
    device_variables,
    find_shared,
    own_index,
    visible_devices,
)

UUIDS = ("GPU-3f1a", "GPU-3f2b", "GPU-9c00")


@pytest.mark.parametrize(
    ("variable", "count", "visible"),
    [
        (None, 3, ("0", "1", "2")),
        ("", 3, ()),
        ("2,0", 3, ("2", "0")),
        (" 1 , 2 ", 3, ("1", "2")),
        ("1,7,2", 3, ("1",)),  # as CUDA does: the first unknown one ends the list
        ("-1", 3, ()),
        ("0,-1,1", 3, ("0",)),
        ("GPU-3f1a,GPU-9c00", 3, ("GPU-3f1a", "GPU-9c00")),
        ("0", 0, ()),
    ],
)
def test_the_variable_is_read_as_cuda_reads_it(variable, count, visible):
    """Order counts, an empty list hides all, and an unknown index hides what follows."""
    assert visible_devices(variable, count) == visible


@pytest.mark.parametrize(
    ("asked", "visible", "chosen"),
    [
        ("0,2", ("4", "5", "6"), ("4", "6")),
        ("2,0", ("4", "5", "6"), ("6", "4")),
        (" 1 ", ("4", "5", "6"), ("5",)),
        ("cpu", ("4", "5"), ()),
        ("GPU-9,0", UUIDS, ("GPU-9c00", "GPU-3f1a")),
    ],
)
def test_devices_are_indices_among_the_visible_ones_or_names(asked, visible, chosen):
    """As in ``cuda:0``: the first of CUDA_VISIBLE_DEVICES is 0."""
    assert choose_devices(asked, visible) == chosen


@pytest.mark.parametrize(
    ("asked", "visible", "why"),
    [
        ("3", ("4", "5", "6"), "is not there"),
        ("0,0", ("4", "5"), "asked for twice"),
        ("GPU-3f", UUIDS, "fits several"),
        ("GPU-3f1a,0", UUIDS, "asked for twice"),
        ("4", ("4",), "is not there"),  # the machine's number is not the index
        ("", ("0",), "is not there"),
        ("-1", ("0", "1"), "is not there"),
        ("all", ("0", "1"), "is not there"),
        ("0", (), "--gpus cpu"),
    ],
)
def test_wrong_devices_are_refused_with_what_there_is(asked, visible, why):
    """A GPU that is not there, twice the same, or a name that fits several."""
    with pytest.raises(ConfigError, match=why):
        choose_devices(asked, visible)
    with pytest.raises(ConfigError, match=r"expected --gpus with GPUs out of "):
        choose_devices(asked, visible)


def test_more_workers_than_gpus():
    """Refused with the ways out, unless they share; CPU workers are as many as one likes."""
    with pytest.raises(ConfigError, match=r"got 3 workers and 2 GPUs.*2 workers.*--share-devices.*--gpus cpu"):
        check_devices(3, ("0", "1"), share=False)
    check_devices(3, ("0", "1"), share=True)
    check_devices(2, ("0", "1"), share=False)
    check_devices(64, (), share=False)


def test_each_rank_finds_its_own_gpu():
    """What the launcher tells a rank and the index that the rank takes lead to the GPUs in turn."""
    devices = ("4", "6", "1")
    for workers, share in ((3, False), (2, False), (3, True), (7, True)):
        taken = []
        for rank in range(workers):
            told = device_variables(rank, devices, share=share)
            visible = visible_devices(told["CUDA_VISIBLE_DEVICES"], 8)
            index = own_index(rank, workers, len(visible), share="UNISONO_SHARE_DEVICES" in told)
            taken.append(visible[index])
        assert taken == [devices[rank % 3] for rank in range(workers)]


def test_without_sharing_the_local_rank_is_the_index():
    """So ``cuda:LOCAL_RANK`` of a script for torchrun is the rank's own GPU."""
    assert {device_variables(rank, ("4", "6"), share=False)["CUDA_VISIBLE_DEVICES"] for rank in range(2)} == {"4,6"}
    assert [own_index(rank, 2, 2, share=False) for rank in range(2)] == [0, 1]


def test_hidden_gpus():
    """No devices: the variable is empty, and the rank is on the CPU."""
    assert device_variables(1, (), share=False) == {"CUDA_VISIBLE_DEVICES": ""}
    assert own_index(1, 4, 0, share=False) is None


def test_a_single_visible_gpu_is_the_ranks_own():
    """Slurm and Ray show each rank its own GPU alone, as number 0."""
    assert [own_index(rank, 4, 1, share=False) for rank in range(4)] == [0, 0, 0, 0]


def test_several_gpus_but_fewer_than_ranks_are_refused_in_the_rank_too():
    """A rank of torchrun or mpirun finds it out by itself."""
    with pytest.raises(ConfigError, match="got 4 workers and 2 GPUs"):
        own_index(3, 4, 2, share=False)
    assert own_index(3, 4, 2, share=True) == 1


def test_ranks_with_one_gpu_are_named():
    """The first two with the same one; equal numbers on different hosts are different GPUs."""
    assert find_shared(["a/x", "a/y", "b/x"]) is None
    assert find_shared(["a/x", "b/x", "b/x"]) == "ranks 1 and 2 have the same GPU (b/x)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        (("-n2", "--devices", "0,2"), ["3,2", "3,2"]),
        (("-nauto", "--gpus", "2,0"), ["2,3", "2,3"]),  # as many as chosen
        (("-n3", "--devices", "0,2", "--share-devices"), ["3 1", "2 1", "3 1"]),
        (("-n2", "--devices", "cpu"), ["", ""]),
        (("-nauto",), ["3,1,2", "3,1,2", "3,1,2"]),  # as many as are visible; the user's own list stays
    ],
    ids=["chosen", "auto", "shared", "cpu", "all"],
)
def test_real_workers_are_told_their_gpus(place, options, ranks):
    """`unisono run` on a machine that seems to have four GPUs, of which three are visible: what each process finds."""
    place.env |= pretend_gpus(place.folder, 4, visible="3,1,2")
    result = place.run("", *options)
    assert result.returncode == 0, result.stderr
    assert told(place.folder) == ranks


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-n3", "--devices", "0,2"), "expected a GPU for each worker, got 3 workers and 2 GPUs. Hint: 2 workers; or"),
        (("-n1", "--devices", "3"), "out of 3 visible ones, got '3': '3' is not there. Hint: indices from 0 to 2"),
    ],
)
def test_no_worker_starts_with_wrong_gpus(place, options, words):
    """Code 2, said once, before any process."""
    place.env |= pretend_gpus(place.folder, 4, visible="3,1,2")
    result = place.run("", *options)
    assert result.returncode == 2
    assert result.stderr.count(words) == 1, result.stderr
    assert told(place.folder) == []


def test_an_index_of_any_length_is_one_that_is_not_there():
    """Python reads no number of more than 4,300 digits."""
    with pytest.raises(ConfigError, match="is not there"):
        choose_devices("9" * 5000, ["0", "1"])
    assert visible_devices(f"0,{'9' * 5000}", 2) == ("0",)


def test_parts_of_a_gpu_are_shown_one_to_a_rank():
    """CUDA shows a process one part (MIG) of a GPU at most: two ranks that saw both would compute on the first."""
    assert [device_variables(rank, ["MIG-a", "MIG-b"], share=False) for rank in (0, 1)] == [
        {"CUDA_VISIBLE_DEVICES": "MIG-a"}, {"CUDA_VISIBLE_DEVICES": "MIG-b"},
    ]  # fmt: skip
