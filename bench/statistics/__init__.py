"""The one floor of statistics; `docs/statistics.md` says why its intervals hold."""
