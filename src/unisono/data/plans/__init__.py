"""Which sample stands at which place of an epoch: orders beside the plain permutation (pure, NumPy only)."""
