"""Tracked runs: pulled as records and as tables; what is given back to them."""
