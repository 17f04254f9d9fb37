#!/usr/bin/env bash
# package: transformers (with torch and accelerate)
# version: 5.23.0 (torch 2.15.0, accelerate 1.15.0)
# expected: `total_flos`, which the Trainer keeps in its state and sends to every tracker, is the
#   floating-point operations that were done, within 20 % of what FlopCounterMode sees; its
#   documentation calls it the number of floating operations done by the model
# guess: 6 x parameters x tokens: a little low, by attention; of an image its 197 patches are tokens
# seen: an image counts as 150,528 tokens, its pixels, and a second of sound as 16,000, its samples:
#   a ViT has 677 times and wav2vec2 39 times the FLOP that it did. GPT-2 with a short text has 0.15
#   of them: parameters tied to the embedding are left out, and so are the products of its last
#   layer. Only BERT is near, as no product uses its embedding.
#                    total_flos   counted  ratio
#     GPT-2            2.73e+09  1.81e+10   0.15
#     ViT              1.78e+12  2.62e+09 676.55
#     wav2vec2         6.13e+11  1.58e+10  38.79
#     BERT             2.79e+09  3.32e+09   0.84
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  "transformers==5.23.0" "torch==2.15.0" "accelerate==1.15.0"
cd "$folder"
"$folder/venv/bin/python" - <<'END'
import torch
import transformers as hf
from torch.utils.flop_counter import FlopCounterMode

hf.logging.set_verbosity_error()
torch.manual_seed(0)
small = {
    "hidden_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 768,
}
text = torch.arange(256)
label = torch.tensor(1)
gpt2 = hf.GPT2Config(n_embd=192, n_layer=4, n_head=3)
sound = hf.Wav2Vec2Config(**small, classifier_proj_size=64, mask_time_prob=0.0)
cases = {
    "GPT-2": (hf.GPT2LMHeadModel(gpt2), {"input_ids": text, "labels": text}),
    "ViT": (
        hf.ViTForImageClassification(hf.ViTConfig(**small)),
        {"pixel_values": torch.randn(3, 224, 224), "labels": label},
    ),
    "wav2vec2": (
        hf.Wav2Vec2ForSequenceClassification(sound),
        {"input_values": torch.randn(16_000), "labels": label},
    ),
    "BERT": (
        hf.BertForSequenceClassification(hf.BertConfig(**small)),
        {"input_ids": text, "labels": label},
    ),
}
options = hf.TrainingArguments(
    "out", max_steps=1, per_device_train_batch_size=1, use_cpu=True, report_to=[],
    save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
)
ratios = []
for name, (model, row) in cases.items():
    trainer = hf.Trainer(model, options, train_dataset=[row])
    trainer.remove_callback(hf.PrinterCallback)
    with FlopCounterMode(display=False) as counter:
        trainer.train()
    total, counted = trainer.state.total_flos, counter.get_total_flops()
    print(f"{name:16}{total:11.2e}{counted:10.2e}{total / counted:7.2f}")
    ratios.append(total / counted)
gpt2, vit, wav2vec2, bert = ratios
raise SystemExit(not (gpt2 < 0.2 and 600 < vit < 750 and 35 < wav2vec2 < 45 and 0.8 < bert < 0.9))
END
