"""One measurement of a device at a time: real processes hold the lock."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from bench.errors import UserError
from bench.launcher import device_lock, measurement
from bench.launcher.device_lock import device_names, exclusive
from bench.launcher.measurement import launch_measurement
from bench.machine import UnknownFactError
from bench.records.folders import RecordFolder

PROGRAM = """
import subprocess, sys
from bench.launcher.device_lock import exclusive, held_locks
with exclusive(["cpu"]):
    wait = [sys.executable, "-c", "import sys; print('holds', flush=True); sys.stdin.read()"]
    worker = subprocess.Popen(wait, pass_fds=held_locks()) if "worker" in sys.argv else None
    print("holds", flush=True)
    worker.wait() if worker else sys.stdin.read()
"""


@pytest.fixture
def holder():
    """Another process that holds `cpu` until its standard input is closed."""
    started = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        for _ in range(1 + len(arguments)):
            assert process.stdout.readline() == "holds\n"
        return process

    yield start
    for process in started:
        process.stdin.close()
        process.stdout.read()
        process.wait()


def waited_for(release):
    """For whom this process waits until `release` lets it go on."""
    holders = []
    told = threading.Event()

    def hold():
        with exclusive(["cpu"], lambda holder: (holders.append(holder), told.set())):
            pass

    thread = threading.Thread(target=hold)
    thread.start()
    assert told.wait(60)
    assert thread.is_alive()
    release()
    thread.join(60)
    assert not thread.is_alive()
    return holders


def test_a_second_measurement_waits_for_the_first_and_names_it(holder):
    process = holder()
    [waited] = waited_for(process.stdin.close)
    assert f"process {process.pid} (" in waited
    assert "ended" not in waited


def test_the_worker_of_a_killed_launcher_is_waited_for(holder):
    process = holder("worker")
    process.send_signal(signal.SIGKILL)
    process.wait()
    [waited] = waited_for(process.stdin.close)
    assert f"process {process.pid} (" in waited
    assert "ended" in waited


def test_who_does_not_wait_measures_beside_and_others_are_not_waited_for(holder):
    holder()
    with exclusive(["cpu"], pytest.fail, wait=False), exclusive(["another"], pytest.fail):
        assert len(device_lock.held_locks()) == 1
    assert device_lock.held_locks() == ()


def test_without_a_folder_for_locks_it_measures_and_says_so(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with exclusive(["cpu"]):
        assert device_lock.held_locks() == ()
    assert "no lock on cpu" in capsys.readouterr().err


def test_a_command_that_is_no_utf_8_is_a_holder_too(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mlproject", "run", "--records", "\udcff"])
    with exclusive(["cpu"]):
        assert len(device_lock.held_locks()) == 1


CARDS = ("11111111-0000", "22222222-0000")


@pytest.mark.parametrize(
    ("torch", "cards", "asked", "names"),
    [
        ("2.11.0", CARDS, ("auto",), CARDS[:1]),
        ("2.11.0", CARDS, ("cuda", 2), CARDS),
        ("2.11.0", CARDS, ("cpu", 2), ("cpu",)),
        ("2.11.0+cpu", CARDS, ("auto",), ("cpu",)),
        ("2.11.0", (), ("auto", 2), ("cpu",)),
        ("2.11.0", (), ("cuda",), ("cuda",)),
        ("2.11.0+rocm6.4", (), ("auto",), ("cuda",)),
        ("2.11.0", (), ("mps",), ("mps",)),
    ],
)
def test_the_devices_of_a_measurement_are_known_without_torch(
    monkeypatch, torch, cards, asked, names
):
    def uuid(number):
        if number >= len(cards):
            raise UnknownFactError("no such device")
        return cards[number]

    monkeypatch.setattr(device_lock, "device_uuid", uuid)
    monkeypatch.setattr(device_lock.metadata, "version", lambda package: torch)
    monkeypatch.setattr(device_lock.platform, "system", lambda: "Linux")
    assert device_names(*asked) == names


def held(devices, *rest, wait):
    raise UserError(f"held {devices} {wait}")


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--arch", "crashing_models:small", "--backend", "cpu"),
        ("profile", "--arch", "crashing_models:small", "--backend", "cpu"),
        ("ceilings", "--backend", "cpu"),
    ],
)
@pytest.mark.parametrize("wait", ["true", "false"])
def test_every_command_that_measures_takes_the_lock(mlproject_command, monkeypatch, command, wait):
    monkeypatch.setattr("commands.console.recorded.exclusive", held)
    code, _, err = mlproject_command(*command, "--wait", wait)
    assert (code, err.strip()) == (2, f"mlproject: held ('cpu',) {wait == 'true'}")


def test_measuring_from_python_takes_the_lock(monkeypatch, tmp_path):
    monkeypatch.setattr(measurement, "exclusive", held)
    for measure in (
        lambda: measurement.measure(measurement.RunConfig(backend="cpu"), records=tmp_path),
        lambda: measurement.measure_roofs("cpu", records=tmp_path),
    ):
        with pytest.raises(UserError, match="held"):
            measure()


@pytest.mark.parametrize(("devices", "cards", "refused"), [(2, (), False), (3, (), True),
                                                           (100, CARDS, False)])  # fmt: skip
def test_more_processes_than_cores_are_refused(monkeypatch, tmp_path, devices, cards, refused):
    monkeypatch.setattr(device_lock, "device_names", lambda backend: cards or ("cpu",))
    monkeypatch.setattr(device_lock, "usable_cores", lambda: 2)
    config = measurement.RunConfig(backend="auto", devices=devices)
    assert (device_lock.crowding(config) is not None) == refused
    if refused:
        record = launch_measurement(config, RecordFolder.create(tmp_path))
        assert (record.outcome, record.verdict.level) == ("unsupported", "invalid")
        assert "use devices=2" in record.reason
