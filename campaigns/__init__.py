"""What composes measurements: sweeps over a matrix, tuning, and a whole device."""
