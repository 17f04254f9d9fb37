"""One configuration: what a person asks to be measured, and what it became on its device."""

from bench.config.architectures import arch_label, missing_package, package_of, split_arch
from bench.config.legacy import legacy_defaults
from bench.config.package_sources import user_path
from bench.config.parsing import check_field, parse_config, recorded_config
from bench.config.resolved import ResolvedConfig
from bench.config.run_config import (
    FAKEDATA,
    FILING_FIELDS,
    SYNTHETIC,
    WINDOW_FIELDS,
    RunConfig,
    Switch,
)
from bench.config.samples import (
    ENERGY,
    THROUGHPUT,
    Sample,
    a_sample,
    column_noun,
    common_sample,
    cost_metric,
    energy_metric,
    own_metric,
    rate_column,
    rate_metric,
    rate_unit,
)
from bench.config.spelling import allowed_values, run_options, spelled
from bench.config.time_limits import (
    MIN_ITERATIONS,
    TimeLimits,
    captures_graphs,
    max_seconds_on,
    rounded_s,
)

__all__ = [
    "ENERGY",
    "FAKEDATA",
    "FILING_FIELDS",
    "MIN_ITERATIONS",
    "SYNTHETIC",
    "THROUGHPUT",
    "WINDOW_FIELDS",
    "ResolvedConfig",
    "RunConfig",
    "Sample",
    "Switch",
    "TimeLimits",
    "a_sample",
    "allowed_values",
    "arch_label",
    "captures_graphs",
    "check_field",
    "column_noun",
    "common_sample",
    "cost_metric",
    "energy_metric",
    "legacy_defaults",
    "max_seconds_on",
    "missing_package",
    "own_metric",
    "package_of",
    "parse_config",
    "rate_column",
    "rate_metric",
    "rate_unit",
    "recorded_config",
    "rounded_s",
    "run_options",
    "spelled",
    "split_arch",
    "user_path",
]
