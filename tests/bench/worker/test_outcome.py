"""What an exception says of how a run ended."""

import sys

import pytest
import torch
from fakes import Card, ScriptedClock

from bench.config import RunConfig
from bench.errors import UnsupportedError
from bench.worker.outcome import attempt
from bench.worker.step_setup import check_accumulation


def raising(text):
    def work():
        raise RuntimeError(text)

    return work


@pytest.mark.parametrize(
    "text",
    [
        "FIND was unable to find an engine to execute this computation",
        "GET was unable to find an engine to execute this computation",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_a_library_without_memory_for_any_plan_is_out_of_memory(text):
    assert attempt(raising(text)) == ("oom", f"RuntimeError: {text}")


@pytest.mark.parametrize(
    "text",
    [
        "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error (run with NCCL_DEBUG=INFO)",
    ],
)
@pytest.mark.parametrize(("free_bytes", "outcome"), [(4, "oom"), (6, "crashed"), (None, "crashed")])
def test_a_library_that_does_not_start_is_out_of_memory_on_a_full_device(
    monkeypatch, text, free_bytes, outcome
):
    def free_and_total():
        if free_bytes is None:
            raise RuntimeError("the context is gone")
        return free_bytes, 100

    monkeypatch.setattr(torch.cuda, "mem_get_info", free_and_total)
    assert attempt(raising(text)) == (outcome, f"RuntimeError: {text}")


def test_a_step_that_ends_the_process_is_a_crash_with_its_reason():
    outcome, reason = attempt(lambda: sys.exit(3))
    assert outcome == "crashed"
    assert "sys.exit(3)" in reason


def test_a_step_that_cannot_be_deterministic_is_refused_with_a_remedy():
    def unpool():
        torch.use_deterministic_algorithms(True)
        try:
            torch.nn.functional.max_unpool2d(
                torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1, dtype=torch.int64), 2
            )
        finally:
            torch.use_deterministic_algorithms(False)

    outcome, reason = attempt(unpool)
    assert outcome == "unsupported"
    assert "does not have a deterministic implementation" in reason
    assert "use deterministic=false" in reason


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_a_mode_that_captures_graphs_cannot_accumulate_on_a_card(mode):
    config, card = RunConfig(compile=mode, grad_accum_steps=2), Card(ScriptedClock())
    check_accumulation(config, card)  # nothing is captured there
    card.supports_cuda_graphs = True
    with pytest.raises(UnsupportedError, match=r"use compile=default, or grad_accum_steps=1"):
        check_accumulation(config, card)
    check_accumulation(config.model_copy(update={"grad_accum_steps": 1}), card)
    check_accumulation(config.model_copy(update={"compile": "default"}), card)
