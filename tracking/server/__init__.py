"""The shared tracking server: MLflow on Postgres, behind a proxy; `docs/server.md`.

Runs where mlproject itself is not installed: standard library, click, requests and the MLflow
server's own packages alone.
"""
