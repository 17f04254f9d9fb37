#!/usr/bin/env bash
# What a rented GPU machine does after `make setup`: see that PyTorch has the GPU, measure the
# machine's roofs, and sweep. Takes the words of `mlproject sweep`; ends with its exit code.
# MLPROJECT_RECORDS names the records folder, MLFLOW_TRACKING_URI the shared server, if any.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH="$PWD/.venv/bin:$PATH"

# a signal is for the program that runs: it writes its record, and only then does this one end
signalled=
trap 'signalled=yes' INT TERM

mlproject doctor || true
if ! python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    # auto would measure the processor instead, at a GPU machine's price
    echo "measure.sh: PyTorch finds no NVIDIA GPU here; the doctor's lines above say why" >&2
    exit 2
fi

track=()
[[ -n "${MLFLOW_TRACKING_URI:-}" ]] || track=(--no-track)

# the machine is gone when the report is written: without roofs now, there never are any
mlproject ceilings --backend cuda --if-missing "${track[@]}" ||
    echo "measure.sh: the roofs are not all measured, or not uploaded" >&2
[[ -z "$signalled" ]] || exit 130

code=0
mlproject sweep "${track[@]}" "$@" || code=$?
if ((code == 3)); then
    echo "measure.sh: once more, for what is not on the server yet" >&2
    if mlproject sync; then code=0; fi
fi
exit "$code"
