"""The program around a call: into how many names it unpacks the result."""

import dis
import sys


def check_unpacked(name: str, most: int, hint: str, *, depth: int = 2) -> None:
    """Refuse a line such as ``model, optimizer, scheduler = run.prepare(...)``, which takes too many.

    Args:
        name: Of the function, for the message.
        most: How many things it returns.
        hint: The line to write.
        depth: Of the program's frame above this one: 1 calls this function.

    Raises:
        TypeError: It takes more.
    """
    frame = sys._getframe(depth)
    following = (one for one in dis.get_instructions(frame.f_code) if one.offset > frame.f_lasti)
    one = next(following, None)
    if one is not None and one.opname == "UNPACK_SEQUENCE" and (one.arg or 0) > most:
        raise TypeError(f"{name} returns {most} things, and this line takes {one.arg}. Hint: {hint}")
