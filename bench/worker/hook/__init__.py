"""The folder that `mlproject watch` puts in front of a script's PYTHONPATH."""
