"""Named baselines: runs that a server remembers under a name, as tags of one of its experiments.

What a name means is fixed when it is set: a list of run ids, so that a campaign that grows later
does not move it. The ids are in tags of their own, since a tag has a limited length; the tag that
names them is written after them, so a reader sees the old list or the new one.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from mlflow.entities import Experiment
from mlflow.tracking import MlflowClient

from bench.errors import UserError
from tracking.reading.pages import all_experiments
from tracking.retry import ANSWER_LIMIT_S, AWAY_LIMIT_S, RetryPolicy
from tracking.schema import TAG_CHARACTERS, sortable
from tracking.store import experiment_id, open_client, open_existing, tracking_call

_HEAD = "mlproject.baseline."
_IDS = "mlproject.baseline_runs."
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_IDS_IN_A_TAG = TAG_CHARACTERS // 33  # of 32 characters and a comma


@dataclass(frozen=True)
class Baseline:
    """Runs under a name: `side` is what was named when it was set, `set_at` when, in UTC."""

    name: str
    side: str
    set_at: str
    run_ids: tuple[str, ...]
    experiment: str


@tracking_call
def set_baseline(name: str, side: str, run_ids: Sequence[str]) -> Baseline:
    """Let `name` mean these runs, in the experiment that MLflow's variables name.

    Raises `UserError` for a name that cannot be written as `baseline=NAME`, and `TrackingError`.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"baseline={name!r}: give up to 64 letters, digits, dots, dashes and underscores"
        )
    client, ask = open_client(), RetryPolicy(AWAY_LIMIT_S, ANSWER_LIMIT_S)
    where: Experiment = ask(client.get_experiment, ask(experiment_id, client))

    def write(key: str, value: str) -> None:
        ask(client.set_experiment_tag, where.experiment_id, key, value)

    stamp = secrets.token_hex(4)  # not the keys of the list that is replaced
    keys: list[str] = []
    for start in range(0, len(run_ids), _IDS_IN_A_TAG):
        keys.append(f"{_IDS}{name}.{stamp}.{len(keys)}")
        write(keys[-1], ",".join(run_ids[start : start + _IDS_IN_A_TAG]))
    set_at = sortable(datetime.now(timezone.utc))
    short = side[: TAG_CHARACTERS // 4]
    write(_HEAD + name, json.dumps({"side": short, "set_at": set_at, "keys": keys}))
    _delete_ids(client, ask, where, name, kept=keys)
    return Baseline(name, short, set_at, tuple(run_ids), where.name)


@tracking_call
def find_baseline(name: str) -> Baseline:
    """Return the baseline of that name, whichever experiment holds it.

    Of several, that of the experiment that MLflow's variables name. Raises `UserError` where there
    is none, or none of these several, and `TrackingError`.
    """
    client, ask = open_existing(), RetryPolicy(AWAY_LIMIT_S, ANSWER_LIMIT_S)
    return _read(_home(client, ask, name), name)


@tracking_call
def all_baselines() -> list[Baseline]:
    """Return the baselines of all experiments by name. Raises `TrackingError`."""
    client, ask = open_existing(), RetryPolicy(AWAY_LIMIT_S, ANSWER_LIMIT_S)
    experiments = all_experiments(client, ask)
    found = [_read(one, name) for one in experiments for name in _names(one)]
    return sorted(found, key=lambda one: (one.name, one.experiment))


@tracking_call
def remove_baseline(name: str) -> Baseline:
    """Forget the name and return what it meant; its runs stay. Raises as `find_baseline`."""
    client, ask = open_existing(), RetryPolicy(AWAY_LIMIT_S, ANSWER_LIMIT_S)
    where = _home(client, ask, name)
    found = _read(where, name)
    ask(client.delete_experiment_tag, where.experiment_id, _HEAD + name)
    _delete_ids(client, ask, where, name, kept=())
    return found


def _names(experiment: Experiment) -> Iterator[str]:
    return (key.removeprefix(_HEAD) for key in experiment.tags if key.startswith(_HEAD))


def _home(client: MlflowClient, ask: RetryPolicy, name: str) -> Experiment:
    """The experiment that holds the name."""
    experiments = all_experiments(client, ask)
    found = [one for one in experiments if _HEAD + name in one.tags]
    if not found:
        known = sorted({known for one in experiments for known in _names(one)})
        there = f"; there is {', '.join(known)}" if known else ""
        raise UserError(
            f"baseline={name!r}: not set on this server{there}; set it with mlproject baseline set"
        )
    if len(found) > 1:
        ours = ask(experiment_id, client)
        if not (found_here := [one for one in found if one.experiment_id == ours]):
            names = ", ".join(sorted(one.name for one in found))
            raise UserError(
                f"baseline={name!r}: set in several experiments ({names}); name one with "
                "MLFLOW_EXPERIMENT_NAME"
            )
        return found_here[0]
    return found[0]


def _read(experiment: Experiment, name: str) -> Baseline:
    try:
        about = json.loads(experiment.tags[_HEAD + name])
        ids = ",".join(experiment.tags[key] for key in about["keys"])
        return Baseline(
            name, about["side"], about["set_at"], tuple(ids.split(",")), experiment.name
        )
    except (ValueError, TypeError, KeyError):
        raise UserError(
            f"baseline={name!r}: its tags in the experiment {experiment.name!r} are not whole; set "
            "it with mlproject baseline set"
        ) from None


def _delete_ids(
    client: MlflowClient,
    ask: RetryPolicy,
    experiment: Experiment,
    name: str,
    kept: Sequence[str],
) -> None:
    """Delete the lists that `experiment` had under the name."""
    own = re.compile(re.escape(f"{_IDS}{name}.") + r"[0-9a-f]{8}\.\d+")
    for key in experiment.tags:
        if own.fullmatch(key) and key not in kept:
            ask(client.delete_experiment_tag, experiment.experiment_id, key)
