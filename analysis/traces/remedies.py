"""What to do about each cause of lost time; another cause's remedy does not help."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.traces.timeline import IdleCause


def remedy(cause: str, places: Sequence[IdleCause], *, compiled: bool = False) -> str | None:
    """Return advice for `cause`; `places` are where its idle time was spent, longest first.

    None where the trace alone gives none: computation needs a roof. `compiled` leaves out
    compiling.
    """
    if cause == "input":
        return _of_input(places)
    if cause == "copies":
        return _of_copies(places)
    if cause == "synchronisation":
        return _of_synchronisation(places)
    if cause == "host":
        return _of_host(places)
    text = _FIXED.get(cause)
    return text and text.replace(_COMPILING, "") if compiled else text


_COMPILING = ", torch.compile"


_FIXED = {
    "launches": f"Fewer launches for the work: a larger batch, CUDA graphs{_COMPILING}.",
    "allocator": (
        "Let PyTorch keep its memory: no torch.cuda.empty_cache() in the loop, "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, shapes that stay the same; if memory is "
        "full, a smaller batch."
    ),
    "communication": (
        "Hide or save communication: larger buckets (bucket_cap_mb), no_sync with gradient "
        "accumulation, a larger batch for each device, gradients in 16 bits; and see in the other "
        "ranks' traces whether one of them is late."
    ),
    "queued": (
        f"Fewer and larger kernels: a larger batch{_COMPILING}. The work was launched in time."
    ),
    "graph": (
        "Fewer and larger kernels in the CUDA graph: a larger batch, ops fused by hand. It saves "
        "all launches already."
    ),
    "unexplained": (
        "Find what the launched work waits for: another process on the device, another device's "
        "event, a host function in the stream, kernels that the profiler leaves out. Nsight "
        "Systems shows them: nsys profile --cuda-graph-trace=node, over all processes."
    ),
    "not seen": (
        "Record the host too, torch.profiler.profile(activities=[CPU, CUDA]), and read each rank's "
        "own file: in one file of several ranks it is not known which call launched what."
    ),
}


def _of_input(places: Sequence[IdleCause]) -> str:
    alone = any("SingleProcess" in (place.call or "") for place in places[:1])
    workers = (
        "loader processes (num_workers above 0: the step's own process loads now)"
        if alone
        else "more loader processes (num_workers) and a larger prefetch_factor"
    )
    return f"Have batches ready earlier: {workers}, smaller images on disk, a faster disk."


def _of_copies(places: Sequence[IdleCause]) -> str:
    if not places:  # the device is at work
        return (
            "Copies that nothing hides: fewer conversions of layout and type, and pinned memory "
            "with non_blocking=True for those from the host."
        )
    return (
        "The host waits for copies to the device: pinned memory (pin_memory=True in the loader) "
        f"and non_blocking=True{_in(places)}."
    )


def _of_synchronisation(places: Sequence[IdleCause]) -> str:
    return (
        f"Take out of the step what waits for the device{_in(places)}: .item(), print, .cpu(), "
        "nonzero, if on a tensor; read losses every so many steps."
    )


def _of_host(places: Sequence[IdleCause]) -> str:
    return (
        f"Take out of the step what the host computes between launches{_in(places)}; "
        "with_stack=True in the profiler names the Python code."
    )


def _in(places: Sequence[IdleCause]) -> str:
    names = dict.fromkeys(name for place in places[:3] if (name := place.op or place.call))
    return f" ({', '.join(names)})" if names else ""
