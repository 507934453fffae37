"""Metrics whose value does not depend on how many ranks computed them: exact sums of counts and values."""


def __getattr__(name: str) -> object:
    hint = f". Hint: unisono.{name}" if name in {"Accuracy", "Mean", "Metric"} else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
