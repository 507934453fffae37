"""The program around a call: into how many names it unpacks the result."""

import dis
import sys


def count_names(depth: int) -> int:
    """Return how many names a line such as ``model, optimizer = run.prepare(...)`` takes, 0 where it unpacks nothing.

    Args:
        depth: Of the program's frame above this one: 1 calls this function.

    Raises:
        TypeError: There are more than three.
    """
    frame = sys._getframe(depth)
    following = (one for one in dis.get_instructions(frame.f_code) if one.offset > frame.f_lasti)
    one = next(following, None)
    taken = (one.arg or 0) if one is not None and one.opname == "UNPACK_SEQUENCE" else 0
    if taken > 3:
        raise TypeError(
            f"run.prepare() returns at most three things, and this line takes {taken}. "
            "Hint: model, optimizer, scheduler = run.prepare(model, optimizer, scheduler); data goes into run.loader()."
        )
    return taken
