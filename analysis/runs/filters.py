"""MLflow search filters for the kinds of runs that this project tracks."""

from __future__ import annotations

from bench.errors import UserError
from tracking import schema

CEILINGS_FILTER = f"tags.`{schema.KIND}` = 'ceilings'"
PROFILES_FILTER = f"tags.`{schema.KIND}` = 'profile'"


def measurement_filter(filter_string: str = "", campaign: str | None = None) -> str:
    """Return the filter for measurements that also match `filter_string` and `campaign`.

    MLflow joins conditions with AND alone, so they are simply strung together. Raises `UserError`
    for a campaign that no run can carry, since a quote in it would end the filter's string.
    """
    return _of_kind("measurement", filter_string, campaign)


def imported_filter(filter_string: str = "", campaign: str | None = None) -> str:
    """Return the filter for imported runs that also match; raises as `measurement_filter`."""
    return _of_kind("imported", filter_string, campaign)


def _of_kind(kind: str, filter_string: str, campaign: str | None) -> str:
    conditions = [f"tags.`{schema.KIND}` = '{kind}'"]
    if campaign is not None:
        if not campaign or set("'\"`\\") & set(campaign):
            raise UserError(f"campaign={campaign!r}: use the label given to mlproject run")
        conditions.append(f"tags.`{schema.CAMPAIGN}` = '{campaign}'")
    if filter_string.strip():
        conditions.append(filter_string.strip())
    return " and ".join(conditions)
