"""The settings that a step ran with, by which runs are repeats and a profile explains a run.

Steps are of one configuration where they ran with the same settings, whatever was asked for:
`auto` and the value that it became are one. How long was measured (`WINDOW_FIELDS`) is no setting:
a longer window says the same of the same step, only more surely.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from bench.config import FILING_FIELDS, SYNTHETIC, WINDOW_FIELDS, spelled, split_arch
from bench.records import ProfileRecord, ResolvedConfig, RunRecord

#: Runs that differ in these alone are repeats.
NO_SETTINGS: Final = FILING_FIELDS | WINDOW_FIELDS
#: How data is read and shown is part of the data's cost; synthetic data has none of it.
OF_DATA: Final = ("data", "workers", "prefetch_factor", "persistent_workers",
                  "pin_memory", "augment", "non_blocking")  # fmt: skip
#: The variables that kept a processor from its newer instructions; most runs have none, so
#: that they are shown of each run that has them.
LIMITED: Final = "instructions"
#: The digest of a user's own model's source: two versions of it are two models.
CODE: Final = "code"
#: What tells a script's runs apart, beside the settings that are known of it.
OF_SCRIPT: Final = ("arguments", "model", "optimizer")
#: Settings of what a model takes, images or tokens.
_OF_SAMPLES: Final = ("image_size", "seq_len")
#: What is known of a script's run; the other settings are its own affair.
_KNOWN_OF_SCRIPT: Final = frozenset(
    {"arch", "backend", "precision", "batch_size", "devices", "nodes", "compile", "workers",
     "channels_last", "threads", *_OF_SAMPLES}
)  # fmt: skip


def stated(record: RunRecord | ProfileRecord) -> dict[str, Any]:
    """Return the settings of a record, of a script's run those that are known."""
    settings = record.config.model_dump()
    if split_arch(record.config.arch)[0] != "script":
        return settings
    return {name: settings[name] for name in settings if name in _KNOWN_OF_SCRIPT | NO_SETTINGS}


def settings_of(record: RunRecord | ProfileRecord) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings that ran, as text, and those asked for where they read otherwise.

    A run that ended before its device was known has only what was asked for. Settings without any
    effect are left out: the loader's beside synthetic data, those of autocast without it, pixels
    and tokens of a model that takes none.
    """
    config, resolved = record.config, record.resolved
    without = NO_SETTINGS | (set(OF_DATA[1:]) if config.data == SYNTHETIC else set())
    given = {name: spelled(value) for name, value in stated(record).items() if name not in without}
    ran = dict(given)
    if resolved is not None:
        known = given.keys() & ResolvedConfig.model_fields.keys()
        ran |= {name: spelled(getattr(resolved, name)) for name in sorted(known)}
        ran["precision"] = f"amp-{resolved.autocast_dtype}"
        if resolved.autocast_dtype == "none" or resolved.math_mode == "fp8":
            ran["precision"] = resolved.math_mode
        if resolved.autocast_dtype == "none":
            ran.pop("depthwise_fp32", None)
        for name in _OF_SAMPLES:
            if getattr(resolved, name) is None:
                del ran[name]
    asked = {name: value for name, value in given.items() if ran.get(name) != value}
    ran["env"] = config.env
    if record.environment is not None:
        ran["env"] = record.environment.label
        ran["device"] = record.environment.device.name
        if (limits := record.environment.instruction_limits) != "none":
            ran[LIMITED] = " ".join(sorted({limit.partition("=")[2] for limit in limits.split()}))
        if (code := record.environment.code) is not None:
            ran[CODE] = code
    script = record.script if isinstance(record, RunRecord) else {}
    return ran | {name: text for name, text in script.items() if name in OF_SCRIPT}, asked


def step_settings(record: RunRecord | ProfileRecord) -> dict[str, str]:
    """Return the settings that ran but for the machine: equal where a profile explains a run."""
    ran, _ = settings_of(record)
    return {name: value for name, value in ran.items() if name not in ("env", "device")}


def is_of_step(profile: ProfileRecord, run: RunRecord) -> bool:
    """Whether a profile is of the step that a run timed; on which machine is not asked."""
    ours, theirs = profile.resolved, run.resolved
    if profile.config.arch != run.config.arch or ours is None or theirs is None:
        return False
    alike = ours.batch_size == theirs.batch_size  # what differs most often is asked first
    return alike and step_settings(profile) == step_settings(run)


def step_id(record: RunRecord | ProfileRecord) -> str:
    """Return twelve hex digits, equal where `step_settings` are."""
    settings = json.dumps(sorted(step_settings(record).items()))
    return hashlib.sha256(settings.encode()).hexdigest()[:12]
