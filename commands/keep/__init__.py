"""Subcommands that keep data, records and the machine in order."""
