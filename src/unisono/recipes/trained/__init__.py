"""From training to use: what a run's model needs beside its weights, loading it, and handing it to others."""
