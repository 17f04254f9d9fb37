"""FLOP of torchvision's models against two counts made another way; and what holds for all.

Of timm a model of each family: no op of their steps is without a count.
"""

from functools import cache
from math import prod

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from bench.config.model_names import TORCHVISION_MODELS
from bench.cost.estimate import step_complexity
from bench.cost.fake_step import fake_workload
from bench.cost.op_table import op_names
from bench.records import StepSpec

#: Of those with few ops one with a product of each kind; the rest takes minutes.
QUICK = ("alexnet", "shufflenet_v2_x0_5", "vit_b_32")
OTHERS = (arch for arch in TORCHVISION_MODELS if arch not in QUICK)
BATCH = 2


class _CalledProducts(TorchFunctionMode):
    """Counts multiply-adds where Python calls a layer, from shapes and `requires_grad` alone.

    A product of two operands has a backward product for each operand that needs a gradient.
    """

    def __init__(self):
        super().__init__()
        self.forward_macs = self.step_macs = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in (functional.conv2d, torch.conv2d):
            inputs, weight = args[0], args[1]
            groups = kwargs.get("groups", args[6] if len(args) > 6 else 1)
            macs = result.numel() * inputs.shape[1] // groups * prod(weight.shape[2:])
            self._product(macs, inputs, weight)
        elif func is functional.linear:
            self._product(args[0].numel() * args[1].shape[0], args[0], args[1])
        elif func in (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__):
            self._product(result.numel() * args[0].shape[-1], args[0], args[1])
        elif func is torch.einsum:
            self._einsum(*args)
        elif func is functional.multi_head_attention_forward:
            self._attention(args[0], args[1])
        return result

    def _product(self, macs, left, right):
        self.forward_macs += macs
        self.step_macs += macs * (1 + left.requires_grad + right.requires_grad)

    def _einsum(self, equation, left, right):
        sides = equation.split("->")[0].split(",")
        sizes = dict(zip("".join(sides).replace(" ", ""), (*left.shape, *right.shape), strict=True))
        self._product(prod(sizes.values()), left, right)

    def _attention(self, query, key):
        """Query, key, value and output projections, and two products of the heads."""
        length, batch, width = query.shape
        macs = batch * (4 * length * width**2 + 2 * length * key.shape[0] * width)
        self._product(macs, query, key)


@cache
def _complexity(arch):
    return step_complexity(StepSpec(arch, BATCH, "fp32", cache_bytes=0))


@pytest.mark.parametrize(
    "arch", [*QUICK, *(pytest.param(arch, marks=pytest.mark.long) for arch in sorted(OTHERS))]
)
@pytest.mark.slow
def test_flops_are_those_of_two_other_counts_and_bytes_are_in_order(arch):
    """Torch's counter is right for forward passes; some versions lack attention on a CPU."""
    complexity = _complexity(arch)
    fake, called, counter = FakeTensorMode(), _CalledProducts(), FlopCounterMode(display=False)
    workload, model = fake_workload(StepSpec(arch, BATCH, "fp32"), fake)
    with fake:
        images, _ = workload.batch(BATCH)
    with fake, counter, called:
        model(images)
    assert complexity.forward_macs == called.forward_macs
    assert complexity.step_flops == 2 * called.step_macs
    flops = 2 * complexity.forward_macs
    if torch.ops.aten._scaled_dot_product_flash_attention_for_cpu not in flop_registry:
        forward = (op for op in complexity.ops if op.phase == "forward")
        flops -= sum(op.flops for op in forward if "attention" in op.op)
    assert flops == counter.get_total_flops()
    assert complexity.compulsory_bytes < complexity.fused_bytes < complexity.eager_bytes


@pytest.mark.parametrize(
    "arch",
    [*QUICK, *(pytest.param(arch, marks=pytest.mark.long) for arch in ("googlenet", "swin_t"))],
)
@pytest.mark.slow
def test_what_holds_for_every_batch_size(arch):
    one = _complexity(arch)
    other = step_complexity(StepSpec(arch, BATCH + 1, "fp32", cache_bytes=2**20))
    assert other.compulsory_bytes < other.fused_bytes < other.eager_bytes
    assert 0 < other.compulsory_bytes < one.compulsory_bytes * 1.5
    assert one.activations == other.activations > 0
    assert one.parameters == other.parameters
    assert one.step_flops_per_sample == other.step_flops_per_sample


#: A small model of each of timm's 61 families, and one that is pruned, from a copy of another.
TIMM = sorted(
    op_names(
        """
    beit_base_patch16_224 eca_botnext26ts_256 gernet_s convit_tiny convmixer_768_32 convnext_atto
    cpubone_nano cs3darknet_focus_s cspnext_tiny deit_tiny_patch16_224 dpn48b efficientformer_l1
    mnasnet_small efficientvim_m1 efficientvit_b0 efficientvit_m0 eva02_tiny_patch14_224
    fasternet_t0 fastvit_t8 focalnet_tiny_srf hardcorenas_b hgnetv2_b0 hiera_tiny_224
    sam2_hiera_tiny hrnet_w18_small iformer_t inception_next_atto lcnetv2_small levit_128
    mambaout_femto caformer_s18 gmixer_12_224 mobilenetv3_small_050 mobilevit_xxs
    naflexvit_base_patch16_gap nest_tiny pit_xs_224 qwen3_vit_88m regnetx_002 res2next50 resnest26d
    resnet10t resnetv2_18 selecsls42 legacy_seresnet18 sequencer2d_s skresnet18 starnet_s050
    swiftformer_xs swinv2_cr_tiny_224 tresnet_m vgg11 visformer_tiny vit_tiny_patch16_224
    vit_srelpos_small_patch16_224 samvit_base_patch16 vitamin_small_224 volo_d1_224 vovnet39a
    legacy_xception xception41 efficientnet_b1_pruned
        """
    )
)


@pytest.mark.long
@pytest.mark.parametrize("name", TIMM)
def test_every_op_of_a_step_of_timm_is_counted(name):
    cost = step_complexity(StepSpec(f"timm:{name}", 2, "fp32", cache_bytes=0))
    assert 0 < cost.forward_macs * 2 < cost.step_flops <= cost.forward_macs * 6
    assert cost.compulsory_bytes < cost.fused_bytes < cost.eager_bytes
    assert cost.activations > 0
