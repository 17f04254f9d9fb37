"""One configuration: what a person asks to be measured, and where its machines meet."""

from bench.config.run_config import (
    FAKEDATA,
    FILING_FIELDS,
    MEANT_BEFORE,
    SYNTHETIC,
    RunConfig,
    Switch,
    parse_config,
)

__all__ = [
    "FAKEDATA",
    "FILING_FIELDS",
    "MEANT_BEFORE",
    "SYNTHETIC",
    "RunConfig",
    "Switch",
    "parse_config",
]
