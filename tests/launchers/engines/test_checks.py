"""What several engines refuse alike."""

import pytest

from unisono.errors import ConfigError
from unisono.launchers.engines.checks import check_gpus, check_variables


def test_each_worker_needs_a_gpu_where_there_are_any():
    """None at all is fine; fewer than workers is not, and the message names node or pod."""
    check_gpus(0, 8, "node")
    check_gpus(8, 8, "node")
    with pytest.raises(ConfigError, match="each of the 4 workers of a pod, got 2"):
        check_gpus(2, 4, "pod")


def test_names_of_variables():
    """As a shell takes them."""
    check_variables(["A", "_b1", "PATH"])
    for name in ("", "1A", "A-B", "A=B", "A B"):
        with pytest.raises(ConfigError, match="expected --env NAME=VALUE"):
            check_variables(["A", name])
