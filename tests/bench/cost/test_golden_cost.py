"""Known counts of four models, each from its layers' shapes by hand; see docs/roofs.md."""

import pytest
import torch
from fvcore.nn import FlopCountAnalysis

from bench.cost.estimate import step_complexity
from bench.records import StepSpec
from bench.training.workloads import find_workload

#: arch: parameters, forward MAC and training-step FLOP per image, saved for backward in MB (fp32).
GOLDEN = {
    "resnet18": (11_689_512, 1_814_073_344, 10_648_412_160, 22),
    "resnet50": (25_557_032, 4_089_184_256, 24_299_077_632, 86),
    "vgg16": (138_357_544, 15_470_264_320, 92_648_177_664, 73),
    "mobilenet_v2": (3_504_872, 300_774_272, 1_782_969_600, 78),
}
#: Multiply-adds of the first layer, the only one without a gradient of its input.
FIRST_LAYER_MACS = {
    "resnet18": 112**2 * 64 * 3 * 7**2,
    "resnet50": 112**2 * 64 * 3 * 7**2,
    "vgg16": 224**2 * 64 * 3 * 3**2,
    "mobilenet_v2": 112**2 * 32 * 3 * 3**2,
}


@pytest.mark.parametrize("arch", GOLDEN)
@pytest.mark.slow
def test_parameters_flops_and_what_is_saved_are_exact(arch):
    parameters, forward_macs, step_flops, saved_mb = GOLDEN[arch]
    complexity = step_complexity(StepSpec(arch, batch_size=32, precision="fp32"))
    assert complexity.parameters == parameters
    assert complexity.forward_macs == forward_macs * 32
    assert complexity.step_flops == step_flops * 32
    assert complexity.step_flops_per_sample == step_flops
    forward, backward, optimizer = complexity.phases.values()
    assert forward.flops == 2 * forward_macs * 32
    assert backward.flops == 2 * forward.flops - 2 * FIRST_LAYER_MACS[arch] * 32
    assert (optimizer.flops, optimizer.elementwise_flops) == (0, 6 * parameters)
    assert optimizer.fused_bytes == optimizer.eager_bytes == 20 * parameters
    memory = complexity.memory
    assert round(memory.activations_bytes / 32 / 1e6) == saved_mb
    assert memory.weights_bytes == memory.gradients_bytes == memory.optimizer_bytes
    assert memory.weights_bytes == 4 * parameters


@pytest.mark.slow
def test_fvcore_counts_the_same_macs():
    analysis = FlopCountAnalysis(find_workload("resnet18").build(), torch.empty(1, 3, 224, 224))
    analysis.unsupported_ops_warnings(False)
    by_operator = analysis.by_operator()
    assert by_operator["conv"] + by_operator["linear"] == GOLDEN["resnet18"][1]
