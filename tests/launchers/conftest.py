"""Real launches, see `places`."""

from places import alive, note, place

__all__ = ["alive", "note", "place"]
