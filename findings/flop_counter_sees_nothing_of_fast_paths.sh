#!/usr/bin/env bash
# package: torch
# version: 2.15.0
# expected: FlopCounterMode counts a layer's products alike in training and evaluation, and an LSTM
#   as it counts a GRU
# guess: equal numbers for the encoder layer; the LSTM's four gates a third above the GRU's three
# seen: an encoder layer has 557,056 FLOP with gradients and 0 in evaluation without them, where one
#   fused op stands for all of it; attention alone likewise. On a CPU an LSTM has 0 in training too,
#   as one op of oneDNN does it, beside a GRU of the same size that is counted whole. No warning
#   says that an op has no formula.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.15.0"
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'END'
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

given = torch.randn(4, 8, 32)


def counted(layer, *inputs, gradients):
    with torch.set_grad_enabled(gradients), FlopCounterMode(display=False) as counter:
        layer(*inputs)
    return counter.get_total_flops()


encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
attention = nn.MultiheadAttention(32, 4, batch_first=True).eval()
seen = {
    "encoder layer": [counted(encoder, given, gradients=on) for on in (True, False)],
    "attention": [counted(attention, given, given, given, gradients=on) for on in (True, False)],
    "LSTM": [counted(nn.LSTM(32, 64), given, gradients=True)],
    "GRU": [counted(nn.GRU(32, 64), given, gradients=True)],
}
for name, flops in seen.items():
    print(f"{name}: {flops} FLOP")
encoder_layer, of_attention, lstm, gru = seen.values()
no_products = encoder_layer[1] == of_attention[1] == lstm[0] == 0
counts = encoder_layer[0] == 557_056 and min(of_attention[0], gru[0]) > 0
raise SystemExit(not (counts and no_products))
END
