"""The tables of a report: typed rows, one module per subject."""
