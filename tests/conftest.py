"""Settings of the whole suite."""

from hypothesis import settings

# The same cases each time: a failure belongs to the change, not to luck. The other profile looks for new cases.
settings.register_profile("same", derandomize=True)
settings.register_profile("explore", derandomize=False, max_examples=2000)
settings.load_profile("same")
