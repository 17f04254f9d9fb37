"""Named baselines: runs that a server remembers under a name, in a run of kind `baseline`.

What a name means is fixed when it is set: the ids of runs, in the one artifact of that run, so that
a campaign that grows later does not move it. The tag that says whole is set last, and the run that
it replaces is deleted after that: a reader sees the old list or the new one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.errors import UserError
from tracking import schema
from tracking.connection import Server

if TYPE_CHECKING:
    from mlflow.entities import Run

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ARTIFACT = "runs.json"
_WHOLE = f"tags.`{schema.UPLOADED}` = 'true'"


@dataclass(frozen=True)
class NamedRuns:
    """Runs under a name: `side` is what was named when it was set, `set_at` when, in UTC."""

    name: str
    side: str
    set_at: str
    run_ids: tuple[str, ...]


def set_baseline(name: str, side: str, run_ids: Sequence[str]) -> NamedRuns:
    """Let `name` mean these runs, in the experiment that MLflow's variables name.

    Raises `UserError` for a name that cannot be written as `baseline=NAME`, and `TrackingError`.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"baseline={name!r}: give up to 64 letters, digits, dots, dashes and underscores"
        )
    server = Server()
    where = server.experiment_id()
    whole, side = schema.whole_tags(), side[: schema.TAG_CHARACTERS // 4]
    tags = {schema.KIND: "baseline", schema.BASELINE: name, schema.SIDE: side}
    tags |= server.user_tag
    made = server.ask(server.client.create_run, where, tags=tags, run_name=f"baseline_{name}")
    text = json.dumps(list(run_ids))
    server.ask(server.client.log_text, made.info.run_id, text, _ARTIFACT)
    server.end(made.info.run_id)
    server.log(made.info.run_id, tags=whole)
    _delete(server, name, but=made.info.run_id)
    return NamedRuns(name, side, whole[schema.UPLOADED_AT], tuple(run_ids))


def find_baseline(name: str) -> NamedRuns:
    """Return the baseline of that name. Raises `UserError` where there is none, `TrackingError`."""
    server = Server(must_exist=True)
    return _read(server, _run(server, name))


def all_baselines() -> list[NamedRuns]:
    """Return the baselines by name. Raises `TrackingError`."""
    server = Server(must_exist=True)
    return [_read(server, run) for _, run in sorted(_newest(server).items())]


def remove_baseline(name: str) -> NamedRuns:
    """Forget the name and return what it meant; its runs stay. Raises as `find_baseline`."""
    server = Server(must_exist=True)
    named = _read(server, _run(server, name))
    _delete(server, name)
    return named


def _delete(server: Server, name: str, *, but: str | None = None) -> None:
    """Also what a command that was cut, or an answer that was lost, left unfinished."""
    named = schema.runs_filter(f"tags.`{schema.BASELINE}` = '{name}'", kind="baseline")
    for run in list(server.search(named, [server.experiment_id()])):
        if run.info.run_id != but:
            server.ask(server.client.delete_run, run.info.run_id)


def _newest(server: Server) -> dict[str, Run]:
    """The whole run of each name; of several the newest."""
    newest: dict[str, Run] = {}
    wanted = schema.runs_filter(_WHOLE, kind="baseline")
    for run in server.search(wanted, [server.experiment_id()]):
        newest.setdefault(run.data.tags[schema.BASELINE], run)
    return newest


def _run(server: Server, name: str) -> Run:
    baselines = _newest(server)
    if name not in baselines:
        there = f"; there is {', '.join(sorted(baselines))}" if baselines else ""
        raise UserError(
            f"baseline={name!r}: not set on this server, in the experiment that MLflow's variables "
            f"name{there}; set it with mlproject baseline set"
        )
    return baselines[name]


def _read(server: Server, run: Run) -> NamedRuns:
    tags = run.data.tags
    name, side, set_at = (tags[key] for key in (schema.BASELINE, schema.SIDE, schema.UPLOADED_AT))
    run_ids = tuple(json.loads(server.read(run.info.artifact_uri, _ARTIFACT)))
    return NamedRuns(name, side, set_at, run_ids)
