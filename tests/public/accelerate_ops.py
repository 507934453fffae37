"""accelerate's own ``test_ops.py``, in a world of CPUs: by itself it forms none without an accelerator."""

from accelerate import PartialState
from accelerate.test_utils.scripts import test_ops

if __name__ == "__main__":
    PartialState(cpu=True)  # every later one is the same
    test_ops.main()
