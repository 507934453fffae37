"""What is no share of the steps, and who has no witness, is refused before the ranks meet."""

import pytest

import unisono
from ranks import run_threads
from unisono.errors import ConfigError
from unisono.launchers.spec import LaunchSpec, ModuleTarget
from unisono.launchers.worker.environment import worker_environment
from unisono.nodes.start import start

MODULE = ModuleTarget(name="platform")


@pytest.mark.parametrize(
    ("witness", "how", "says"),
    [
        (2, {}, "expected witness as a number from 0 to 1, got 2"),
        (-0.1, {}, "expected witness as a number from 0 to 1, got -0.1"),
        (0.5, {"strategy": "allreduce"}, "with strategy exact alone, got strategy allreduce"),
        (0.5, {"strategy": unisono.strategy("exact", island_steps=2, islands=2)}, "got island_steps"),
    ],
)
def test_what_is_no_share(witness, how, says):
    """Out of bounds, or with a strategy whose bits are each rank's own."""

    def program(transport):
        with pytest.raises(ConfigError, match=says):
            unisono.Run(replicas=2, transport=transport, witness=witness, **how)

    run_threads(program, 2)


def test_one_worker_has_no_witness():
    """In Python and before a launch, with the fix; a launch that goes on with one worker goes on without."""
    with pytest.raises(ConfigError, match=r"there is 1 worker\. Hint: -n 2 notices"):
        unisono.Run(replicas=2, witness=0.5)
    spec = LaunchSpec(target=MODULE, workers=1, witness=0.5)
    with pytest.raises(ConfigError, match="there is 1 worker"):
        start(spec, None)
    assert "UNISONO_WITNESS" not in worker_environment(spec, 0, "/d", 1, {})
    two = LaunchSpec(target=MODULE, workers=2, witness=0.5)
    assert worker_environment(two, 0, "/d", 1, {})["UNISONO_WITNESS"] == "0.5"
