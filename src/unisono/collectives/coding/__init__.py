"""Shorter messages of numbers: coded without loss, or of numbers that are rounded."""
