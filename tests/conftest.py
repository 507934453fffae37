"""Settings of the whole suite."""

from hypothesis import settings

# The same cases each time: a failure belongs to the change, not to luck. The other profile looks for new cases.
# No deadlines: how long a case takes says how busy the machine is.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None, max_examples=2000)
settings.load_profile("same")
