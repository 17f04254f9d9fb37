"""What several tests stand on: the project on the path, and no tracking server by accident."""

import gc
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing, redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "tests" / "bench"), str(PROJECT / "tests"), str(PROJECT)]

# No example fails because the machine is slow, or another test's fixture is used by many examples.
settings.register_profile(
    "any pace",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("any pace")

DEVICES = ("cuda", "mps")
SLOW = ("slow", "long")


def pytest_configure():
    """Let Ctrl-C through: what a shell starts in the background ignores it, children too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # what imports make stays


def pytest_collection_finish():
    """No collection of garbage looks through what was imported for the tests."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure():
    gc.unfreeze()  # nanobind calls what is left at the end leaked


#: What no package brings, and so the only reasons for a skip under `--nothing-missing`.
_NOT_TO_BE_HAD = re.compile(r"no (cuda|mps) device here|on this kind of machine")


def pytest_addoption(parser):
    parser.addoption(
        "--nothing-missing",
        action="store_true",
        help="fail what would be skipped because a program or a library is missing",
    )
    parser.addoption("--golden", action="store_true", help="rewrite the files in tests/golden")


def _not_skipped(report, config):
    """The report, a failure where a skip hides what this machine was set up for."""
    if report.skipped and config.getoption("nothing_missing"):
        reason = str(report.longrepr)
        if not _NOT_TO_BE_HAD.search(reason):
            report.outcome = "failed"
            report.longrepr = f"skipped, though everything should be here: {reason}"
    return report


#: Folders whose files share a server, which takes a process many seconds to start.
_OF_ONE_SERVER = ("tests/deploy/server/", "tests/tracking/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """`--dist loadfile`, and one process for all files that share a server."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return next(filter(nodeid.startswith, _OF_ONE_SERVER), super()._split_scope(nodeid))

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    return _not_skipped((yield), item.config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return _not_skipped((yield), collector.config)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Tests of hardware that is not here are skipped by name; files of slow tests come first.

    A slow test of a command takes as long as five others: it starts several processes.
    """
    slow = Counter()
    for item in items:
        if any(map(item.get_closest_marker, SLOW)):
            slow[item.path] += 5 if item.path.parent.name == "commands" else 1
    items.sort(key=lambda item: -slow[item.path])
    marked = [(item, name) for item in items for name in DEVICES if item.get_closest_marker(name)]
    if not marked:
        return
    import torch

    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    for item, name in marked:
        if not here[name]:
            item.add_marker(pytest.mark.skip(reason=f"no {name} device here"))


class CommandLine:
    """`mlproject` as a user types it in `folder`."""

    def __init__(self, folder):
        self.folder = folder

    def start(self, *arguments, **environment):
        """A process of its own, running; `environment` is added to this one's."""
        return subprocess.Popen(
            [sys.executable, str(PROJECT / "mlproject.py"), *map(str, arguments)],
            cwd=self.folder,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments, **environment):
        """The exit code, the output and the error output of a command run in this process."""
        from mlproject import main  # the project is on the path by now

        with (
            patch.dict(os.environ, environment),
            redirect_stdout(StringIO()) as out,
            redirect_stderr(StringIO()) as err,
        ):
            code = main([*map(str, arguments)])
        return code, out.getvalue(), err.getvalue()


@pytest.fixture
def mlproject_command(tmp_path, monkeypatch):
    """`mlproject` in the test's folder, with records there and the tests' own tiny models."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(PROJECT / "tests" / "bench"))
    monkeypatch.setenv("MLPROJECT_RECORDS", str(tmp_path / "records"))
    return CommandLine(tmp_path)


def _tables(made, make, engine):
    """MLflow takes a second to make its tables: once there are some, a new store gets copies."""
    from sqlalchemy import inspect

    if engine.dialect.name != "sqlite" or inspect(engine).get_table_names():
        make(engine)
    elif not made.exists():
        make(engine)
        with closing(sqlite3.connect(engine.url.database)) as whole:
            whole.execute("VACUUM INTO ?", [str(made)])
    else:
        with (
            closing(sqlite3.connect(made)) as whole,
            closing(sqlite3.connect(engine.url.database)) as copy,
        ):
            whole.backup(copy)


@pytest.fixture(scope="session")
def tables_of_mlflow(tmp_path_factory):
    return tmp_path_factory.mktemp("tables") / "mlflow.db"


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch, tmp_path, tables_of_mlflow):
    """Tests see none of the user's MLflow settings and leave nothing in their caches."""
    for name in list(os.environ):
        if name.startswith(("MLFLOW_", "MLPROJECT_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if utils := sys.modules.get("mlflow.store.db.utils"):
        tables = partial(_tables, tables_of_mlflow, utils._initialize_tables)
        monkeypatch.setattr(utils, "_initialize_tables", tables)


@pytest.fixture
def embedded(tmp_path, monkeypatch):
    """An embedded store of this test's own, which MLflow's settings name."""
    from tracking.connection import Server

    with monkeypatch.context() as there:
        there.chdir(tmp_path)  # where its artifacts go
        return Server().client


@pytest.fixture(scope="module")
def unpainted():
    """Files of figures are empty: painting takes most of a report's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "matplotlib.figure.Figure.savefig", lambda _, path, **__: path.write_bytes(b"")
        )
        yield
