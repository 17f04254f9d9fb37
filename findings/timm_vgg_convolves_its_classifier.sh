#!/usr/bin/env bash
# package: timm, torchvision (and torch, which counts)
# version: 1.0.31, 0.29.2, 2.15.0
# expected: `vgg16` is one network: both libraries give it 138,357,544 parameters, take each other's
#   published weights and do the same work on an image of 224 pixels; so they do on one of 448.
# guess: the same multiply-adds at 448 pixels too, four times those of the convolutions and the
#   classifier's once, as the pooling in front of it gives 7 x 7 places whatever the image.
# seen: at 448 pixels timm's does 12 % more. Its first two classifier layers are convolutions that
#   run at each of 8 x 8 places, and the pooling comes behind them; torchvision pools first. A
#   table of timm's throughputs at that size, read with torchvision's FLOP, is 11 % low.
#     224 px: timm 15,470,264,320 torchvision 15,470,264,320 multiply-adds
#     448 px: timm 69,041,029,120 torchvision 61,510,156,288 multiply-adds
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.15.0 torchvision==0.29.2 timm==1.0.31
cd "$folder"
"$folder/venv/bin/python" - <<'END'
import timm
import torch
import torchvision
from torch.utils.flop_counter import FlopCounterMode


def macs(make, pixels):
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model = make().eval()
        model(torch.empty(1, 3, pixels, pixels))
    assert sum(weight.numel() for weight in model.parameters()) == 138_357_544
    return counter.get_total_flops() // 2


seen = []
for pixels in (224, 448):
    pair = [macs(make, pixels) for make in (lambda: timm.create_model("vgg16"), torchvision.models.vgg16)]
    print(f"{pixels} px: timm {pair[0]:,} torchvision {pair[1]:,} multiply-adds")
    seen += pair
raise SystemExit(seen != [15_470_264_320, 15_470_264_320, 69_041_029_120, 61_510_156_288])
END
