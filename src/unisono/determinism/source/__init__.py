"""What the source of a program, or its compiled code, says of the steps of a run."""
