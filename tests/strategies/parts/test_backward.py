"""What is said of a user's model that failed in its forward or backward pass."""

from pathlib import Path

import torch

from unisono.strategies.base import Micro
from unisono.strategies.parts.backward import explain


def test_what_fsdp_cannot_is_explained():
    """A loss that differentiates twice meets weights that torch's FSDP has freed: the way out is said."""
    for text, is_meant in (("setStorage: sizes [4] are out of bounds for storage of size 0", True), ("other", False)):
        error = RuntimeError(text)
        explain(error, 1, Micro(replica=0, num_samples=1, data=None), 1)
        assert any("needs another strategy, exact" in note for note in error.__notes__) == is_meant


def test_too_many_shapes_for_the_compiler_are_explained():
    """What to write is said beside torch's error, known by its name: nobody imports the compiler."""
    source = Path(torch.__file__).with_name("_dynamo") / "exc.py"
    for name, is_meant in (("FailOnRecompileLimitHit", True), ("Other", False)):
        assert (f"class {name}(" in source.read_text()) == is_meant
        error = type(name, (Exception,), {})("Hard failure due to fail_on_recompile_limit_hit")
        explain(error, 1, Micro(replica=0, num_samples=1, data=None), 1)
        assert any("torch.compile(model, dynamic=True)" in note for note in error.__notes__) == is_meant
