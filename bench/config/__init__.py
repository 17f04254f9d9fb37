"""One configuration: what a person asks to be measured, and what it became on its device."""

from bench.config.legacy import legacy_defaults
from bench.config.resolved import ResolvedConfig
from bench.config.run_config import (
    FAKEDATA,
    FILING_FIELDS,
    SYNTHETIC,
    WINDOW_FIELDS,
    RunConfig,
    Switch,
    allowed_values,
    parse_config,
    run_options,
    spelled,
)
from bench.config.time_limits import (
    MIN_ITERATIONS,
    TimeLimits,
    captures_graphs,
    max_seconds_on,
    rounded_s,
)

__all__ = [
    "FAKEDATA",
    "FILING_FIELDS",
    "MIN_ITERATIONS",
    "SYNTHETIC",
    "WINDOW_FIELDS",
    "ResolvedConfig",
    "RunConfig",
    "Switch",
    "TimeLimits",
    "allowed_values",
    "captures_graphs",
    "legacy_defaults",
    "max_seconds_on",
    "parse_config",
    "rounded_s",
    "run_options",
    "spelled",
]
