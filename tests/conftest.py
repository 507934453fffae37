"""Settings of the whole suite."""

from hypothesis import settings

# The same cases each time, so that a failure belongs to the change and not to luck; the other profile looks for new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("explore", derandomize=False, max_examples=2000)
settings.load_profile("same")
