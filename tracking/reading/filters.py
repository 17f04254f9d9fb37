"""MLflow search filters for the runs that this project tracks."""

from __future__ import annotations

from bench.errors import UserError
from tracking import schema


def runs_filter(
    filter_string: str = "", campaign: str | None = None, *, kind: str | None = None
) -> str:
    """Return the filter for runs of `kind` and `campaign` that also match `filter_string`.

    MLflow joins conditions with AND alone, so they are simply strung together. Raises `UserError`
    for a campaign that no run can carry, since a quote in it would end the filter's string.
    """
    conditions = [] if kind is None else [f"tags.`{schema.KIND}` = '{kind}'"]
    if campaign is not None:
        if not campaign or set("'\"`\\") & set(campaign):
            raise UserError(f"campaign={campaign!r}: use the label given to mlproject run")
        conditions.append(f"tags.`{schema.CAMPAIGN}` = '{campaign}'")
    if filter_string.strip():
        conditions.append(filter_string.strip())
    return " and ".join(conditions)


CEILINGS_FILTER = runs_filter(kind="ceilings")
PROFILES_FILTER = runs_filter(kind="profile")
