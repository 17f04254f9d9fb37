"""A report of measurements: Markdown, one self-contained HTML file, figures and tables.

What writes it is imported when it is first used: sentences and tables of traces need none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.report.write import print_pdf, write_report

__all__ = ["print_pdf", "write_report"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("analysis.report.write"), name)
