"""Every name that we write to MLflow, in one place, and the filters that find our runs by them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from bench.errors import UserError
from bench.records.metrics import MEAN_SERIES

if TYPE_CHECKING:
    from mlflow.entities import Run

KIND = "mlproject.kind"
CAMPAIGN = "mlproject.campaign"
CONFIG_ID = "mlproject.config_id"
#: Equal where steps ran with the same settings, whatever was asked for and however long.
STEP_ID = "mlproject.step_id"
#: Of a user's own model: the digest of its source, and the commit of its own repository.
CODE = "mlproject.code"
CODE_COMMIT = "mlproject.code_commit"
RECORD_ID = "mlproject.record_id"
#: On a profile: the record, and the run, of the measurement that it explains.
TIMED_RECORD_ID = "mlproject.timed_record_id"
TIMED_RUN_ID = "mlproject.timed_run_id"
ENV = "mlproject.env"
#: Equal for runs of one machine, device, driver and torch.
ENVIRONMENT_ID = "mlproject.environment_id"
DEVICE = "mlproject.device"
#: Tags `mlproject.<name>` of the machine and the software, to filter and group runs by.
MACHINE_FACTS = (
    "os",
    "kernel",
    "python",
    "torch",
    "torchvision",
    "cuda",
    "cudnn",
    "driver",
    "cpu_model",
    "device_memory_gb",
    "storage",
    "container",
    "cloud",
    "machine_type",
    "zone",
)
#: Why the window, and the warm-up, closed before all their iterations.
ENDED_EARLY = "mlproject.ended_early"
WARMUP_ENDED_EARLY = "mlproject.warmup_ended_early"
#: What the times of the window do: flat, settles, slows down, never steady, unproven.
WINDOW_CLASS = "mlproject.window_class"
VERDICT = "mlproject.verdict"
#: What the verdict rests on, as `level: message; level: message`.
FINDINGS = "mlproject.findings"
OUTCOME = "mlproject.outcome"
#: Where a run stands under its roof, which may be measured after it: what holds it back, the
#: verdict with what the roof shows, and the roof: its source, and the record that measured it.
BOUND = "mlproject.bound"
VERDICT_UNDER_ROOF = "mlproject.verdict_under_roof"
ROOF = "mlproject.roof"
ROOF_RECORD_ID = "mlproject.roof_record_id"
#: The price of an hour behind a cost, with its currency, date and source.
PRICE = "mlproject.price"
REASON = "mlproject.reason"
#: Set last: a run that carries it holds the whole record.
UPLOADED = "mlproject.uploaded"
#: When that was, by the uploader's clock, as text that sorts: what came after it is looked for.
UPLOADED_AT = "mlproject.uploaded_at"
#: Tells whether a run's metrics and tags are still those of its record: `content.figures_digest`.
FIGURES = "mlproject.figures"
#: On a run of a level that is worse and meant: who accepted it, and why.
ACCEPTED = "mlproject.accepted"
#: Tags that no record has: what an upload, a report or a profile's upload adds to a run.
BESIDE_RECORD = frozenset(
    (
        UPLOADED,
        UPLOADED_AT,
        TIMED_RUN_ID,
        BOUND,
        VERDICT_UNDER_ROOF,
        ROOF,
        ROOF_RECORD_ID,
        PRICE,
        ACCEPTED,
    )
)
#: How such metrics begin.
METRICS_BESIDE_RECORD = ("fraction_of_", "cost_per_million_", "account_")
#: On a run whose numbers another program measured: true, and where they were read.
IMPORTED = "mlproject.imported"
SOURCE_FILE = "mlproject.source_file"
SOURCE_SHA256 = "mlproject.source_sha256"
SOURCE_LINE = "mlproject.source_line"
SOURCE_FORMAT = "mlproject.source_format"
#: On a run of kind `baseline`: its name, and what was named when it was set.
BASELINE = "mlproject.baseline"
SIDE = "mlproject.baseline_side"
NOTE = "mlflow.note.content"
RUN_NAME = "mlflow.runName"
GIT_COMMIT = "mlflow.source.git.commit"
#: Who measured or uploaded it; MLflow's pages call it "Created by".
USER = "mlflow.user"

#: On a deleted run that only tries whether a server sees what is written to its folder.
TRIAL = "mlproject.trial_of_folder"
#: On an experiment: its runs are of model training, not of language models.
EXPERIMENT_KIND = ("mlflow.experimentKind", "custom_model_development")

RECORD_ARTIFACT = "record.json"
REPORT_ARTIFACTS = "report"
ITERATION_TIME_MS = "iteration_time_ms"
TELEMETRY_PREFIX = "system/"
#: MLflow's pages show a section for each prefix `time/`. A few headline metrics have none; older
#: runs have none at all.
_SECTIONS = {
    "time": r"iteration_time_ms_(mean|std|p95|p99)|iterations|(window|real|user|system)_s"
    r"|pace_half_width|first_steady_iteration|account_.+|compile_time_s"
    r"|(data|forward|backward|optimizer)_time_s"
    r"|slowest_rank_time_ms|rank_spread_share"
    r"|(data_wait|communication|computation|exposed_\w+|idle|device_busy|ops_matched)_share",
    "cost": r"step_g\w+|intensity_\w+|parameters|(forward_gmac|executed_gflop|\w+_dram_gb)"
    r"|(weights|gradients|optimizer|activations)_mb|traffic_amplification",
    "host": r"\w+_mean|max_rss_mb|energy_j|ipc|cpi|(cache|branch)_miss_share",
}


class Column(NamedTuple):
    """A column of the table of runs: its type in pandas, and where a run has its value.

    The unit is the end of its name. `profile` is of the profile that explains the run, `place`
    of its place under the roof.
    """

    dtype: Literal["string", "Int64", "float64", "boolean"]
    source: Literal["tag", "metric", "profile", "place"]


#: Metrics that can be compared.
COMPARED = (
    *("throughput_images_per_s", "throughput_samples_per_s", "throughput_tokens_per_s"),
    *("pace_samples_per_s", "attained_gflops", "iteration_time_ms_mean", "iteration_time_ms_p50"),
    *("iteration_time_ms_p95", "iteration_time_ms_p99", "iteration_time_ms_std"),
    *("compile_time_s", "data_wait_share", "peak_memory_mb", "max_rss_mb", "energy_j"),
    *("energy_j_per_image", "energy_j_per_sample", "real_s", "user_s", "system_s"),
    *("gain_without_input", "gain_without_sync", "gain_without_host"),
)
_TEXTS = (
    *("kind", "record_id", "config_id", "code", "code_commit", "campaign", "env", "device"),
    *("verdict", "findings", "outcome", "reason", "ended_early", "warmup_ended_early"),
    *("window_class", "price"),
)
_COUNTS = ("iterations", "parameters", "first_steady_iteration")
_NUMBERS = (
    *("loader_images_per_s", "window_s", "pace_half_width"),
    *("data_time_s", "forward_time_s", "backward_time_s", "optimizer_time_s"),
    *("throughput_images_per_s_std", "throughput_images_per_s_max", "claimed_gflops"),  # imported
    "step_gflop_required",
    *("step_gflop", "step_gb_compulsory", "step_gb_fused", "step_gb_eager", "forward_gmac"),
    *("intensity_min", "intensity_max"),
    *("weights_mb", "gradients_mb", "optimizer_mb", "activations_mb", "communication_share"),
    *("slowest_rank_time_ms", "rank_spread_share"),
    *("computation_share", "exposed_communication_share", "exposed_copies_share", "idle_share"),
    *(f"{name}_mean" for name in MEAN_SERIES),
    "iteration_dram_gb",
    *("cost_per_million_images", "cost_per_million_samples"),  # of the last report's price
)
_OF_PROFILE = (
    *("counted_dram_gb", "executed_gflop", "intensity_counted", "traffic_amplification", "ipc"),
    *("cpi", "device_busy_share", "ops_matched_share", "cache_miss_share", "branch_miss_share"),
)
_TEXTS_OF_PLACE = (
    *("bound", "bound_because", "precision_ran", "math_mode_ran", "not_placed"),
    *("ceiling_kind", "ceiling_source", "ceiling_date", "ceiling_record_id"),
    *("verdict_under_roof", "findings_under_roof", "counted_by"),
)
_NUMBERS_OF_PLACE = (
    *("ridge_flop_per_byte", "attainable_gflops_min", "attainable_gflops_max", "peak_gflops"),
    *("peak_gb_per_s", "fraction_of_roof_min", "fraction_of_roof_max", "fraction_of_peak"),
    *("mfu_required", "mfu_counted"),
)
#: What a place says otherwise than the run's own metrics: it is of the iteration as it was placed.
#: Several batches of an iteration move fewer bytes than as many alone, and a profile counts only if
#: it passes every check against this run.
OF_ITERATION = (
    *("attained_gflops", "intensity_min", "intensity_max", "intensity_counted"),
    "traffic_amplification",
)
#: The table of runs beside their settings, in order.
COLUMNS: dict[str, Column] = {
    **dict.fromkeys((*_TEXTS, *MACHINE_FACTS), Column("string", "tag")),
    "device_memory_gb": Column("float64", "tag"),
    **dict.fromkeys(COMPARED, Column("float64", "metric")),
    **dict.fromkeys(_COUNTS, Column("Int64", "metric")),
    **dict.fromkeys(_NUMBERS, Column("float64", "metric")),
    **dict.fromkeys(_OF_PROFILE, Column("float64", "profile")),
    **dict.fromkeys(_TEXTS_OF_PLACE, Column("string", "place")),
    **dict.fromkeys(_NUMBERS_OF_PLACE, Column("float64", "place")),
    "bound_sure": Column("boolean", "place"),
}


def columns_of(source: str) -> list[tuple[str, Column]]:
    """Return the columns with a value from there, by their names."""
    return [(name, column) for name, column in COLUMNS.items() if column.source == source]


#: MLflow's run states by how a measurement ended.
STATUS = {
    "ok": "FINISHED",
    "interrupted": "KILLED",
    "oom": "FAILED",
    "unsupported": "FAILED",
    "refused": "FAILED",
    "crashed": "FAILED",
}

#: MLflow cuts longer tags silently.
TAG_CHARACTERS = 5000


@dataclass(frozen=True)
class Point:
    """One value of a metric: `step` counts from 0, `unix_s` is when it was measured."""

    key: str
    value: float
    step: int
    unix_s: float


@dataclass(frozen=True)
class Content:
    """What a record becomes on the server."""

    params: dict[str, str]
    tags: dict[str, str]
    metrics: Sequence[Point]
    status: str


@dataclass(frozen=True)
class Addition:
    """What a run carries beside its record: what also rests on other records, such as a roof."""

    metrics: dict[str, float]
    tags: dict[str, str]


@cache
def logged_name(metric: str) -> str:
    """Return the name under which MLflow has a metric: `window_s` is `time/window_s`."""
    logged = (f"{name}/{metric}" for name, of in _SECTIONS.items() if re.fullmatch(of, metric))
    return next(logged, metric)


def plain_metrics(logged: Mapping[str, float]) -> dict[str, float]:
    """Return a run's metrics by their names here; of one logged both ways the sectioned value."""
    return {_plain(name): logged[name] for name in sorted(logged, key=lambda name: "/" in name)}


@cache
def _plain(logged: str) -> str:
    name = logged.rpartition("/")[2]
    return name if logged_name(name) == logged else logged


def whole_tags(now: datetime | None = None) -> dict[str, str]:
    """Return the tags of a run that holds all of its record since `now`.

    The time is as 2026-11-21T18:00:00.000000Z, whose order as text is that of time.
    """
    at = (now or datetime.now(timezone.utc)).astimezone(timezone.utc)
    return {UPLOADED: "true", UPLOADED_AT: f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"}


def safe(text: str) -> str:
    """Text from a record, unable to become markup in the UI's description."""
    return text.replace("<", "&lt;").replace("|", "\\|").replace("\n", " ")


def matching(*filters: str) -> str:
    """Return the filter of what matches all of these, of which some may be empty."""
    return " and ".join(part for text in filters if (part := text.strip()))


def runs_filter(
    filter_string: str = "", campaign: str | None = None, *, kind: str | None = None
) -> str:
    """Return the filter for runs of `kind` and `campaign` that also match `filter_string`.

    MLflow joins conditions with AND alone, so they are simply strung together. Raises `UserError`
    for a campaign that no run can carry, since a quote in it would end the filter's string.
    """
    of_kind = "" if kind is None else f"tags.`{KIND}` = '{kind}'"
    of_campaign = ""
    if campaign is not None:
        if not campaign or set("'\"`\\") & set(campaign):
            raise UserError(f"campaign={campaign!r}: use the label given to mlproject run")
        of_campaign = f"tags.`{CAMPAIGN}` = '{campaign}'"
    return matching(of_kind, of_campaign, filter_string)


CEILINGS_FILTER = runs_filter(kind="ceilings")
PROFILES_FILTER = runs_filter(kind="profile")


def is_deleted(run: Run | None) -> bool:
    """Whether a run is there and was deleted, by a join of two uploads or by somebody."""
    return run is not None and bool(run.info.lifecycle_stage == "deleted")


def is_whole(run: Run) -> bool:
    """Whether the run holds all of its record."""
    return bool(run.data.tags.get(UPLOADED) == "true")
