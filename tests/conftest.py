"""Settings of the whole suite."""

import os

from hypothesis import HealthCheck, Phase, settings

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
