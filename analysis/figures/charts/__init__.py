"""Charts of runs: over batch size, in rows, in the order of iterations."""
