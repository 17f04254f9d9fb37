"""Subcommands that explain and compare what was measured."""
