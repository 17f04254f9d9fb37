"""The arguments of an op as a profiler prints them, made into fake tensors and values."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bench.records.complexity import CalledOp

NO_SHAPES = "no shapes in the trace: record it with record_shapes=True"
NO_VALUES = "no values of arguments in the trace (Concrete Inputs): record it with torch 2"

#: As the profiler prints the types of elements.
DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "c10::Half": torch.float16,
    "c10::BFloat16": torch.bfloat16,
    "long int": torch.int64,
    "long": torch.int64,
    "int": torch.int32,
    "short int": torch.int16,
    "short": torch.int16,
    "signed char": torch.int8,
    "unsigned char": torch.uint8,
    "bool": torch.bool,
    "c10::Float8_e4m3fn": torch.float8_e4m3fn,
    "c10::Float8_e5m2": torch.float8_e5m2,
    "c10::complex<float>": torch.complex64,
}


class UnknownError(Exception):
    """What the trace does not say."""


class Arguments:
    """The arguments of a printed op, as fake tensors and as values."""

    def __init__(self, op: CalledOp, fake: FakeTensorMode) -> None:
        self._op = op
        self._fake = fake

    @property
    def name(self) -> str:
        """The op's."""
        return self._op.name

    def __len__(self) -> int:
        return len(self._op.dims or ())

    def is_tensor(self, index: int) -> bool:
        """Whether a tensor was printed there."""
        types = self._op.types or ()
        return index < len(types) and types[index] in DTYPES

    def tensor(self, index: int) -> torch.Tensor | None:
        """A fake tensor of the shape, type and layout printed there, None if there is none."""
        if not self.is_tensor(index):
            return None
        dims = (self._op.dims or ())[index]
        strides = self._op.strides[index] if self._op.strides is not None else None
        return self.made(dims, (self._op.types or ())[index], strides)

    def made(
        self, shape: Sequence[int], type_name: str, strides: Sequence[int] | None = None
    ) -> torch.Tensor:
        """A fake tensor."""
        with self._fake:
            if strides is not None and len(strides) == len(shape):
                return torch.empty_strided(tuple(shape), tuple(strides), dtype=DTYPES[type_name])
            return torch.empty(tuple(shape), dtype=DTYPES[type_name])

    def value(self, index: int) -> Any:
        """A number or a list, None where it was None; raises where the trace has no values."""
        if self._op.concrete is None or index >= len(self._op.concrete):
            raise UnknownError(NO_VALUES)
        printed = self._op.concrete[index]
        try:
            return ast.literal_eval(printed) if isinstance(printed, str) and printed else None
        except (ValueError, SyntaxError):
            return None

    @property
    def has_values(self) -> bool:
        """Whether the trace has them at all."""
        return self._op.concrete is not None

    def type_name(self, index: int) -> str:
        """As printed."""
        return (self._op.types or ())[index]
