"""What verbs print, and how they end."""
