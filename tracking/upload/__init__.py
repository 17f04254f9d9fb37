"""From records, and runs of another server, to tracked runs; each once."""
