"""What `auto` means on this very device."""

from __future__ import annotations

import torch

from bench.config import SYNTHETIC, RunConfig, Switch, max_seconds_on
from bench.errors import UnsupportedError
from bench.machine.cpu import usable_cores
from bench.machine.limits import allocator_in_use
from bench.records import ResolvedConfig
from bench.training.devices import Device
from bench.training.precision import Fp32
from bench.training.workloads import Workload

#: At 300 images/s or more of a core (docs/models-and-data.md), 16 load some 5000.
_MAX_WORKERS = 16
#: On a CPU a loader's core is enough for these: the lightest model, shufflenet_v2_x0_5, takes 90
#: images/s of each, mobilenet_v2 14. Idle loader processes cost memory alone. With fewer cores the
#: step's threads load between two steps: resnet18 amp 1.05 times as fast as beside a process on 2.
_TRAINING_CORES = 4


def resolve(
    config: RunConfig, device: Device, precision: Fp32, workload: Workload
) -> ResolvedConfig:
    """Return the values that `config` takes on `device` with `precision`."""
    image = workload.image
    is_layout_faster = image is not None and device.channels_last(precision.math_mode)[0]
    return ResolvedConfig(
        backend=device.backend,
        math_mode=precision.math_mode,
        convolution_fp32=precision.fp32_math,
        matmul_fp32=precision.fp32_math,
        autocast_dtype=precision.autocast_dtype,
        loss_scaling=precision.loss_scaling,
        native_math=device.native_math(precision.math_mode),
        batch_size=_number(config.batch_size, device.default_batch_size),
        image_size=None if image is None else image.size,
        seq_len=workload.seq_len,
        sample=workload.sample,
        tokens_per_sample=workload.tokens_per_sample,
        max_seconds=max_seconds_on(device.backend, config),
        workers=_workers(config, device),
        pin_memory=_switch(config.pin_memory, device.pins_memory and config.data != SYNTHETIC),
        channels_last=_switch(config.channels_last, is_layout_faster),
        fused_optimizer=_fused_optimizer(config, device, precision),
        depthwise_fp32=precision.autocast_dtype != "none"
        and _switch(config.depthwise_fp32, device.prefers_fp32_depthwise),
        # The processes of one machine share its cores.
        threads=_number(config.threads, max(1, torch.get_num_threads() // config.devices)),
        allocator=allocator_in_use(config.allocator),
    )


def _number(value: int | str, auto: int) -> int:
    return auto if value == "auto" else int(value)


def _switch(value: Switch, auto: bool) -> bool:
    return auto if value == "auto" else value == "true"


def _fused_optimizer(config: RunConfig, device: Device, precision: Fp32) -> bool:
    possible = device.fuses_loss_scaling or not precision.loss_scaling
    if config.fused_optimizer == "true" and not possible:
        raise UnsupportedError(
            f"fused_optimizer=true: not with a scaled loss on {device.backend}; "
            "use fused_optimizer=false, or precision=fp32"
        )
    return _switch(config.fused_optimizer, possible)


def _workers(config: RunConfig, device: Device) -> int:
    if config.data == SYNTHETIC:
        return 0
    cores = usable_cores() // config.devices
    on_cpu = device.backend == "cpu"
    # The thread that drives an accelerator needs a core for itself, or the step waits for it.
    free = cores // _TRAINING_CORES if on_cpu else cores - 1
    least = 0 if on_cpu else 1
    return _number(config.workers, min(_MAX_WORKERS, max(least, free)))
