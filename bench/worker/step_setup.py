"""One configuration opened on its device: all that a step needs, and what is known of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from bench.config import (
    SYNTHETIC,
    RunConfig,
    Switch,
    TimeLimits,
    captures_graphs,
    max_seconds_on,
    rate_unit,
)
from bench.cost import cached_complexity
from bench.cost.estimate import op_work, step_complexity
from bench.errors import UnsupportedError, UserError
from bench.machine import value_or_none
from bench.machine.cpu import others_cpu_s, usable_cores
from bench.machine.environment import read_environment
from bench.machine.limits import allocator_in_use
from bench.machine.repository import model_code
from bench.profilers.torch_profiler import profile_ops
from bench.records import Complexity, Environment, OpProfile, ResolvedConfig, StepSpec
from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter
from bench.records.verdict import of_precision
from bench.training.devices import Device
from bench.training.fp8 import multiply_in_fp8
from bench.training.inputs import NextBatch, open_batches
from bench.training.step import (
    Fp32,
    GraphedStep,
    NvtxPhases,
    Phases,
    TimedPhases,
    TrainingStep,
    fetch_only,
    keep_depthwise_in_fp32,
    make_optimizer,
    math_mode_of,
    open_precision,
    weight_modes,
)
from bench.training.team import Team
from bench.training.window import Step, Window
from bench.training.workloads import Workload, workload_of

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
        fused_optimizer=_switch(config.fused_optimizer, _fuses(device, precision)),
        depthwise_fp32=precision.autocast_dtype != "none"
        and not config.data_only
        and _switch(config.depthwise_fp32, device.prefers_fp32_depthwise),
        # The processes of one machine share its cores.
        threads=_number(config.threads, max(1, torch.get_num_threads() // config.devices)),
        allocator=allocator_in_use(config.allocator),
    )


def _number(value: int | str, auto: int) -> int:
    return auto if value == "auto" else int(value)


def _switch(value: Switch, auto: bool) -> bool:
    return auto if value == "auto" else value == "true"


def _fuses(device: Device, precision: Fp32) -> bool:
    return device.fuses_loss_scaling or not precision.loss_scaling


def _workers(config: RunConfig, device: Device) -> int:
    if config.data == SYNTHETIC:
        return 0
    cores = usable_cores() // config.devices
    on_cpu = device.backend == "cpu"
    # The thread that drives an accelerator needs a core for itself, or the step waits for it.
    free = cores // _TRAINING_CORES if on_cpu else cores - 1
    least = 0 if on_cpu else 1
    return _number(config.workers, min(_MAX_WORKERS, max(least, free)))


#: Switches of `torch.backends` that decide what a step computes, or how fast.
_BACKEND_SWITCHES = (
    *("cuda.matmul.fp32_precision", "cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision"),
    *(f"mkldnn.{name}.fp32_precision" for name in ("conv", "matmul", "rnn")),
    *("cudnn.enabled", "cudnn.benchmark", "cudnn.deterministic"),
    *(["cudnn.depthwise_kernel"] if hasattr(torch.backends.cudnn, "depthwise_kernel") else []),
)


def set_switches(config: RunConfig, precision: Fp32, threads: int) -> None:
    """Set the process-wide switches that `config` asks for.

    Before any tensor is made, and again after a user's file has run, which may have set others.
    """
    precision.apply()
    torch.set_default_dtype(torch.float32)
    torch.backends.cudnn.enabled = True
    torch.backends.cudnn.benchmark = config.cudnn_benchmark and not config.deterministic
    torch.backends.cudnn.deterministic = config.deterministic
    if "cudnn.depthwise_kernel" in _BACKEND_SWITCHES:
        torch.backends.cudnn.depthwise_kernel = config.depthwise_kernel
    elif config.depthwise_kernel != "auto":
        raise UnsupportedError(
            f"depthwise_kernel={config.depthwise_kernel}: torch {torch.__version__} has no such "
            "switch; use auto, or torch 2.15"
        )
    if config.deterministic:
        # cuBLAS reads this when its first handle is made.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Setting these has costs of its own: an import of the compiler's settings, MKL's own count.
    if torch.are_deterministic_algorithms_enabled() != config.deterministic:
        torch.use_deterministic_algorithms(config.deterministic)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def read_switches() -> dict[str, str]:
    """Return what `set_switches` sets, as it is now."""
    found = {name: str(attrgetter(name)(torch.backends)) for name in _BACKEND_SWITCHES}
    return found | {
        "default dtype": str(torch.get_default_dtype()),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "threads": str(torch.get_num_threads()),
    }


def check_accumulation(config: RunConfig, device: Device) -> None:
    """Raise `UnsupportedError` for a compile mode that captures graphs of single passes.

    The second pass of a step would overwrite the gradients that the first has left in the graph's
    memory (pytorch#169545).
    """
    captures = config.compile in ("reduce-overhead", "max-autotune") and device.supports_cuda_graphs
    if captures and config.grad_accum_steps > 1:
        raise UnsupportedError(
            f"compile={config.compile} captures CUDA graphs, which cannot accumulate gradients: "
            "use compile=default, or grad_accum_steps=1"
        )


@dataclass(frozen=True)
class ReadyStep:
    """A configuration whose step can run; calling `step` runs it once and returns its loss."""

    config: RunConfig
    resolved: ResolvedConfig
    device: Device
    window: Window
    team: Team
    step: Step
    journal: JournalWriter

    @property
    def limits(self) -> TimeLimits:
        """How long warm-up and window may take."""
        return TimeLimits.of(self.config, self.device.backend)

    @property
    def samples(self) -> int:
        """Samples of one iteration, on all devices."""
        config = self.config
        return self.resolved.batch_size * config.grad_accum_steps * config.world_size

    def warm_up(self, *, window: bool = True) -> None:
        """Run the warm-up; `window`: whether a window follows."""
        limits, follow = self.limits, self.limits.iters if window else 0
        rate = {"samples": self.samples, "unit": rate_unit(self.resolved.sample)}
        self.journal.note("warmup_started", **asdict(replace(limits, iters=follow)), **rate)
        self.window.warm_up(self.step, limits, lambda s: self.journal.note("warmup", seconds=s))

    def profile_ops(self, pairs: int, trace_file: Path | None = None) -> OpProfile:
        """Time the step's ops, beside the cost model's work where it can follow the model."""
        spec = StepSpec.of(self.config, self.resolved)
        try:
            work = op_work(spec, grad_accum_steps=self.config.grad_accum_steps)
        except UserError:  # as the complexity says
            work = ()
        alone = self.config.world_size == 1
        return profile_ops(self.step, self.device, work, pairs, trace_file, alone=alone)

    def measure(self) -> None:
        """Run the measured window."""
        limits = self.limits
        plan = self.team.plan(limits, self.window.warmup_times_s)
        self.journal.note("window_started", **asdict(replace(limits, iters=plan.iterations)))
        watched = self.device.backend == "cpu" and self.config.world_size == 1
        began_s, before_s = time.perf_counter(), value_or_none(others_cpu_s) if watched else None
        self.window.measure(self.step, plan)
        if before_s is not None:
            used_s, took_s = others_cpu_s() - before_s, time.perf_counter() - began_s
            self.window.other_cpu_cores = max(0.0, used_s / took_s)
        self.journal.note("window_ended")


class StepSetup:
    """Sets a configuration's step up; what it has reached stays readable if it is interrupted."""

    def __init__(self, config: RunConfig, journal: JournalWriter, team: Team | None = None) -> None:
        self.config = config
        self._team = team or Team()
        self.resolved: ResolvedConfig | None = None
        self.ready: ReadyStep | None = None
        self.startup_s: dict[str, float] = {}
        self._device: Device | None = None
        self._switches: dict[str, str] = {}
        self._changed: dict[str, None] = {}  # in the order in which they were seen
        # As early as it is imported: a user may go on editing while this measures.
        self._code = model_code(config.arch)
        self._journal = journal

    @contextmanager
    def opened(self) -> Iterator[ReadyStep]:
        """Open device, data and model; end the loader processes afterwards."""
        config, team = self.config, self._team
        device = self._device = team.open_device(config)
        self._journal.note("device", backend=device.backend, uuid=device.info().uuid)
        precision = open_precision(config.precision, device)
        threads = torch.get_num_threads()
        torch.manual_seed(config.seed)
        set_switches(config, precision, threads)
        with self._timed("model"):
            workload = workload_of(config)
        set_switches(config, precision, threads)
        resolved = self.resolved = resolve(config, device, precision, workload)
        phases = Phases()
        if config.phases:
            phases = TimedPhases(device, time.perf_counter)
        elif config.nvtx and device.backend == "cuda":
            phases = NvtxPhases()
        with self._timed("data"):
            batches = open_batches(config, resolved, workload, device.torch_device, team.shard)
        try:
            with self._timed("model"):
                step: Callable[[NextBatch], torch.Tensor] = fetch_only
                if not config.data_only:
                    step = self._built(resolved, workload, device, precision, phases)
            set_switches(config, precision, resolved.threads)
            self._switches = read_switches()
            if not config.data_only:
                for finding in of_precision(self.resolved, config.precision):
                    self._journal.note("notice", text=finding.sentence)
            window = Window(
                time.perf_counter,
                device,
                team.barrier,
                team.most,
                phases,
                replays_graphs=captures_graphs(config) and device.supports_cuda_graphs,
            )
            next_batch = window.waiting(batches.next)
            device.reset_peak_memory()
            run = partial(step, next_batch)
            self.ready = ReadyStep(config, self.resolved, device, window, team, run, self._journal)
            yield self.ready
        except (UserError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:
            if self.ready is not None and not self.ready.window.warmup_times_s:
                self._refuse_size(self.resolved)
            raise
        finally:
            batches.close()

    def _built(
        self,
        resolved: ResolvedConfig,
        workload: Workload,
        device: Device,
        precision: Fp32,
        phases: Phases,
    ) -> Callable[[NextBatch], torch.Tensor]:
        """The training step of the workload's model, on the device, in its layout.

        From then on our `resolved` is without what this model has no layers or no fused optimizer
        for, in the arithmetic of its weights.
        """
        config, team = self.config, self._team
        model = workload.build().to(device.torch_device)
        layout = torch.channels_last if resolved.channels_last else torch.contiguous_format
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.dim() == 4:  # torch's own `.to` refuses this layout of a model with five
                tensor.data = tensor.data.contiguous(memory_format=layout)
        if any(getattr(layer, "sparse", False) is True for layer in model.modules()):
            raise UserError(
                f"arch={config.arch!r}: torch's optimizers with weight decay take no sparse "
                "gradients; make the layer with sparse=False"
            )
        obstacle = (
            "" if _fuses(device, precision) else f"not with a scaled loss on {device.backend}"
        )
        if any(parameter.is_complex() for parameter in model.parameters()):
            obstacle = "torch's fused optimizers take no complex parameters"
            if resolved.fused_optimizer and config.fused_optimizer == "auto":
                self._journal.note("notice", text=f"fused_optimizer=auto is false: {obstacle}")
        if obstacle and config.fused_optimizer == "true":
            raise UnsupportedError(f"fused_optimizer=true: {obstacle}; use fused_optimizer=auto")
        autocast = resolved.autocast_dtype != "none"
        mode = math_mode_of(weight_modes(model.modules()), resolved.math_mode, autocast=autocast)
        depthwise_fp32 = resolved.depthwise_fp32 and keep_depthwise_in_fp32(model)
        if mode == "fp8":
            cached_complexity(StepSpec.of(config, resolved))  # refuses a step that has none of it
            multiply_in_fp8(model)
        fused = resolved.fused_optimizer and not obstacle
        own = {"math_mode": mode, "native_math": device.native_math(mode), "fused_optimizer": fused}
        self.resolved = resolved.model_copy(update={"depthwise_fp32": depthwise_fp32, **own})
        captured = config.cuda_graphs
        optimizer = make_optimizer(model, config.optimizer, fused=fused, captured=captured)
        shared = team.wrap(model, device)
        called: Callable[..., Any] = shared
        if config.compile != "none":
            check_accumulation(config, device)
            called = torch.compile(shared, mode=config.compile)
        step = TrainingStep(
            workload,
            called,
            optimizer,
            precision,
            grad_accum_steps=config.grad_accum_steps,
            phases=phases,
            no_gradient_sync=team.no_gradient_sync,
        )
        if not config.cuda_graphs:
            return step
        return GraphedStep(step, precision, device, reuses_batch=config.data == SYNTHETIC)

    def changed_switches(self) -> tuple[str, ...]:
        """Return the switches that the step has set otherwise since it was set up.

        With those that it had set back by now, if a step was looked into.
        """
        self._note_switches()
        return tuple(self._changed)

    def _note_switches(self, *_: object) -> None:
        now = read_switches() if self._switches else {}
        changed = (f"{name} to {now[name]}" for name in now if now[name] != self._switches[name])
        self._changed |= dict.fromkeys(changed)

    @contextmanager
    def looked_into(self) -> Iterator[None]:
        """Read the switches around each module of the block; of a compiled step only after it."""
        kinds = (register_module_forward_pre_hook, register_module_forward_hook)
        compiled = self.config.compile != "none"
        hooks = [hook(self._note_switches) for hook in (() if compiled else kinds)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _refuse_size(self, resolved: ResolvedConfig) -> None:
        """Raise `UserError` if the model can be trained, but not at the size that was asked for.

        The first step has failed; the cost model, which runs it on no device, shows whether it is
        the size.
        """
        if self.config.data_only or (self.config.image_size == self.config.seq_len == "auto"):
            return
        spec = StepSpec.of(self.config, resolved)
        try:
            step_complexity(replace(spec, image_size=None, seq_len=None))
        except UserError:
            return
        step_complexity(spec)

    def environment(self, folder: RecordFolder) -> Environment | None:
        """Return the machine and software, if a device was opened."""
        if self._device is None:
            return None
        return read_environment(self._device.info(), folder.path, self.config.env, self._code)

    def complexity(self) -> Complexity | None:
        """Return what a step has to do, if the configuration was resolved on a device."""
        if self.resolved is None or self._device is None:
            return None
        cache_bytes = self._device.info().last_level_cache_bytes
        return cached_complexity(StepSpec.of(self.config, self.resolved, cache_bytes=cache_bytes))

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        took_s = time.perf_counter() - begin
        self.startup_s[name] = self.startup_s.get(name, 0.0) + took_s
