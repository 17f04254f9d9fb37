#!/usr/bin/env bash
# package: torch, fvcore, ptflops, calflops, torchinfo, DeepSpeed (and torchvision, for the networks)
# version: 2.15.0, 0.1.5.post20221221, 0.7.5, 0.3.2, 1.8.0, 0.19.8
# expected: of one network and image, counters differ by a factor of 2, multiply-adds or FLOP, and a
#   little by what they count of norms and activations
# guess: after that factor all within 3 % of the convolutions and products of matrices
# seen: so it is of ResNet-50; of MobileNetV2 ptflops is 6 % above. Of ViT-B/16 torchinfo sees 1 %: it
#   counts the weights of a linear layer once, not for each of 197 tokens, and nothing of
#   MultiheadAttention. fvcore and calflops are 4 % below, as fused attention has no formula there;
#   torch and DeepSpeed have one.
#                          ResNet-50     MobileNetV2        ViT-B/16
#     products (MAC)   4,089,184,256     300,774,272  17,563,828,224
#     torch            8,178,368,512     601,548,544  35,127,656,448
#     fvcore           4,111,512,576     314,193,216  16,867,412,736
#     ptflops          4,132,436,968     320,300,008  17,606,030,584
#     calflops         8,211,108,352     614,967,488  33,723,326,208
#     torchinfo        4,089,238,376     300,809,384     173,232,616
#     deepspeed flops  8,211,108,352     614,967,488  35,153,981,184
#     deepspeed macs   4,089,184,256     300,774,272  17,563,828,224
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" install --quiet --disable-pip-version-check)
"${pip[@]}" torch==2.15.0 torchvision==0.29.2 transformers==5.23.0 accelerate setuptools
DS_BUILD_OPS=0 "${pip[@]}" fvcore==0.1.5.post20221221 ptflops==0.7.5 calflops==0.3.2 \
    torchinfo==1.8.0 deepspeed==0.19.8
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'END'
import contextlib
import logging
import sys

import torch
import torchvision
from calflops import calculate_flops
from deepspeed.profiling.flops_profiler import get_model_profile
from fvcore.nn import FlopCountAnalysis
from ptflops import get_model_complexity_info
from torch.utils.flop_counter import FlopCounterMode
from torchinfo import summary

logging.disable(logging.CRITICAL)
image = torch.randn(1, 3, 224, 224)


def by_torch(model):
    with FlopCounterMode(display=False) as counter:
        model(image)
    return counter.get_total_flops()


def by_calflops(model):
    how = {"output_as_string": False, "print_results": False, "print_detailed": False}
    return calculate_flops(model, tuple(image.shape), **how)[0]


def by_ptflops(model):
    how = {"as_strings": False, "print_per_layer_stat": False, "backend": "pytorch"}
    return get_model_complexity_info(model, (3, 224, 224), **how)[0]


def by_deepspeed(model, which):
    return get_model_profile(model, args=[image], print_profile=False, as_string=False)[which]


counters = {
    "torch": by_torch,
    "fvcore": lambda model: FlopCountAnalysis(model, image).total(),
    "ptflops": by_ptflops,
    "calflops": by_calflops,
    "torchinfo": lambda model: summary(model, input_data=image, verbose=0).total_mult_adds,
    "deepspeed flops": lambda model: by_deepspeed(model, 0),
    "deepspeed macs": lambda model: by_deepspeed(model, 1),
}
seen = {}
for name, count in counters.items():
    for arch in ("resnet50", "mobilenet_v2", "vit_b_16"):
        model = getattr(torchvision.models, arch)().eval()
        with contextlib.redirect_stdout(sys.stderr):
            seen.setdefault(name, []).append(int(count(model)))
    print(f"{name:16}" + "".join(f"{number:>16,}" for number in seen[name]))
raise SystemExit(seen != {
    "torch": [8_178_368_512, 601_548_544, 35_127_656_448],
    "fvcore": [4_111_512_576, 314_193_216, 16_867_412_736],
    "ptflops": [4_132_436_968, 320_300_008, 17_606_030_584],
    "calflops": [8_211_108_352, 614_967_488, 33_723_326_208],
    "torchinfo": [4_089_238_376, 300_809_384, 173_232_616],
    "deepspeed flops": [8_211_108_352, 614_967_488, 35_153_981_184],
    "deepspeed macs": [4_089_184_256, 300_774_272, 17_563_828_224],
})
END
