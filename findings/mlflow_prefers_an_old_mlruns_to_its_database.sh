#!/usr/bin/env bash
# package: mlflow
# version: 3.17.2
# expected: where mlflow.db is in the working folder, as this version makes it, that is the store
# guess: mlflow.db, whatever else lies there
# seen: one mlruns/ID/meta.yaml beside mlflow.db, as an older MLflow left it or as somebody copied
#   it there, makes file:mlruns the default store; the runs in mlflow.db are not found any more.
#   And that store is refused ("maintenance mode"). Without meta.yaml mlruns changes nothing.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "mlflow==3.17.2"
unset MLFLOW_TRACKING_URI
mkdir -p "$folder/here/mlruns/0/run/artifacts"
cd "$folder/here"
cat >store.py <<'END'
import mlflow

print(mlflow.get_tracking_uri().partition(":")[0])
END
python="$folder/venv/bin/python"
"$python" -c 'import mlflow; mlflow.MlflowClient().create_experiment("mine")' 2>"$folder/log"
alone=$("$python" store.py)
touch mlruns/0/meta.yaml
beside=$("$python" store.py)
refused=$("$python" -c 'import mlflow; mlflow.MlflowClient().search_experiments()' 2>&1 |
    grep -c "maintenance mode" || true)
echo "with artifacts alone: $alone; with meta.yaml: $beside; refused: $refused"
[ "$alone" = sqlite ] && [ "$beside" = file ] && [ "$refused" -gt 0 ]
