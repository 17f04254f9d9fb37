"""Records to and from an MLflow tracking server; the only package that imports mlflow.

`from tracking import log_record` uploads a record from Python; MLflow is imported with it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracking.connection import TrackingError
    from tracking.upload.upload import log_record

__all__ = ["TrackingError", "log_record"]
_MODULES = {"TrackingError": "tracking.connection", "log_record": "tracking.upload.upload"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
