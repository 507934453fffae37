"""How gradients move: `exact`, the default, whose bits do not depend on the number of ranks."""
