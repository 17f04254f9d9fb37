"""Whether two records are of the same device, as far as machines can be distinguished."""

from __future__ import annotations

from bench.records import DeviceInfo, Environment

#: The same machine reports slightly less memory after a kernel or firmware update.
_MEMORY_TOLERANCE = 0.02
#: Power limits are set in whole watts; one of 150 W reads as 149.99 or 150.0 W, by driver.
_POWER_TOLERANCE_W = 1.0


def same_device(theirs: Environment, ours: Environment) -> bool:
    """By UUID where both have one, else by name and by the machine's figures."""
    if theirs.device.backend != ours.device.backend:
        return False
    if theirs.device.uuid is not None and ours.device.uuid is not None:
        return theirs.device.uuid == ours.device.uuid
    return _figures(theirs) == _figures(ours) and _alike(theirs.memory_bytes, ours.memory_bytes)


def alike_devices(theirs: Environment, ours: Environment) -> bool:
    """Whether both are of one kind: what trains has the same name and the same figures."""
    if theirs.device.backend != ours.device.backend:
        return False
    if ours.device.backend == "cpu":
        return same_device(theirs, ours)
    a_bytes, b_bytes = theirs.device.memory_bytes, ours.device.memory_bytes
    if a_bytes is None or b_bytes is None:
        return theirs.device.name == ours.device.name and a_bytes is b_bytes
    return theirs.device.name == ours.device.name and _alike(a_bytes, b_bytes)


def same_power_limit(theirs: DeviceInfo, ours: DeviceInfo) -> bool:
    """Whether both run at one limit, or neither knows of any."""
    if theirs.power_limit_w is None or ours.power_limit_w is None:
        return theirs.power_limit_w is ours.power_limit_w
    return is_power_limit(theirs.power_limit_w, ours.power_limit_w)


def is_power_limit(read_w: float, set_w: float) -> bool:
    """Whether a limit that was set to `set_w` may read as `read_w`."""
    return abs(read_w - set_w) <= _POWER_TOLERANCE_W


def _figures(environment: Environment) -> tuple[object, ...]:
    device = environment.device
    return (
        device.name,
        device.cores,
        environment.machine,
        environment.cpu_model,
        environment.cpu_signature,
        environment.cpu_cores_usable,
    )


def _alike(a_bytes: int, b_bytes: int) -> bool:
    return abs(a_bytes - b_bytes) <= _MEMORY_TOLERANCE * max(a_bytes, b_bytes)
