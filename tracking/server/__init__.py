"""The shared tracking server: MLflow on Postgres, behind a proxy; `docs/server.md`.

Runs where mlproject itself is not installed: the standard library and the packages of MLflow's
server alone.
"""
