"""Samples/s of what was not measured: another batch size, or another device."""
