#!/usr/bin/env bash
# package: torch (torchvision for the networks)
# version: 2.15.0, 0.29.2
# expected: torch's two counters, torch.utils.flop_counter and profile(with_flops=True), agree on a
#   training step of convolutions: three times the forward pass, less the first layer's gradient of
#   its input
# guess: FlopCounterMode is exact; the profiler a few percent below, as it knows fewer ops
# seen: FlopCounterMode is exact for ResNet-18 alone. It leaves the groups out of the gradient of a
#   weight, so a depthwise convolution of 1,152 channels has 1,152 times the products there: an
#   EfficientNet has 13 times its FLOP. The profiler counts no convolution's backward pass: a third.
#   So they are 37 times apart on one step, without a warning, and either is right forwards.
#                         by hand FlopCounterMode            profiler
#     resnet18          1,744,158,720  1,744,158,720   1.00    598,327,296   0.34
#     mobilenet_v2        305,203,200  2,018,955,264   6.62    113,154,048   0.37
#     efficientnet_b0     395,420,160  5,275,849,728  13.34    143,226,368   0.36
#     resnext50_32x4d   4,128,178,176  6,468,599,808   1.57  1,405,288,448   0.34
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  "torch==2.15.0" "torchvision==0.29.2"
cd "$folder"
"$folder/venv/bin/python" - <<'END'
import torch
from torch.profiler import profile
from torch.utils.flop_counter import FlopCounterMode
from torchvision import models

PRODUCTS = ("aten::conv2d", "aten::addmm", "aten::mm")


def counted(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


seen = {}
images = torch.randn(2, 3, 64, 64)
for name in ("resnet18", "mobilenet_v2", "efficientnet_b0", "resnext50_32x4d"):
    model = getattr(models, name)()
    first = next(m for m in model.modules() if isinstance(m, torch.nn.Conv2d))
    by_hand = 3 * counted(lambda: model(images)) - counted(lambda: first(images))
    mode = counted(lambda: model(images).sum().backward())
    with profile(with_flops=True) as profiler:
        model(images).sum().backward()
    ops = profiler.key_averages()
    of_profiler = sum(op.flops for op in ops if op.key in PRODUCTS)
    seen[name] = round(mode / by_hand, 2), round(of_profiler / by_hand, 2)
    row = f"{mode:15,}{mode / by_hand:7.2f}{of_profiler:15,}{of_profiler / by_hand:7.2f}"
    print(f"{name:17}{by_hand:14,}{row}")
raise SystemExit(
    seen["resnet18"] != (1.0, 0.34)
    or seen["mobilenet_v2"] != (6.62, 0.37)
    or seen["efficientnet_b0"] != (13.34, 0.36)
    or seen["resnext50_32x4d"] != (1.57, 0.34)
)
END
