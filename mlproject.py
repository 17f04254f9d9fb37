"""The command line, and what a script imports: `from mlproject import RunConfig, measure, place`.

It finds the subcommand, and turns its errors into one line and an exit code.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib import import_module, metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

_HERE = Path(__file__).resolve().parent
_PACKAGES = ("analysis", "bench", "campaigns", "commands", "tracking")


class _OwnPackages:
    """Finds this project's packages beside this file, whatever has their names elsewhere."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(_HERE)]) if name in _PACKAGES else None


def _keep_names() -> None:
    """Take this project's packages where others of their names come first, and say so.

    Raises `ImportError` where another one is imported already.
    """
    for name in _PACKAGES:
        loaded = sys.modules.get(name)
        spec = loaded.__spec__ if loaded else PathFinder.find_spec(name)
        if spec is None or spec.origin is None or _HERE in Path(spec.origin).resolve().parents:
            continue
        file = Path(spec.origin)
        other = file.parent if file.stem == "__init__" else file
        line = (
            f"mlproject: {other} has the name of mlproject's package {name}: rename it, take "
            f"{other.parent} from PYTHONPATH, or uninstall what it belongs to"
        )
        if loaded:
            raise ImportError(line)
        print(f"{line}; until then `import {name}` is mlproject's", file=sys.stderr)
        if _OwnPackages not in sys.meta_path:
            sys.meta_path.insert(0, _OwnPackages)


_keep_names()

from bench.errors import Unknown, UserError  # noqa: E402
from commands import EXIT_CODES, INTERRUPTED, WRONG  # noqa: E402

if TYPE_CHECKING:
    from analysis import (
        compare,
        find_all,
        place,
        plot_roofline,
        predict,
        pull_points,
        pull_runs,
        step_account,
    )
    from bench import RunConfig, count_step, measure, measure_roofs, read_records
    from tracking import log_record

#: What a script imports from here; each is imported from its package when it is first used.
__all__ = [
    "RunConfig",
    "UserError",
    "compare",
    "count_step",
    "find_all",
    "log_record",
    "main",
    "measure",
    "measure_roofs",
    "place",
    "plot_roofline",
    "predict",
    "pull_points",
    "pull_runs",
    "read_records",
    "step_account",
    "watch",
]


def __getattr__(name: str) -> Any:
    for package in ("bench", "analysis", "tracking") if name in __all__ else ():
        module = import_module(package)
        if name in module.__all__:
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


#: Subcommands by purpose, and the first line of their help. Each is a class of that name in
#: commands/, in a module of that name, imported when it is used.
PURPOSES = {
    "Measure": {
        "run": "Measure one configuration as one tracked run, or several.",
        "watch": "Measure a training script as it is, and end it after that.",
        "sweep": "Measure every configuration of a matrix, each repeat as one tracked run.",
        "tune": "Find the fastest setting of a model's knobs and batch size on this device.",
        "ceilings": "Measure this machine's roofs.",
        "profile": "Look inside one step: time per op, and the device's counters.",
    },
    "Explain and compare": {
        "report": "Write tables, rooflines and a report of tracked runs.",
        "compare": "Compare two sets of runs, and fail where the second is slower.",
        "trend": "Show configurations over their history, and when they changed.",
        "predict": "Predict the throughput of what was not measured.",
        "pull": "Write tracked runs as CSV or Parquet.",
        "complexity": "Print FLOP, bytes and memory of a model's training step.",
        "trace": "Say what holds the steps of a profiler's trace back; compare two traces.",
        "counters": "Add up the counters in Nsight Compute's files.",
    },
    "Keep data, records and the machine in order": {
        "baseline": "Keep runs under a name on the server, for mlproject compare.",
        "dataset": "Generate, fetch, subset or check an image folder.",
        "sync": "Upload records that are not tracked yet; copy runs between servers.",
        "import": "Import the results of other programs from their files.",
        "doctor": "Say what works on this machine, and the remedy for what does not.",
    },
}
COMMANDS = {name: line for commands in PURPOSES.values() for name, line in commands.items()}
#: Commands in the module of another.
_ELSEWHERE = {"pull": "report", **dict.fromkeys(("watch", "ceilings", "profile"), "run")}


class _Commands(click.Group):
    """Imports a subcommand only when it is asked for, so that --help is instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"commands.{_ELSEWHERE.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, cmd_name.capitalize()).command()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for purpose, commands in PURPOSES.items():
            with formatter.section(purpose):
                formatter.write_dl(list(commands.items()))


@contextmanager
def watch(
    seconds: float = 120.0, *, records: str | Path = "records", samples_per_step: int | None = None
) -> Iterator[Any]:
    """Measure the training loop of the block, as `mlproject watch` measures that of a script.

    What the block gets has the `record` once the block has ended; of several ranks of a machine
    only the first has one. Raises `UserError` where nothing can be written in `records`.
    """
    from torch.optim import optimizer

    from bench.config import RunConfig
    from bench.launcher.measurement import finish_run, script_job
    from bench.records.folders import RecordFolder
    from bench.worker.script import ScriptMeter

    seen, created = SimpleNamespace(record=None), datetime.now(timezone.utc)
    if int(os.environ.get("LOCAL_RANK", "0")):
        yield seen
        return
    folder, name = RecordFolder.create(Path(records)), Path(sys.argv[0]).name or "python"
    job = script_job(
        *(RunConfig(), (name, sys.argv[1:]), seconds),
        keep_going=True,
        samples_per_step=samples_per_step,
        command=["python", *sys.argv],
    )
    folder.claim(os.getpid())
    folder.write(folder.config, job)
    meter, error = ScriptMeter(folder), None
    hooks = (
        optimizer.register_optimizer_step_pre_hook(meter.before),
        optimizer.register_optimizer_step_post_hook(meter.after),
    )
    try:
        yield seen
    except BaseException as raised:
        error = raised
        raise
    finally:
        for hook in hooks:
            hook.remove()
        account = meter.close(error, why="the block ended")
        alone = Unknown("a block watches itself")
        seen.record = finish_run(folder, meter.job, created, account, alone)


def _version() -> str:
    """The installed version; `mlflow run` and conda run from a clone without installing it."""
    try:
        return metadata.version("mlproject")
    except metadata.PackageNotFoundError:
        return "of this folder, not installed"


@click.group(
    cls=_Commands,
    epilog=f"Exit codes: {'; '.join(f'{code} {what}' for code, what in EXIT_CODES.items())}.",
    context_settings={
        "help_option_names": ["-h", "--help"],
        # MLflow passes on options that MLproject does not declare as --batch_size
        "token_normalize_func": lambda name: name.replace("_", "-"),
    },
)
@click.version_option(_version(), package_name="mlproject")
def cli() -> None:
    """Measure how fast this device trains neural networks, and what holds it back."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    # What imports make stays; to look through it each 700 objects takes a tenth of their time.
    gc.set_threshold(100_000)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = cli.main(args=arguments, prog_name="mlproject", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return WRONG
    except click.ClickException as error:
        return _refuse(error.format_message())
    except UserError as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        return _refuse(_without(error))
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            if not error.filename:
                raise
            return _fail(f"{error.filename}: cannot be read or written ({error.strerror})", 1)
        where = f" ({error.filename})" if error.filename else ""
        return _fail(
            f"the disk is full{where}: free some space; what was measured lies in the folder of "
            "records: then mlproject sync",
            WRONG,
        )
    return code if isinstance(code, int) else 0


def _without(error: ModuleNotFoundError) -> str:
    """The line for a package that is not installed; raises what is a fault of this project."""
    package = (error.name or "").partition(".")[0]
    if not package or (Path(__file__).parent / package).exists():
        raise error
    return (
        f"{package} is not installed in this environment, and this needs it: install the project's "
        "packages with make setup; in a kit, take the records to where they are"
    )


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """SIGTERM, which `mlflow run` sends when it is cancelled, ends us as Ctrl-C does."""
    raise KeyboardInterrupt


def _refuse(message: str) -> int:
    """Say what was wrong; under `mlflow run`, also to the run that it made for us."""
    code = _fail(message, WRONG)
    if "MLFLOW_RUN_ID" in os.environ:
        from tracking.connection import TrackingError
        from tracking.upload.upload import end_refused_run

        try:
            end_refused_run(message)
        except TrackingError as error:
            _fail(str(error), code)
    return code


def _fail(message: str, code: int) -> int:
    click.echo(f"mlproject: {' '.join(message.split())}", err=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
