"""What can be trained, found by the name that `--arch` has."""

from __future__ import annotations

from bench.config import RunConfig, split_arch
from bench.errors import UserError
from bench.training.workloads.base import Batch, ImageInput, Workload

__all__ = ["Batch", "ImageInput", "Workload", "find_workload", "workload_of"]


def workload_of(config: RunConfig) -> Workload:
    """Return the workload that `config` trains. Raises as `find_workload`."""
    return find_workload(
        config.arch,
        image_size=None if config.image_size == "auto" else config.image_size,
        seq_len=None if config.seq_len == "auto" else config.seq_len,
    )


def find_workload(
    arch: str, *, image_size: int | None = None, seq_len: int | None = None
) -> Workload:
    """Return the workload of `arch`; pixels a side and tokens are the model's own by default.

    A user's own callable is called, so torch's generators must be seeded before. Raises
    `UserError`, also for a size that the model has no use for.
    """
    workload = _found(arch, image_size, seq_len)
    if image_size is not None and workload.image is None:
        raise UserError(f"image_size={image_size}: {arch} takes no --image-size; leave it out")
    if seq_len is not None and workload.seq_len is None:
        raise UserError(f"seq_len={seq_len}: {arch} takes no --seq-len; leave it out")
    return workload


def _found(arch: str, image_size: int | None, seq_len: int | None) -> Workload:
    # What a family of models needs is imported where one of them is asked for.
    source, name = split_arch(arch)
    if source == "timm":
        from bench.training.workloads.images import timm_workload

        return timm_workload(name, image_size)
    if source == "hf":
        from bench.training.workloads.hf_models import hf_workload

        return hf_workload(name, image_size=image_size, seq_len=seq_len)
    if source == "own":
        from bench.training.workloads.own import own_workload

        return own_workload(name, image_size)
    from bench.training.workloads.images import torchvision_workload

    return torchvision_workload(name, image_size)
