"""What is asked for: one configuration, validated before anything slow starts, and its text."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    model_validator,
)

from bench.config.model_names import check_architecture, missing_package, split_arch, without_home
from bench.config.resolved import Legacy, legacy_defaults
from bench.errors import UserError

Backend = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["fp32", "tf32", "amp", "amp-bf16", "amp-fp16", "fp8"]
CompileMode = Literal["none", "default", "reduce-overhead", "max-autotune"]
Switch = Literal["auto", "true", "false"]
Auto = Literal["auto"]


def _no_switch(value: object) -> object:
    """YAML's `true` and `yes` are no numbers, though Python counts with them."""
    if isinstance(value, bool):
        raise ValueError("a number")
    return value


Whole = Annotated[int, BeforeValidator(_no_switch), Field(ge=0, lt=2**32)]
PositiveInt = Annotated[int, BeforeValidator(_no_switch), Field(ge=1, lt=2**31)]
AutoCount = Auto | PositiveInt

SYNTHETIC = "synthetic"
FAKEDATA = "fakedata"

#: Fields that say how a run is filed, or what is done after it, not what is measured; they do not
#: enter `config_id`.
FILING_FIELDS = frozenset({"repeat", "env", "campaign", "explain"})

#: Fields that say how long is measured, not what; they do enter `config_id`.
WINDOW_FIELDS = frozenset({"warmup_iters", "iters", "max_seconds"})

#: What `auto` is of these at least, and in `config_id`: the number that it stands for.
LEAST = {"warmup_iters": 10, "iters": 100}


def _plain_label(label: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", label):
        raise ValueError("use 1 to 64 letters, digits, dots, dashes and underscores")
    return label


def _named_data(data: str) -> str:
    if not data.strip() or "\0" in data:
        raise ValueError("give synthetic, fakedata or the path of an ImageFolder")
    return without_home(data.rstrip("/\\") or data)  # a shell's completion ends a folder by one


#: The context of reading what was recorded: its model's package or file need not be here.
RECORDED = {"recorded": True}
#: The context of a plan that several machines carry out: only a package that is here is asked.
PLANNED = {"planned": True}


def _known_model(arch: str, info: ValidationInfo) -> str:
    if info.context == RECORDED or (info.context == PLANNED and missing_package(arch)):
        return arch
    return check_architecture(arch)


Label = Annotated[str, AfterValidator(_plain_label)]


#: Settings that leave no room for these others, and why.
_ALONE = {
    "cuda_graphs": "replays one captured step, of one batch on one device",
    "data_only": "runs no step, and measures the loader of one process",
}
_OF_A_STEP = ("phases", "compile", "cuda_graphs", "grad_accum_steps", "devices", "nodes")


class RunConfig(BaseModel):
    """One configuration: model x backend x precision x batch, its data and its knobs.

    `auto` is resolved on the device by the worker; the values used are kept in `ResolvedConfig`.
    Raises `pydantic.ValidationError` on construction; `parse_config` turns that into a `UserError`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    arch: Annotated[str, AfterValidator(_known_model)] = Field(
        "resnet18",
        description="torchvision classification model, timm:NAME, hf:NAME of transformers, "
        "or module:callable that returns a module or a training step",
    )
    backend: Backend = Field("auto", description="auto takes CUDA, then MPS, then the CPU")
    precision: Precision = Field(
        "fp32",
        description="fp32, IEEE; tf32; amp, bf16 where the device has it natively, else fp16, "
        "else fp32; amp-bf16 or amp-fp16, emulated where the device lacks it; fp8, amp-bf16 "
        "with linear layers in 8 bits, on NVIDIA GPUs from Ada and Hopper on",
    )
    batch_size: AutoCount = Field(
        "auto",
        description="samples (images or sequences) per forward pass and device; "
        "auto: 128 on CUDA, 64 on MPS, 16 on a CPU",
    )
    devices: Annotated[PositiveInt, Legacy(1)] = Field(
        1,
        description="devices of each machine that train together, a process for each; "
        "processes on a CPU share its cores",
    )
    nodes: Annotated[PositiveInt, Legacy(1)] = Field(
        1, description="machines that train together, each with as many devices"
    )
    data: Annotated[str, AfterValidator(_named_data)] = Field(
        SYNTHETIC,
        description="synthetic (made once on the device), fakedata, or an ImageFolder's path",
    )
    data_only: Annotated[bool, Legacy(False)] = Field(
        False, description="measure the loader alone: an iteration fetches a batch, no model runs"
    )
    image_size: AutoCount = Field("auto", description="pixels a side; auto: the model's own size")
    seq_len: Annotated[AutoCount, Legacy("auto")] = Field(
        "auto",
        description="tokens of a sequence; auto: 128, or the most that the model takes",
    )
    warmup_iters: AutoCount = Field(
        "auto",
        description="iterations before the measured window; auto: until the device is warm, "
        "at least 10",
    )
    iters: AutoCount = Field(
        "auto",
        description="iterations of the measured window; auto: until the pace is known to 1.5 %, "
        "at least 100",
    )
    max_seconds: (
        Literal["auto", "none"]
        | Annotated[float, BeforeValidator(_no_switch), Field(gt=0, allow_inf_nan=False)]
    ) = Field(
        "auto",
        description="end the window after this time, but not before 4 iterations, and the "
        "warm-up after a third of it, but not before 2; none: no limit; "
        "auto: 30 on a CPU, 600 elsewhere",
    )
    workers: Auto | Annotated[Whole, Field(lt=4096)] = Field(
        "auto",
        description="processes that decode images; with 0 the step's threads do; "
        "auto: from the cores, at most 16",
    )
    prefetch_factor: PositiveInt = Field(2, description="batches each loader process keeps ready")
    persistent_workers: bool = Field(True, description="keep loader processes between epochs")
    pin_memory: Switch = Field("auto", description="page-locked batches; auto: on CUDA")
    non_blocking: bool = Field(True, description="copy to the device without waiting")
    augment: bool = Field(False, description="random resized crop and flip instead of centre crop")
    channels_last: Switch = Field(
        "auto", description="NHWC layout; auto: on a CPU, and on CUDA but for fp32"
    )
    grad_accum_steps: PositiveInt = Field(
        1, description="forward and backward passes per optimizer step"
    )
    optimizer: Annotated[Literal["sgd", "adamw"], Legacy("sgd")] = Field(
        "sgd", description="sgd, with momentum, or adamw"
    )
    fused_optimizer: Switch = Field(
        "auto", description="one-kernel optimizer; auto: where there is one"
    )
    depthwise_fp32: Annotated[Switch, Legacy("false")] = Field(
        "auto",
        description="amp computes strided depthwise convolutions in fp32; auto: on a CPU",
    )
    compile: CompileMode = Field("none", description="torch.compile mode")
    cuda_graphs: bool = Field(False, description="replay the step as one CUDA graph")
    cudnn_benchmark: bool = Field(True, description="let cuDNN time its algorithms in warm-up")
    depthwise_kernel: Annotated[Literal["auto", "cudnn", "native"], Legacy("auto")] = Field(
        "auto",
        description="whose kernels convolve depthwise on CUDA; auto: torch's choice",
    )
    deterministic: bool = Field(False, description="deterministic kernels only")
    threads: Auto | Annotated[PositiveInt, Field(lt=4096)] = Field(
        "auto", description="threads of one operation on the CPU"
    )
    allocator: Annotated[Literal["auto", "system", "retain"], Legacy("system")] = Field(
        "auto",
        description="memory that a step frees: retain keeps it for the next, system gives it back "
        "to the kernel; auto: retain where the C library is glibc",
    )
    phases: bool = Field(
        False, description="time data, forward, backward and optimizer separately (more syncs)"
    )
    nvtx: bool = Field(False, description="mark iterations and phases for NVIDIA's profilers")
    explain: Annotated[bool, Legacy(False)] = Field(
        True,
        description="profile one to three steps after the window, to say where a step's time goes",
    )
    seed: Whole = Field(0, description="of weights and data")
    repeat: PositiveInt = Field(1, description="which repeat of this configuration this is")
    env: Label = Field("auto", description="label of this machine; auto: from the device's name")
    campaign: Label = Field("none", description="label of the series this run belongs to")

    @model_validator(mode="after")
    def _settings_agree(self) -> RunConfig:
        fields = type(self).model_fields
        for setting, why in _ALONE.items():
            others = (name for name in _OF_A_STEP if name != setting)
            asked = [name for name in others if getattr(self, name) != fields[name].default]
            if getattr(self, setting) and asked:
                raise ValueError(f"{setting}=true {why}: leave out {', '.join(asked)}")
        if self.data_only and self.data == SYNTHETIC:
            raise ValueError(
                "data_only=true measures the loader, which data=synthetic has none of: "
                "give data=fakedata or the path of an ImageFolder"
            )
        if self.depthwise_fp32 == "true" and not self.precision.startswith(("amp", "fp8")):
            raise ValueError(
                f"depthwise_fp32=true is for amp and does nothing with precision={self.precision}"
            )
        if self.seq_len != "auto" and split_arch(self.arch)[0] != "hf":
            raise ValueError(
                f"seq_len={self.seq_len} is for models of transformers (hf:NAME), which "
                f"arch={self.arch} is not: leave it out"
            )
        return self

    @property
    def config_id(self) -> str:
        """Twelve hex digits, equal for equal measurements wherever and whenever they run."""
        legacy = legacy_defaults(RunConfig).items()
        unchanged = {name for name, value in legacy if getattr(self, name) == value}
        defining = self.model_dump(mode="json", exclude=set(FILING_FIELDS | unchanged))
        defining |= {name: least for name, least in LEAST.items() if defining[name] == "auto"}
        canonical = json.dumps(defining, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    @property
    def world_size(self) -> int:
        """Processes that train together, one per device."""
        return self.devices * self.nodes

    @property
    def reads_images(self) -> bool:
        """Whether `data` is a folder of images on disk."""
        return self.data not in (SYNTHETIC, FAKEDATA)


# From text, and as text


def parse_config(values: dict[str, Any], *, planned: bool = False) -> RunConfig:
    """Validate `values` (strings or numbers, by field name).

    A `planned` configuration may be carried out elsewhere: the package that holds its model need
    not be here. Raises `UserError` with one line that names every wrong value and its remedy.
    """
    try:
        return RunConfig.model_validate(values, context=PLANNED if planned else None)
    except ValidationError as error:
        raise UserError("; ".join(_problems(error, values))) from None


def recorded_config(values: dict[str, Any]) -> RunConfig:
    """Return the configuration that was recorded as `values`, of a model that need not be here.

    Raises `pydantic.ValidationError`.
    """
    return RunConfig.model_validate(values, context=RECORDED)


def check_field(name: str, text: str) -> None:
    """Validate a planned field's value by itself, whatever the others are.

    Raises `UserError` with one line: the value and its remedy.
    """
    try:
        _of_one_field(name).model_validate({name: text}, context=PLANNED)
    except ValidationError as error:
        raise UserError("; ".join(_problems(error, {name: text}))) from None


@cache
def _of_one_field(name: str) -> type[BaseModel]:
    field = RunConfig.model_fields[name]
    fields: dict[str, Any] = {name: (field.annotation, field)}
    return create_model(name, **fields)


#: What a value should have been, by pydantic's type of the error and the limit that it names.
_WANTED = {
    "literal_error": "{expected}",
    "bool_parsing": "true or false",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller number",
    "float_parsing": "a number",
    "greater_than_equal": "a number from {ge}",
    "greater_than": "a number above {gt}",
    "less_than": "a number below {lt}",
}


def _problems(error: ValidationError, values: dict[str, Any]) -> list[str]:
    """One phrase per wrong field: pydantic reports a union once per member, we say it once."""
    by_field: dict[str, list[str]] = {}
    for item in error.errors():
        field = str(item["loc"][0]) if item["loc"] else ""
        wanted = item["msg"].removeprefix("Value error, ")
        if item["type"] in _WANTED:
            wanted = _WANTED[item["type"]].format(**item.get("ctx", {})).replace("'", "")
        by_field.setdefault(field, []).append(wanted)
    phrases = []
    for field, messages in by_field.items():
        remedy = ", or ".join(dict.fromkeys(messages))
        phrases.append(f"{field}={values.get(field)!r}: {remedy}" if field else remedy)
    return phrases


def run_options(config: RunConfig, leave_out: Collection[str] = ()) -> list[str]:
    """Return the options of `mlproject run` that ask for `config`, defaults left out."""
    options = []
    for name, field in RunConfig.model_fields.items():
        value = getattr(config, name)
        if name == "arch" or (value != field.default and name not in leave_out):
            options += [f"--{name.replace('_', '-')}", spelled(value)]
    return options


#: What stands for a value of a type, in a list of what a field takes.
_KINDS = {bool: ("true", "false"), int: ("N",), float: ("NUMBER",), str: ("TEXT",)}


def allowed_values(name: str) -> tuple[str, ...]:
    """Return what the field takes: `auto`, `true`, `N`, in the order of its type."""
    return tuple(dict.fromkeys(_words(RunConfig.model_fields[name].annotation)))


def _words(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif get_origin(annotation) is Annotated:
        yield from _words(get_args(annotation)[0])
    elif annotation in _KINDS:
        yield from _KINDS[annotation]
    else:
        for member in get_args(annotation):
            yield from _words(member)


def spelled(value: object) -> str:
    """Return a field's value as the command line has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class MeetingPoint(NamedTuple):
    """This machine's number, and the address of number 0, which every machine reaches."""

    node: int
    address: str
    port: int


def meeting_point(
    config: RunConfig, environ: Mapping[str, str] = os.environ
) -> MeetingPoint | None:
    """Return where the machines of `config` meet, or None for a single one.

    `MASTER_ADDR`, `MASTER_PORT` and `NODE_RANK` are torchrun's options of the same names. Raises
    `UserError` where one is absent or cannot be.
    """
    if config.nodes == 1:
        return None
    names = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
    node, address, port = (environ.get(name, "") for name in names)
    numbers = node.isdecimal() and port.isdecimal()
    if not (numbers and address and int(node) < config.nodes and int(port) < 2**16):
        raise UserError(
            f"nodes={config.nodes}, NODE_RANK={node!r}, MASTER_ADDR={address!r}, "
            f"MASTER_PORT={port!r}: on every machine set MASTER_ADDR and MASTER_PORT to one "
            "machine's address and a free port of it, NODE_RANK to 0 there and 1, 2... elsewhere"
        )
    return MeetingPoint(int(node), address, int(port))


def node_rank(config: RunConfig, environ: Mapping[str, str] = os.environ) -> int:
    """Return this machine's number; number 0 keeps the record."""
    meeting = meeting_point(config, environ)
    return 0 if meeting is None else meeting.node
