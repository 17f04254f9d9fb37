"""What a tuning leaves: tables and a figure in a folder, and the same as a tracked run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import UserError

if TYPE_CHECKING:
    from analysis.tuning.tuning import Place
    from campaigns.tune import TuneResult


def write_files(result: TuneResult, place: Place, out: Path) -> None:
    """Write tuning.md, tuning.json, and the figure as PNG and SVG.

    Raises `UserError` where `out` cannot be written.
    """
    from analysis.figures import save_figure
    from analysis.tuning.account import tuning_facts, tuning_markdown
    from analysis.tuning.tuning_figure import tuning_figure

    facts = json.dumps(tuning_facts(result, place), indent=1, allow_nan=False)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "tuning.md").write_text(tuning_markdown(result, place), encoding="utf-8")
        (out / "tuning.json").write_text(f"{facts}\n", encoding="utf-8")
        save_figure(tuning_figure(result), out, "tuning")
    except OSError as error:
        raise UserError(
            f"out={str(out)!r}: cannot write there ({error.strerror}); choose another folder: "
            "no trial is lost, the same command goes on from here"
        ) from None


def log_files(result: TuneResult, place: Place, out: Path, run_id: str | None) -> str | None:
    """Log the files as a run of their own, or as `run_id`; return why not, or None."""
    from analysis.tuning.tuning import best_command, roof_line, verdict_line
    from tracking import schema
    from tracking.store import TrackingError
    from tracking.upload.report_run import log_report

    campaign = result.start.campaign
    lines = (f"`{best_command(result)}`", verdict_line(result), roof_line(place))
    tags = {schema.KIND: "tune", schema.CAMPAIGN: campaign, schema.NOTE: "\n\n".join(lines)}
    try:
        log_report(out, name=f"{campaign}_tune", tags=tags, run_id=run_id)
    except TrackingError as error:
        return str(error)
    return None
