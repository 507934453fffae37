"""Settings of the whole suite, and what tests of several rooms begin with."""

import gc
import os
import signal
import sys

# Compiled files are kept, also where the environment forbids it: without them each of hundreds of processes compiles
# the sources again, and pytest rewrites every test. Before hypothesis, which pytest rewrites, too.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

import pytest  # noqa: E402
from hypothesis import HealthCheck, Phase, settings  # noqa: E402

# The tests' bits and numbers of ranks are those of the CPU; a test of GPUs makes its own visible.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

# The same cases each time: a failure belongs to the change, not to luck. The other profile looks for new cases.
# No deadlines: how long a case takes says how busy the machine is, also how long it takes to think of one.
UNHURRIED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", derandomize=True, **UNHURRIED)
settings.register_profile("explore", derandomize=False, max_examples=2000, **UNHURRIED)
# `make mutation`: that a test fails is the answer; the smallest case that fails is not asked for.
settings.register_profile("mutation", derandomize=True, phases=(Phase.explicit, Phase.generate), **UNHURRIED)
settings.load_profile("same")


def pytest_collection_finish():
    """What is loaded by now stays: the collector and guards that look at all objects need not look at it in each test.

    What a recipe would freeze in a test is left alone, in this process: a run left open would stay for ever, unseen.
    """
    gc.collect()
    gc.freeze()
    freeze, here = gc.freeze, os.getpid()
    gc.freeze = lambda: None if os.getpid() == here else freeze()


@pytest.fixture
def nothing_blocks():
    """A pipe that is waited for ends the test."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("blocked"))
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def switches_put_back():
    """Torch's switches are afterwards as they were."""
    import torch

    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = fill
