"""Whether a shorter way than torch's own, to the same bits, may be gone: while a run is open."""

from typing import final


@final
class Shortcut:
    """One such way; closed until a run opens it."""

    is_open = False

    def open(self) -> None:
        """Let it be gone."""
        self.is_open = True

    def close(self) -> None:
        """Let torch's own way be gone."""
        self.is_open = False
