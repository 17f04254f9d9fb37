"""Reading the caches of an NVIDIA GPU: torch's own operations are too short to fill them.

A copy within an L2 takes microseconds, about what its launch costs. One kernel that reads for
milliseconds does not have that fault.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench.roofs.cache_level import Level
from bench.roofs.probe import Launch, Probe
from bench.training.devices import Device

_ELEMENT_BYTES = 4
_BLOCK = 2048  # that of bench.roofs.gpu_reader
#: Blocks that each program reads in one launch: a millisecond or more on the fastest GPU.
_ROUNDS = 2**14
#: Two programs of two blocks each: 32 KiB, which the smallest L1 (Turing's) holds.
_L1_PROGRAMS = 2
_L1_BLOCKS = 2
#: More programs, because an answer of the L2 takes longer.
_L2_PROGRAMS = 4
#: An L2 may be in two halves that each keep a copy (NVIDIA A100, H100), so a quarter fits well.
_L2_SHARE = 4


def cuda_levels(device: Device) -> tuple[Level, ...]:
    """Return L1, of all multiprocessors together, and L2."""
    info = device.info()
    if info.cores is None or info.last_level_cache_bytes is None:
        reasons = (info.missing.get(name) for name in ("cores", "last_level_cache_bytes"))
        why = next(reason for reason in reasons if reason)
        return (Level("L1", None, None, why, why), Level("L2", None, None, why, why))
    l2_bytes = info.last_level_cache_bytes
    own = read_probe("L1", device, info.cores * _L1_PROGRAMS, _L1_BLOCKS * _BLOCK, own_regions=True)
    blocks = l2_bytes // _L2_SHARE // (_BLOCK * _ELEMENT_BYTES)
    if not blocks:
        why = f"its {l2_bytes} bytes are too few for a block"
        return (Level("L1", None, own, _NO_SIZE), Level("L2", l2_bytes, None, "", why))
    shared = read_probe("L2", device, info.cores * _L2_PROGRAMS, blocks * _BLOCK, own_regions=False)
    return (Level("L1", None, own, _NO_SIZE), Level("L2", l2_bytes, shared))


_NO_SIZE = "CUDA does not tell it"


def read_probe(
    name: str, device: Device, programs: int, elements: int, *, own_regions: bool
) -> Probe:
    """Return the reading of `elements` by each program: of its own, or of the same by all."""
    whole = elements * (programs if own_regions else 1)

    def prepare() -> Launch:
        read = _reader()
        data = torch.randn(whole, device=device.torch_device)
        sums = torch.empty(programs * _BLOCK, device=device.torch_device)

        def launch() -> None:
            read(
                data,
                sums,
                programs=programs,
                elements=elements,
                own_regions=own_regions,
                rounds=_ROUNDS,
            )

        _first(launch)
        return launch

    region = f"{elements * _ELEMENT_BYTES // 2**10} KiB {'each' if own_regions else 'together'}"
    work = programs * _ROUNDS * _BLOCK * _ELEMENT_BYTES
    title = f"{name}: read of {region} by {programs} programs"
    return Probe(title, None, "bytes_per_s", work, whole * _ELEMENT_BYTES, prepare)


def _reader() -> Callable[..., None]:
    """The kernel's launcher. Raises `RuntimeError` where there is no Triton."""
    try:
        from bench.roofs.gpu_reader import read
    except ImportError as error:
        raise RuntimeError(f"Triton cannot be used here: {error}") from None
    return read


def _first(launch: Launch) -> None:
    """Compile. Triton has errors of many kinds: an old GPU, no C compiler, a full disk."""
    try:
        launch()
    except Exception as error:
        words = str(error).strip().splitlines() or [""]
        raise RuntimeError(f"Triton: {type(error).__name__}: {words[0]}") from None
