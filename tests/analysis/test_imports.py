"""Analysis stays light: no torch, and no window system behind the figures."""

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]

IMPORT_ALL = """
import importlib, pkgutil, sys
import analysis
names = [module.name for module in pkgutil.walk_packages(analysis.__path__, "analysis.")]
for name in names:
    importlib.import_module(name)
print(len(names), *sorted({name.split(".")[0] for name in sys.modules}))
print("matplotlib.pyplot" in sys.modules)
"""


def test_no_module_of_analysis_imports_torch_or_mlflow():
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    modules, pyplot = done.stdout.splitlines()
    assert int(modules.split()[0]) > 20
    assert not {"torch", "torchvision", "mlflow"} & set(modules.split())
    assert pyplot == "False"
