"""Real launches."""

from launched_scripts import alive, note, place

__all__ = ["alive", "note", "place"]
