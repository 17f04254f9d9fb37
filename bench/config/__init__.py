"""One configuration: what a person asks to be measured, and what it became on its device."""

from bench.config.resolved import ResolvedConfig, legacy_defaults
from bench.config.run_config import (
    AUTO_MAX_SECONDS,
    FAKEDATA,
    FILING_FIELDS,
    SYNTHETIC,
    WINDOW_FIELDS,
    RunConfig,
    Switch,
    parse_config,
    run_options,
    spelled,
)

__all__ = [
    "AUTO_MAX_SECONDS",
    "FAKEDATA",
    "FILING_FIELDS",
    "SYNTHETIC",
    "WINDOW_FIELDS",
    "ResolvedConfig",
    "RunConfig",
    "Switch",
    "legacy_defaults",
    "parse_config",
    "run_options",
    "spelled",
]
