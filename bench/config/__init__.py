"""One configuration: what a person asks to be measured, and what it became on its device."""

from bench.config.model_names import (
    arch_label,
    missing_package,
    package_of,
    split_arch,
    user_path,
    without_home,
)
from bench.config.resolved import (
    ENERGY,
    THROUGHPUT,
    ResolvedConfig,
    Sample,
    a_sample,
    column_noun,
    common_sample,
    cost_metric,
    energy_metric,
    legacy_defaults,
    own_metric,
    rate_column,
    rate_metric,
    rate_unit,
)
from bench.config.run_config import (
    FAKEDATA,
    FILING_FIELDS,
    SYNTHETIC,
    WINDOW_FIELDS,
    RunConfig,
    Switch,
    allowed_values,
    check_field,
    parse_config,
    recorded_config,
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
