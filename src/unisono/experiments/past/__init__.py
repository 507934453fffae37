"""What is computed again of runs that are over: steps, and audits of whole runs."""
