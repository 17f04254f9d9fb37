"""The report as PDF, printed from its HTML by a browser or by WeasyPrint, where one is there."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.errors import UserError

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "msedge",
)
_LIMIT_S = 180


def print_pdf(html: Path) -> Path:
    """Print `html` to a PDF of the same name beside it, and return its path.

    Raises `UserError` where no tool is installed, or where it makes no PDF.
    """
    pdf = html.with_suffix(".pdf")
    with tempfile.TemporaryDirectory() as profile:
        command = _command(html, pdf, profile)
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise UserError(
                f"pdf: {command[0]} took over {_LIMIT_S} s; try without --pdf"
            ) from None
    if done.returncode or not pdf.is_file():
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UserError(f"pdf: {command[0]} made none ({last}); try without --pdf")
    return pdf


def _command(html: Path, pdf: Path, profile: str) -> Sequence[str]:
    for name in BROWSERS:
        if browser := shutil.which(name):
            return [
                browser,
                "--headless",
                "--disable-gpu",
                "--no-sandbox",  # our own file, without network; root in a container has none
                "--no-pdf-header-footer",
                f"--user-data-dir={profile}",
                f"--print-to-pdf={pdf.resolve()}",
                html.resolve().as_uri(),
            ]
    if tool := shutil.which("weasyprint"):
        return [tool, str(html), str(pdf)]
    raise UserError(
        "pdf: neither Chromium, Chrome, Edge nor WeasyPrint is installed; install one of them, "
        "or print report.html from any browser"
    )
