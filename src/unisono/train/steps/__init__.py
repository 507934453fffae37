"""The steps of a run: a batch is handed out, computed, reduced, applied and recorded; who takes part in it."""
