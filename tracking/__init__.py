"""Records to and from an MLflow tracking server; the only package that imports mlflow."""
