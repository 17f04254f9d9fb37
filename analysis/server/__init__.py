"""Tracked runs: search, records, one numbering of machines, places under roofs, tables."""
