"""One replica of a step is computed a second time, by another rank, and the bits are compared."""
