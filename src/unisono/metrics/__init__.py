"""Metrics whose value does not depend on how many ranks computed them: exact sums of counts and values."""
