"""Rooflines: of runs, of one step's ops, of its kernels; a scene first, and two renderers."""
