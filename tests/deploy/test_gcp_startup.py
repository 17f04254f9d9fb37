"""Google Cloud's start-up script, for real in a folder: a local server stands in for Google's.

Real bash, curl, git, make, tar and timeout; what would install, or switch this machine off, is a
stand-in that notes that it was called.
"""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest
from programs import program
from rented_machine import asked, commit, hang_in_sweep, make_project

PROJECT = Path(__file__).resolve().parent.parent.parent
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="Google's machines run Linux"),
    pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl"),
]
SCRIPT = PROJECT / "deploy" / "gcp-startup.sh"
PASSWORD = "pass word'$(x)"
TOKEN = "ya29.token"
SECRET = "/v1/projects/my-project/secrets/mlflow-password/versions/latest:access"


class Google(ThreadingHTTPServer):
    """Metadata, secrets, a bucket and the driver's installer, on one port of this machine."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.attributes = {}
        self.refused = set()
        self.installer = ""
        self.bucket = {}

    def answer(self, path):
        documents = {
            "/computeMetadata/v1/instance/attributes/?recursive=true": self.attributes,
            "/computeMetadata/v1/instance/name": "gpu-1",
            "/computeMetadata/v1/project/project-id": "my-project",
            "/computeMetadata/v1/instance/service-accounts/default/token": {"access_token": TOKEN},
            SECRET: {"payload": {"data": b64encode(PASSWORD.encode()).decode()}},
            "/compute-gpu-installation-us/installer/latest/cuda_installer.pyz": self.installer,
        }
        found = documents.get(path)
        return found if found is None or isinstance(found, str) else json.dumps(found)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # else curl waits a second before it sends a file

    def _allowed(self):
        if self.path.startswith("/computeMetadata"):
            return self.headers.get("Metadata-Flavor") == "Google"
        installer = self.path.endswith(".pyz")
        return installer or self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _send(self, code, body=""):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self):
        body = self.server.answer(self.path)
        known = body is not None and self.path not in self.server.refused and self._allowed()
        self._send(200 if known else 404, body if known else "")

    def do_POST(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        address = urlsplit(self.path)
        bucket = address.path.removeprefix("/upload/storage/v1/b/").removesuffix("/o")
        [name] = parse_qs(address.query)["name"]
        if "bucket" in self.server.refused or not self._allowed():
            self._send(403)
            return
        self.server.bucket[f"{bucket}/{name}"] = content
        self._send(200)

    def log_message(self, *_):
        pass


@pytest.fixture
def google():
    with Google() as running:
        Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


STAND_INS = {
    "curl": f"""
        printf '%s ' "$@" >>"$FACTS/curl-words"
        exec {shutil.which("curl")} "${{@/#https:\\/\\/*.googleapis.com/http://127.0.0.1:PORT}}"
    """,
    "nvidia-smi": '[[ -e "$FACTS/driver" ]]',
    "shutdown": 'echo "shutdown $*" >>"$FACTS/off"; [[ ! -e "$FACTS/no-shutdown" ]]',
    "poweroff": 'echo "poweroff $*" >>"$FACTS/off"',
    "apt-get": '[[ ! -e "$FACTS/no-packages" ]]',
    "systemctl": 'cat "$FACTS/state" 2>/dev/null || echo running',
    "sleep": ":",
    "sync": ":",
}


class Machine:
    """A machine in a folder: `boot` runs the script as Google's guest agent does."""

    def __init__(self, folder, google):
        self.home = folder / "home"
        self.facts = folder / "facts"
        self._google = google
        self.stand_ins = folder / "programs"
        self.firmware = folder / "product_name"
        self.firmware.write_text("Google Compute Engine\n")
        self.facts.mkdir()
        self.repository = make_project(folder / "repository")
        commit(self.repository)
        google.attributes = {
            "mlproject-repository": str(self.repository),
            "mlproject-bucket": "gs://my-bucket/sweeps/",
            "startup-script": "#!/bin/bash\n...",
        }
        (self.facts / "driver").touch()
        for name, text in STAND_INS.items():
            text = text.replace("PORT", str(google.server_address[1]))
            program(self.stand_ins, name, text)

    def start(self):
        assert (self.stand_ins / "shutdown").exists()  # nobody's machine goes off
        return subprocess.Popen(
            [SCRIPT],
            env={
                "PATH": f"{self.stand_ins}:{os.environ['PATH']}",
                "FACTS": str(self.facts),
                "MLPROJECT_HOME": str(self.home),
                "MLPROJECT_DMI": str(self.firmware),
                "MLPROJECT_DLVM": str(self.facts / "dlvm"),
                "GCE_METADATA_HOST": f"127.0.0.1:{self._google.server_address[1]}",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def boot(self):
        process = self.start()
        self.console, _ = process.communicate()
        return process.returncode

    def switched_off(self):
        """The orders to switch off, the one that is scheduled at the start left out."""
        path = self.facts / "off"
        orders = path.read_text().splitlines() if path.exists() else []
        return [order for order in orders if "+" not in order]

    def in_bucket(self):
        """Name -> content of what is in the bucket."""
        return {name.rpartition("/")[2]: text for name, text in self._google.bucket.items()}

    def record(self):
        """The content of the record in the bucket."""
        archive = io.BytesIO(self.in_bucket()["records.tar.gz"])
        with tarfile.open(fileobj=archive) as records:
            return records.extractfile("records/r1/record.json").read()


@pytest.fixture
def machine(tmp_path, google):
    return Machine(tmp_path, google)


OFF = ["shutdown --poweroff now"]
TRACKED = {
    "mlproject-tracking-uri": "https://mlflow.example.org",
    "mlproject-tracking-user": "sweeper",
    "mlproject-tracking-secret": "mlflow-password",
}


def test_it_sweeps_copies_everything_to_the_bucket_and_switches_off(machine, google):
    google.attributes |= TRACKED | {"mlproject-sweep": "classic --campaign spring --limit 2"}
    google.attributes["mlproject-max-hours"] = "3"
    assert machine.boot() == 0, machine.console
    assert machine.switched_off() == OFF
    # scheduled before anything can hang: two hours more than it may take
    assert (machine.facts / "off").read_text().splitlines()[0] == "shutdown --poweroff +300"
    assert asked(machine.facts)[-1] == "sweep classic --campaign spring --limit 2"
    assert (machine.facts / "credentials").read_text() == (
        f"uri=https://mlflow.example.org user=sweeper password={PASSWORD}\n"
    )
    names = list(google.bucket)
    assert all(name.startswith("my-bucket/sweeps/gpu-1-20") for name in names)
    assert [name.rpartition("/")[2] for name in names] == [
        "records.tar.gz",
        "startup.log",
        "exit-code",  # last: if it exists, all files exist
    ]
    kept = machine.in_bucket()
    assert kept["exit-code"] == b"0\n"
    assert machine.record() == b"measured\n"
    log = kept["startup.log"].decode()
    assert log.splitlines()[-1] == "mlproject: ends with exit code 0"
    said = (machine.facts / "curl-words").read_text() + machine.console + log
    assert "secrets/mlflow-password" in said
    assert PASSWORD not in said
    assert TOKEN not in said


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ({"mlproject-bucket": ""}, 2, "mlproject-bucket is not set"),
        ({"mlproject-max-hours": "1.5"}, 2, "mlproject-max-hours=1.5"),
        ({"mlproject-repository": ""}, 2, "mlproject-repository is not set"),
        ({"mlproject-tracking-uri": "https://me:secret@x.org"}, 2, "a password in the metadata"),
        ({"mlproject-tracking-user": "me"}, 2, "without mlproject-tracking-secret"),
        ({"mlproject-ref": "no-such-branch"}, 1, "no-such-branch"),
        ("no-packages", 1, "ends with exit code 1"),
        ("no-set-up", 1, "ends with exit code 1"),
        ("no-gpu", 2, "no NVIDIA GPU"),
        ("no-secret", 1, "the secret mlflow-password cannot be read"),
        ("no-metadata", 1, "no metadata server"),
    ],
)
def test_whatever_fails_before_the_sweep_is_named_and_switches_off(
    machine, google, fault, code, words
):
    if isinstance(fault, dict):
        google.attributes |= fault
    else:
        (machine.facts / fault).touch()
    if fault == "no-secret":
        google.attributes |= TRACKED
        google.refused.add(SECRET)
    if fault == "no-metadata":
        google.refused.add("/computeMetadata/v1/instance/attributes/?recursive=true")
    assert machine.boot() == code
    assert words in machine.console
    assert machine.switched_off() == OFF
    assert not [words for words in asked(machine.facts) if words.startswith("sweep")]
    if "exit-code" in machine.in_bucket():
        assert words in machine.in_bucket()["startup.log"].decode()
        assert machine.in_bucket()["exit-code"] == f"{code}\n".encode()
    else:  # before the bucket and what may be done were known
        assert fault == "no-metadata" or {*fault} & {"mlproject-bucket", "mlproject-max-hours"}


@pytest.mark.parametrize("bucket", ["there", "refused"])
def test_a_sweep_that_fails_brings_its_records_and_its_code_or_keeps_them_on_the_disk(
    machine, google, bucket
):
    (machine.facts / "sweep-code").write_text("3")
    (machine.facts / "sync-code").write_text("3")
    if bucket == "refused":
        google.refused.add("bucket")
    assert machine.boot() == 3
    assert "sweep --no-track classic" in asked(machine.facts)
    assert machine.switched_off() == OFF
    if bucket == "refused":
        assert "they stay on this machine's disk" in machine.console
        assert (machine.home / "records" / "r1" / "record.json").exists()
    else:
        assert machine.in_bucket()["exit-code"] == b"3\n"
        assert "records.tar.gz" in machine.in_bucket()


@pytest.mark.parametrize("code", [143, 124], ids=["signal", "time over"])
@pytest.mark.long
def test_a_sweep_that_is_ended_still_brings_its_record(machine, code):
    started = hang_in_sweep(machine.facts)
    if code == 124:  # a clock on which twelve hours take a second
        program(
            machine.stand_ins,
            "timeout",
            f"""
            [[ "$1 $2" == "--kill-after=10m 12h" ]] || exit 99
            exec {shutil.which("timeout")} --kill-after=10m 1 "${{@:3}}"
            """,
        )
    process = machine.start()
    started.read_text()
    if code == 143:
        process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == code
    assert machine.record() == b"interrupted\n"
    assert machine.in_bucket()["exit-code"] == f"{code}\n".encode()
    assert machine.switched_off() == OFF


def test_where_shutdown_fails_the_power_is_cut_but_never_of_a_computer_that_is_not_googles(
    machine, google
):
    google.attributes["mlproject-bucket"] = ""
    (machine.facts / "no-shutdown").touch()
    machine.boot()
    assert machine.switched_off() == [*OFF, "poweroff --force"]
    (machine.facts / "off").unlink()
    machine.firmware.write_text("XPS 15\n")
    assert machine.boot() == 2
    assert not (machine.facts / "off").exists()


#: What Google's installer does: it asks for a restart, and installs the driver at the next boot.
INSTALLER = """
import os, pathlib, sys
facts = pathlib.Path(os.environ["FACTS"])
assert sys.argv[1:] == ["install_driver"]
if (facts / "prerequisites").exists():
    (facts / "driver").touch()
else:
    (facts / "prerequisites").touch()
    (facts / "state").write_text("stopping")
"""


@pytest.mark.long
def test_the_driver_installer_may_restart_the_machine_but_not_for_ever(machine, google):
    (machine.facts / "driver").unlink()
    google.installer = INSTALLER
    machine.boot()
    assert machine.switched_off() == []
    assert "this script runs again" in machine.console
    (machine.facts / "state").write_text("running")
    assert machine.boot() == 0, machine.console
    assert machine.switched_off() == OFF
    for name in ("driver", "off"):
        (machine.facts / name).unlink()
    shutil.rmtree(machine.home)
    google.installer = "import os; open(os.environ['FACTS'] + '/state', 'w').write('stopping')"
    for _ in range(4):
        machine.boot()
        assert machine.switched_off() == []
    assert machine.boot() == 1
    assert "no driver after 4 tries" in machine.console
    assert machine.switched_off() == OFF


@pytest.mark.long
def test_a_machine_that_is_started_again_goes_on_with_the_newest_code_or_the_commit_named(
    machine, google
):
    def git(*words):
        command = ["git", "-C", machine.repository, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    first = git("rev-parse", "HEAD")
    google.attributes["mlproject-ref"] = git("branch", "--show-current")
    assert machine.boot() == 0
    (machine.repository / "new").touch()
    commit(machine.repository)
    (machine.home / "records" / "earlier").mkdir()
    assert machine.boot() == 0
    assert (machine.home / "clone" / "new").exists()
    assert (machine.home / "records" / "earlier").exists()
    google.attributes["mlproject-ref"] = first
    assert machine.boot() == 0
    assert f"at {first}" in machine.console
    assert not (machine.home / "clone" / "new").exists()
