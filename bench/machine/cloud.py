"""Which cloud this machine is rented from, by the firmware's marks, then the metadata server.

The metadata server is asked only where the firmware names Google, Amazon or Microsoft: no
other network sees a request.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from bench.machine.probes import (
    ROOT,
    ProbedFacts,
    UnknownFactError,
    absent,
    gather,
    text_of,
    value_or_none,
)
from bench.machine.virtualization import read_dmi

#: Provider, DMI field and its text: cloud-init's tools/ds-identify has these marks.
_MARKS = (
    ("gcp", "product_name", "Google Compute Engine"),
    ("aws", "sys_vendor", "Amazon EC2"),
    ("azure", "chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
    ("oracle", "chassis_asset_tag", "OracleCloud.com"),
    ("alibaba", "product_name", "Alibaba Cloud ECS"),
    ("digitalocean", "sys_vendor", "DigitalOcean"),
    ("hetzner", "sys_vendor", "Hetzner"),
    ("scaleway", "sys_vendor", "Scaleway"),
    ("vultr", "sys_vendor", "Vultr"),
)
#: The address that all three use; a number, so that no name server is asked.
METADATA_SERVER = ("169.254.169.254", 80)
_TIMEOUT_S = 1.0

Ask = Callable[..., str]


def cloud_facts(root: Path = ROOT, server: tuple[str, int] = METADATA_SERVER) -> ProbedFacts:
    """Return `cloud_provider`, `cloud_machine_type` and `cloud_zone`, asking at most 3 s."""
    found = gather({"cloud_provider": lambda: _provider(root)})
    provider = found.values["cloud_provider"]
    names = ("cloud_machine_type", "cloud_zone")
    if provider not in _METADATA:
        reason = f"not asked for on {provider}" if provider else "no cloud provider is known"
        return found | absent(dict.fromkeys(names, reason))

    try:
        answers = _METADATA[provider](partial(_request, server))
        return found | ProbedFacts(dict(zip(names, answers, strict=True)), {})
    except UnknownFactError as error:
        return found | absent(dict.fromkeys(names, str(error)))


def _provider(root: Path) -> str:
    fields = read_dmi(root)
    for provider, field, mark in _MARKS:
        if fields.get(field) == mark:
            return provider
    xen_uuid = value_or_none(lambda: text_of(root / "sys/hypervisor/uuid"))
    if xen_uuid and xen_uuid.startswith("ec2"):  # Amazon's machines of the Xen age
        return "aws"
    maker = " ".join(fields.get(name, "") for name in ("sys_vendor", "product_name")).strip()
    raise UnknownFactError(
        f"the firmware's maker, {maker}, is no cloud known here"
        if maker
        else "the firmware names no maker"
    )


def _gcp(ask: Ask) -> tuple[str, str]:
    """cloud.google.com/compute/docs/metadata/predefined-metadata-keys."""
    headers = {"Metadata-Flavor": "Google"}
    values = (
        ask(f"/computeMetadata/v1/instance/{key}", headers) for key in ("machine-type", "zone")
    )
    machine_type, zone = (value.rpartition("/")[2] for value in values)  # projects/1/zones/us-a
    return machine_type, zone


def _aws(ask: Ask) -> tuple[str, str]:
    """docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html."""
    token = ask("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    headers = {"X-aws-ec2-metadata-token": token}
    machine_type = ask("/latest/meta-data/instance-type", headers)
    return machine_type, ask("/latest/meta-data/placement/availability-zone", headers)


def _azure(ask: Ask) -> tuple[str, str]:
    """learn.microsoft.com/azure/virtual-machines/instance-metadata-service."""
    answer = ask("/metadata/instance/compute?api-version=2021-02-01", {"Metadata": "true"})
    try:
        compute = json.loads(answer)
        zone = (
            f"{compute['location']}-{compute['zone']}" if compute["zone"] else compute["location"]
        )
        return compute["vmSize"], zone
    except (ValueError, KeyError, TypeError) as error:
        raise UnknownFactError(f"the metadata server's answer is not understood: {error}") from None


_METADATA: dict[str, Callable[[Ask], tuple[str, str]]] = {"gcp": _gcp, "aws": _aws, "azure": _azure}


def _request(
    server: tuple[str, int], path: str, headers: Mapping[str, str], method: str = "GET"
) -> str:
    """One request, straight to the server: a proxy's answer would describe the proxy's machine."""
    connection = http.client.HTTPConnection(*server, timeout=_TIMEOUT_S)
    try:
        connection.request(method, path, headers=dict(headers))
        response = connection.getresponse()
        body = response.read().decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise UnknownFactError(f"the metadata server does not answer: {reason}") from None
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK or not body:
        raise UnknownFactError(f"the metadata server answers {response.status} to {path}")
    return body
