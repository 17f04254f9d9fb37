"""From a resolved configuration to a step that is ready to run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from bench.config import RunConfig
from bench.records import ResolvedConfig
from bench.records.journal import Clock
from bench.training.devices import Device
from bench.training.fetching import FetchingStep
from bench.training.models import build_model
from bench.training.phases import NvtxPhases, Phases, TimedPhases
from bench.training.precision import Fp32, keep_depthwise_in_fp32
from bench.training.step import GraphedStep, TrainingStep, make_optimizer
from bench.training.team import Team

Batch = tuple[torch.Tensor, torch.Tensor]


def set_switches(config: RunConfig, resolved: ResolvedConfig) -> None:
    """Set the process-wide switches that `config` asks for, before any tensor is made."""
    torch.manual_seed(config.seed)
    if config.threads != "auto" or config.devices > 1:
        torch.set_num_threads(resolved.threads)
    torch.backends.cudnn.benchmark = config.cudnn_benchmark and not config.deterministic
    if config.deterministic:
        # cuBLAS reads this when its first handle is made.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)


def open_phases(config: RunConfig, device: Device, clock: Clock) -> Phases:
    """Return the marks that `config` asks for around the parts of a step."""
    if config.phases:
        return TimedPhases(device, clock)
    if config.nvtx and device.backend == "cuda":
        return NvtxPhases()
    return Phases()


def build_step(
    config: RunConfig,
    resolved: ResolvedConfig,
    device: Device,
    precision: Fp32,
    phases: Phases,
    team: Team,
) -> tuple[Callable[[Callable[[], Batch]], torch.Tensor], ResolvedConfig]:
    """Return the training step of `config`'s model, on the device, in its layout.

    With `data_only` there is no model, and the step only fetches. Beside the step comes `resolved`
    without what this model has no layers for.
    """
    if config.data_only:
        return FetchingStep(), resolved.model_copy(update={"depthwise_fp32": False})
    layout = torch.channels_last if resolved.channels_last else torch.contiguous_format
    model = build_model(config.arch).to(device.torch_device).to(memory_format=layout)
    depthwise_fp32 = resolved.depthwise_fp32 and keep_depthwise_in_fp32(model)
    resolved = resolved.model_copy(update={"depthwise_fp32": depthwise_fp32})
    optimizer = make_optimizer(model, fused=resolved.fused_optimizer)
    shared = team.wrap(model, device)
    forward: Callable[[torch.Tensor], Any] = shared
    if config.compile != "none":
        forward = torch.compile(shared, mode=config.compile)
    step = TrainingStep(
        forward,
        optimizer,
        precision,
        grad_accum_steps=config.grad_accum_steps,
        phases=phases,
        apart=team.apart,
    )
    return GraphedStep(step, precision, device) if config.cuda_graphs else step, resolved
