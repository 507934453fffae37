"""Experiments: what the verbs that run a job several times do, callable from Python."""
