"""What runs inside a worker before and around the program, and the variables it finds."""
