"""Strategies are found by name, with options as typed; wrong ones say what to write."""

import subprocess
import sys

import pytest

import unisono
from unisono.errors import ConfigError
from unisono.strategies.catalog import CATALOG, all_options, find, resolve
from unisono.strategies.options import DDPOptions, ExactOptions


def test_the_catalog_is_pinned():
    """These names are a promise."""
    assert list(CATALOG) == [
        "exact", "ddp", "allreduce", "ps", "ps_async", "dp", "balanced_dp", "fsdp", "model_parallel", "pipeline",
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "typed", "meant"), [
    ("ddp", {"find_unused_parameters": "true", "bucket_cap_mb": "2.5", "powersgd_rank": "3"},
     {"find_unused_parameters": True, "bucket_cap_mb": 2.5, "powersgd_rank": 3}),
    ("exact", {"shares": "1,2,2"}, {"shares": (1.0, 2.0, 2.0)}),
    ("fsdp", {"wrap": "Linear,Conv2d"}, {"wrap": ("Linear", "Conv2d")}),
    ("allreduce", {"algorithm": "tree"}, {"algorithm": "tree"}),
])  # fmt: skip
def test_options_as_typed_are_read_as_their_types(name, typed, meant):
    """Text from the command line and values from Python give the same options."""
    assert find(name, typed) == find(name, meant)
    assert all(getattr(find(name, typed), key) == value for key, value in meant.items())


@pytest.mark.parametrize(("name", "given", "message"), [
    ("dpp", {}, "did you mean 'ddp' or 'dp'"),
    ("ddp", {"servers": 2}, r"ddp has no option 'servers'.*It is an option of ps, ps_async"),
    ("exact", {"devices": "2"}, r"exact has no option 'devices'. Hint: -n 2 \(workers=\) for so many processes"),
    ("ddp", {"bucket_cap_mb": "big"}, "expected bucket_cap_mb as a number of MiB from 0.001 to 1,048,576, got 'big'"),
    ("ddp", {"static_graph": "perhaps"}, "static_graph"),
    ("allreduce", {"algorithm": "star"}, "expected algorithm to be one of ring, tree, .*, got 'star'"),
    ("allreduce", {"sync_every": 0}, "sync_every as a whole number of steps from 1 to .*, got 0"),
    ("exact", {"shares": "1,x"}, "shares"),
])  # fmt: skip
def test_wrong_names_and_values_are_refused(name, given, message):
    """With what there is instead."""
    with pytest.raises(ConfigError, match=message):
        find(name, given)


def test_torch_s_own_names():
    """broadcast_buffers is understood; what a run says elsewhere is told where."""
    assert unisono.strategy("ddp", broadcast_buffers=False) == unisono.strategy("ddp", forward_sync_buffers=False)
    assert unisono.strategy("ddp", broadcast_buffers=True) == unisono.strategy("ddp")
    assert unisono.strategy("ddp", broadcast_buffers=False) != unisono.strategy("ddp")
    with pytest.raises(ConfigError, match="broadcast_buffers is another name of forward_sync_buffers"):
        unisono.strategy("ddp", forward_sync_buffers=True, broadcast_buffers=False)
    with pytest.raises(ConfigError, match=r"no option 'device_ids'. Hint: the run places the model: Run\(device="):
        unisono.strategy("ddp", device_ids=[0])
    with pytest.raises(ConfigError, match="strategy exact has no option 'broadcast_buffers'"):
        unisono.strategy("exact", broadcast_buffers=False)


def test_a_run_takes_names_and_options_and_nothing_else():
    """A class of torch is not a strategy."""
    assert resolve("exact") == ExactOptions() == resolve(ExactOptions())
    assert unisono.strategy("ddp", static_graph=True) == DDPOptions(static_graph=True)
    with pytest.raises(ConfigError, match=r"as unisono.strategy\(name, ...\), got type"):
        resolve(dict)
    with pytest.raises(ConfigError, match="accumulate 3 on 2 processes means 6 replicas, got 4"):
        unisono.strategy("ddp", accumulate=3).place(4, 2)


def test_shares_are_no_part_of_the_score_other_options_are():
    """Who computes what changes no bit of exact; DDP's bucket size may."""
    assert find("exact", {"shares": (1, 2)}).score() == find("exact").score()
    assert find("ddp", {"bucket_cap_mb": 1}).score() != find("ddp").score()
    assert find("fsdp", {"wrap": ("Linear",)}).score() == find("fsdp").score()


def test_every_option_explains_itself_and_loads_no_torch():
    """Help for each, and the command line pays nothing."""
    assert all(item.help.endswith(".") for _, item in all_options().values())
    code = "import sys, unisono.strategies.catalog as c; c.find('ps').place(3, 4); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
