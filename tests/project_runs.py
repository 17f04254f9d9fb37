"""`mlflow run` of this project, as a user types it."""

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent


def mlflow_run(folder, *options, **parameters):
    """Run an entry point from `folder`, with no environment manager on the path."""
    given = [f"-P{name}={value}" for name, value in parameters.items()]
    return subprocess.run(
        [sys.executable, "-m", "mlflow", "run", str(PROJECT), *options, *given],
        cwd=folder,
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"]),
            "MLPROJECT_RECORDS": str(folder / "records"),
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
