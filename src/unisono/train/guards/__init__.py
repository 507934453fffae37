"""What a run refuses or warns of: habits and settings that would not mean what they seem to."""
