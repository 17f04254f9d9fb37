"""Measures one configuration and leaves a record on disk; knows nothing of MLflow."""
