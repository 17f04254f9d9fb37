import hashlib
import json
import platform
import socket
from collections import namedtuple
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from unittest.mock import Mock

import psutil
import pytest

from bench.errors import Unknown
from bench.machine import UnknownFactError, environment, output_of, probe, registry_text, text_of
from bench.machine.environment import cloud_facts, host
from bench.machine.limits import container, virtualization

pytestmark = pytest.mark.usefixtures("on_linux")

Battery = namedtuple("Battery", "percent power_plugged")
Mount = namedtuple("Mount", "mountpoint fstype")
BARE = {
    "proc/sys/kernel/osrelease": "6.8.0-31-generic\n",
    "proc/cpuinfo": "processor : 0\nflags\t\t: fpu vme sse2\n",
}


@pytest.mark.parametrize(
    ("files", "runtime"),
    [
        ({}, "none"),
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": "", ".dockerenv": ""}, "podman"),
        ({"var/run/secrets/kubernetes.io/token": "", ".dockerenv": ""}, "kubernetes"),
        ({".singularity.d/runscript": ""}, "apptainer"),
        ({"run/systemd/container": "lxc\n"}, "lxc"),
    ],
)
def test_container_runtimes_leave_signs(tree, files, runtime):
    tree({**BARE, **files})
    assert container(environ={}) == runtime
    named = {"MLPROJECT_IMAGE": "mlproject:7"}  # nothing inside a container knows its image
    assert container(named) == runtime + (runtime != "none") * " (mlproject:7)"
    in_pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert container(in_pod) == "kubernetes"


def test_a_machine_is_named_by_its_id_and_name_and_a_container_has_neither(tree, monkeypatch):
    """The sums of `lab 1234` and `lab2 1234`: a copy of a disk has the id of the first."""
    tree({**BARE, "etc/machine-id": "1234\n"})
    monkeypatch.setattr(platform, "node", lambda: "lab")
    assert host() == hashlib.sha256(b"lab 1234").hexdigest()[:12]
    monkeypatch.setattr(platform, "node", lambda: "lab2")
    assert host() == hashlib.sha256(b"lab2 1234").hexdigest()[:12]
    tree({".dockerenv": ""})
    with pytest.raises(UnknownFactError, match="docker does not show which machine"):
        host()
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    told = '  "IOPlatformUUID" = "AB-12"\n  "model" = <"Mac14">'
    monkeypatch.setattr("bench.machine.environment.output_of", lambda *_: told)
    assert host() == hashlib.sha256(b"AB-12").hexdigest()[:12]


FLAGGED = {"proc/cpuinfo": "flags : fpu hypervisor lahf_lm\n"}


@pytest.mark.parametrize(
    ("systemd", "files", "hypervisor"),
    [
        (None, {}, "none"),
        (None, {"proc/sys/kernel/osrelease": "4.4.0-19041-Microsoft"}, "wsl1"),
        ("microsoft", {"proc/sys/kernel/osrelease": "5.15.90.1-microsoft-standard-WSL2"}, "wsl2"),
        ("kvm", FLAGGED, "kvm"),
        ("none; exit 1", {}, "none"),
        (None, FLAGGED, "unidentified"),
        (None, {**FLAGGED, "sys/class/dmi/id/sys_vendor": "VMware, Inc.\n"}, "vmware"),
        (None, {"proc/cpuinfo": "Features : fp asimd\n"}, None),  # Arm's do not say
    ],
)
def test_hypervisors_by_systemds_word_or_the_firmwares(
    tree, only_programs, systemd, files, hypervisor
):
    if systemd:
        only_programs("systemd-detect-virt", f"echo {systemd}")
    tree({**BARE, **files})
    if hypervisor is None:
        with pytest.raises(UnknownFactError, match="neither systemd nor the processor"):
            virtualization()
    else:
        assert virtualization() == hypervisor


def test_the_innermost_mount_holds_the_folder(tmp_path, monkeypatch):
    inner = tmp_path / "data"
    kinds = (("/", "ext4"), (inner, "nfs4"), (inner, "xfs"), (f"{inner}-elsewhere", "tmpfs"))
    mounts = [Mount(str(place), kind) for place, kind in kinds]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
    assert environment.storage(tmp_path / "records") == "ext4"
    # Of two mounts on one point the later is the one seen; the folder need not exist yet.
    assert environment.storage(inner / "records") == "xfs"
    mounts.clear()
    with pytest.raises(UnknownFactError, match="no mounted file system"):
        environment.storage(tmp_path)


@pytest.mark.parametrize(
    ("battery", "hypervisor", "source"),
    [
        (Battery(50, True), "none", "mains"),
        (Battery(50, False), "none", "battery"),
        (None, "none", "mains"),
        (Battery(50, None), "none", None),
        (None, "kvm", None),  # it may not see its host's battery
        (None, None, None),
    ],
)
def test_the_power_source_where_it_is_known(monkeypatch, battery, hypervisor, source):
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    if source is not None:
        assert environment.power_source(hypervisor) == source
        return
    with pytest.raises(UnknownFactError, match="does not show" if battery else "virtual machine"):
        environment.power_source(hypervisor)


@pytest.mark.parametrize(
    ("system", "function", "answer", "name"),
    [
        ("Darwin", "mac_ver", {"return_value": ("14.5", ("", "", ""), "arm64")}, "macOS 14.5"),
        ("Windows", "release", {"return_value": "11"}, "Windows 11"),
        ("Linux", "freedesktop_os_release", {"return_value": {"PRETTY_NAME": "Ubuntu"}}, "Ubuntu"),
        ("Linux", "freedesktop_os_release", {"side_effect": OSError("no os-release")}, "Linux"),
    ],
)
def test_operating_systems_by_name(monkeypatch, system, function, answer, name):
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr(f"platform.{function}", Mock(**answer))
    assert environment.os_name() == name


# How a fact is read


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UnknownFactError("nobody tells"), "nobody tells"),
        (ZeroDivisionError("division by zero\nat line 2"), "ZeroDivisionError: division by zero"),
        (KeyError(), "KeyError"),
    ],
)
def test_a_probe_that_raises_gives_its_reason(error, reason):
    def fails(name, *, twice):
        raise error

    assert probe(fails, "it", twice=True) == Unknown(reason)
    assert probe(max, 2, 3) == 3


def test_an_absent_file_or_program_is_named_and_a_failing_programs_complaint_is_the_reason(
    program, tmp_path, monkeypatch
):
    (tmp_path / "model").write_bytes(b"Raspberry Pi 5\0")
    assert text_of(tmp_path / "model") == "Raspberry Pi 5"
    program("grumble", "echo 'fatal: bad owner' >&2; echo more >&2; exit 128")
    program("hang", "exec sleep 60")
    program("show", 'echo "$LC_ALL ${GIT_DIR-unset}"')
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    assert output_of("show") == "C /elsewhere"
    assert output_of("show", unset=("GIT_DIR",)) == "C unset"
    assert output_of("grumble", accepted_codes=(0, 128)) == ""
    for read, reason in (
        (lambda: text_of(tmp_path / "nothing-here"), "nothing-here: No such file"),
        (lambda: output_of("no-such-program"), "no program no-such-program here"),
        (lambda: output_of("grumble"), "^grumble: fatal: bad owner$"),
        (lambda: output_of("hang", timeout_s=0.1), r"hang gave no answer in 0\.1 s"),
        (lambda: registry_text("SYSTEM", "no-such-name"), "registry"),  # not here, or not in it
    ):
        with pytest.raises(UnknownFactError, match=reason):
            read()


# Clouds: a real HTTP server on this machine stands in for their metadata servers


GCP = {"product_name": "Google Compute Engine", "sys_vendor": "Google"}
AWS = {"sys_vendor": "Amazon EC2", "product_name": "g5.xlarge"}
AZURE = {
    "sys_vendor": "Microsoft Corporation",
    "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77",
}
GCP_PATH, AWS_PATH = "/computeMetadata/v1/instance", "/latest/meta-data"
AZURE_PATH = "/metadata/instance/compute?api-version=2021-02-01"
NAMES = ("cloud_provider", "cloud_machine_type", "cloud_zone")


class Handler(BaseHTTPRequestHandler):
    """Answers (method, path) with a text if the named header came along; keeps what was asked."""

    def _answer(self):
        self.server.asked.append((self.command, self.path))
        text, header, value = self.server.answers.get((self.command, self.path), ("", "", ""))
        allowed = text and self.headers.get(header) == value
        self.send_response(200 if allowed else 403)
        self.end_headers()
        self.wfile.write(text.encode() if allowed else b"<h1>Forbidden</h1>")

    do_GET = do_PUT = _answer  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.answers, running.asked = {}, []
        Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def facts_of(tree, monkeypatch):
    """Return what a machine of this firmware finds out from a server."""

    def found(fields, address):
        tree({f"sys/class/dmi/id/{name}": f"{text}\n" for name, text in fields.items()})
        url = "http://{}:{}".format(*address)
        monkeypatch.setattr("bench.machine.environment.METADATA_URL", url)
        return cloud_facts()

    return found


def answers_of_azure(zone):
    compute = {"vmSize": "Standard_NC4as_T4_v3", "location": "westeurope", "zone": zone}
    return {("GET", AZURE_PATH): (json.dumps(compute), "Metadata", "true")}


FLAVOR = ("Metadata-Flavor", "Google")
TOKEN = ("X-aws-ec2-metadata-token", "secret")
TOKEN_AGE = ("X-aws-ec2-metadata-token-ttl-seconds", "60")


ANSWERS_OF_GCP = {
    ("GET", f"{GCP_PATH}/machine-type"): ("projects/1/types/g2-standard-8", *FLAVOR),
    ("GET", f"{GCP_PATH}/zone"): ("projects/12/zones/europe-west4-a", *FLAVOR),
}
ANSWERS_OF_AWS = {
    ("PUT", "/latest/api/token"): ("secret", *TOKEN_AGE),
    ("GET", f"{AWS_PATH}/instance-type"): ("g5.xlarge", *TOKEN),
    ("GET", f"{AWS_PATH}/placement/availability-zone"): ("eu-central-1b", *TOKEN),
}


@pytest.mark.parametrize(
    ("fields", "answers", "facts"),
    [
        (GCP, ANSWERS_OF_GCP, ("gcp", "g2-standard-8", "europe-west4-a")),
        (AWS, ANSWERS_OF_AWS, ("aws", "g5.xlarge", "eu-central-1b")),
        (AZURE, answers_of_azure("2"), ("azure", "Standard_NC4as_T4_v3", "westeurope-2")),
        (AZURE, answers_of_azure(""), ("azure", "Standard_NC4as_T4_v3", "westeurope")),
    ],
)
def test_a_cloud_is_known_by_its_firmware_and_its_metadata(
    facts_of, server, monkeypatch, fields, answers, facts
):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # a proxy is not asked
    server.answers = answers
    found = facts_of(fields, server.server_address)
    assert found == dict(zip(NAMES, facts, strict=True))


def test_a_server_that_does_not_tell_is_a_reason(facts_of, server, monkeypatch):
    monkeypatch.setattr("bench.machine.environment._TIMEOUT_S", 0.05)
    server.answers = {("GET", AZURE_PATH): ("<html>", "Metadata", "true")}
    with socket.socket() as unused, socket.create_server(("127.0.0.1", 0)) as silent:
        unused.bind(("127.0.0.1", 0))
        for maker, address, reason in (
            (AZURE, server.server_address, "JSONDecodeError"),
            (GCP, server.server_address, "403: Forbidden"),
            (GCP, unused.getsockname(), "Connection refused"),
            (AWS, silent.getsockname(), "timed out"),
        ):
            found = facts_of(maker, address)
            assert found["cloud_provider"] in ("azure", "gcp", "aws")
            assert reason in found["cloud_zone"].reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "maker, not named, is no cloud"),
        ({"sys_vendor": "Hetzner", "product_name": "vServer"}, "Hetzner vServer"),
        ({"sys_vendor": "Google", "product_name": "Eve"}, "Google Eve"),  # a Chromebook
    ],
)
def test_machines_of_other_makers_ask_no_server_and_are_named(facts_of, server, fields, reason):
    found = facts_of(fields, server.server_address)
    assert server.asked == []
    assert reason in found["cloud_provider"].reason
    why = "no cloud provider is known"
    assert found["cloud_machine_type"].reason == found["cloud_zone"].reason == why
