"""Which runs were measured on the very same thing."""

from __future__ import annotations

import hashlib
import json

from bench.records import Environment


def environment_id(environment: Environment) -> str:
    """Return twelve hex digits, equal for runs of one machine, device, driver and torch.

    Machines without any serial number that are alike in all of this have the same identifier
    unless their labels differ.
    """
    device = environment.device
    defining = [
        *(environment.label, environment.machine, environment.cpu_model),
        environment.cpu_signature,
        *(environment.cpu_cores_usable, environment.torch, environment.cuda, environment.cudnn),
        *(device.backend, device.name, device.uuid, device.driver),
    ]
    return hashlib.sha256(json.dumps(defining).encode()).hexdigest()[:12]
