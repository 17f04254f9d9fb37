"""Training steps of timm's models: each family's is counted, without an op that has no count."""

import pytest

from bench.cost import StepSpec, step_complexity

#: A small model of each of 61 modules of `timm.list_modules()`.
COUNTED = (
    "beit_base_patch16_224",
    "eca_botnext26ts_256",
    "gernet_s",
    "convit_tiny",
    "convmixer_768_32",
    "convnext_atto",
    "cpubone_nano",
    "cs3darknet_focus_s",
    "cspnext_tiny",
    "deit_tiny_patch16_224",
    "dpn48b",
    "efficientformer_l1",
    "mnasnet_small",
    "efficientvim_m1",
    "efficientvit_b0",
    "efficientvit_m0",
    "eva02_tiny_patch14_224",
    "fasternet_t0",
    "fastvit_t8",
    "focalnet_tiny_srf",
    "hardcorenas_b",
    "hgnetv2_b0",
    "hiera_tiny_224",
    "sam2_hiera_tiny",
    "hrnet_w18_small",
    "iformer_t",
    "inception_next_atto",
    "lcnetv2_small",
    "levit_128",
    "mambaout_femto",
    "caformer_s18",
    "gmixer_12_224",
    "mobilenetv3_small_050",
    "mobilevit_xxs",
    "naflexvit_base_patch16_gap",
    "nest_tiny",
    "pit_xs_224",
    "qwen3_vit_88m",
    "regnetx_002",
    "res2next50",
    "resnest26d",
    "resnet10t",
    "resnetv2_18",
    "selecsls42",
    "legacy_seresnet18",
    "sequencer2d_s",
    "skresnet18",
    "starnet_s050",
    "swiftformer_xs",
    "swinv2_cr_tiny_224",
    "tresnet_m",
    "vgg11",
    "visformer_tiny",
    "vit_tiny_patch16_224",
    "vit_srelpos_small_patch16_224",
    "samvit_base_patch16",
    "vitamin_small_224",
    "volo_d1_224",
    "vovnet39a",
    "legacy_xception",
    "xception41",
)


@pytest.mark.long
@pytest.mark.parametrize("name", COUNTED)
def test_every_op_of_a_step_is_counted(name):
    cost = step_complexity(StepSpec(f"timm:{name}", 2, "fp32"))
    assert 0 < cost.forward_macs * 2 < cost.step_flops <= cost.forward_macs * 6
    assert cost.compulsory_bytes < cost.fused_bytes < cost.eager_bytes
    assert cost.activations > 0


@pytest.mark.long
def test_the_models_are_of_61_families():
    import timm

    families = {
        module
        for module in timm.list_modules()
        for name in timm.list_models(module=module)
        if name in COUNTED
    }
    assert len(families) == len(COUNTED) == 61
