"""transformers' models by configuration: random weights and batches, and the model's own loss."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.config.model_names import HfModel, Task, find_hf_model
from bench.errors import UserError
from bench.training.workloads import (
    DEFAULT_CLASSES,
    DEFAULT_IMAGE_SIZE,
    Batch,
    ImageInput,
    Workload,
    blamed,
    random_images,
)

_AUTO_CLASSES: dict[Task, str] = {
    "masked-lm": "AutoModelForMaskedLM",
    "causal-lm": "AutoModelForCausalLM",
    "image-classification": "AutoModelForImageClassification",
    "sequence-classification": "AutoModelForSequenceClassification",
}
_SEQ_LEN = 128
#: Share of the tokens that a masked language model guesses: section 3.1 of BERT's paper
#: (arXiv 1810.04805).
_GUESSED = 0.15
#: The label that cross entropy leaves out.
_NO_LABEL = -100


def hf_workload(
    name: str, *, image_size: int | None = None, seq_len: int | None = None
) -> Workload:
    """Return the workload of `hf:NAME`; `bench.config.model_names` says what a name may be.

    Raises `UserError`, also for a size that the model does not take.
    """
    arch = f"hf:{name}"
    try:
        model = find_hf_model(name)
    except ValueError as error:
        raise UserError(f"arch={arch!r}: {error}") from None
    config = _configuration(arch, model)
    if model.task == "image-classification":
        return _HfImages(arch, model.task, config, image_size)
    return _HfTokens(arch, model.task, config, seq_len)


class _HfModel(Workload):
    def __init__(self, arch: str, task: Task, config: Any) -> None:
        self._arch = arch
        self._task = task
        self._config = config

    def build(self) -> torch.nn.Module:
        """Return the model in float32, in training mode."""
        import transformers

        builder = getattr(transformers, _AUTO_CLASSES[self._task])
        with blamed(f"arch={self._arch!r}: transformers cannot build it,"):
            model: torch.nn.Module = builder.from_config(self._config, dtype=torch.float32)
        _leave_out_checks(model)
        return model.train()

    def loss(self, output: Any, batch: Batch) -> torch.Tensor:
        """Return the loss that the model has computed."""
        loss: torch.Tensor = output.loss
        return loss


class _HfTokens(_HfModel):
    """A model of tokens; a batch has `input_ids`, int64 [N, seq_len], and `labels`."""

    sample = "sequence"
    tokens_per_sample: int

    def __init__(self, arch: str, task: Task, config: Any, seq_len: int | None) -> None:
        super().__init__(arch, task, config)
        most = _most_tokens(config)
        if most is not None and seq_len is not None and seq_len > most:
            raise UserError(f"seq_len={seq_len}: {arch} takes {most} tokens at most")
        if task == "causal-lm" and seq_len == 1:
            raise UserError(f"seq_len=1: {arch} has no next token to guess; give 2 or more")
        self.seq_len = self.tokens_per_sample = seq_len or min(_SEQ_LEN, most or _SEQ_LEN)

    def batch(self, samples: int) -> Batch:
        """Return random tokens, none of which is padding, and the labels of the task."""
        text = self._config.get_text_config()
        tokens = torch.randint(text.vocab_size - 1, (samples, self.tokens_per_sample))
        if text.pad_token_id is not None:
            tokens += tokens >= text.pad_token_id
        return {"input_ids": tokens, "labels": self._labels(tokens)}

    def output(self, model: Callable[..., Any], batch: Batch) -> Any:
        """Return the model's logits and loss."""
        return model(**batch)

    def _labels(self, tokens: torch.Tensor) -> torch.Tensor:
        if self._task == "causal-lm":
            return tokens  # the model itself compares each with the next
        if self._task == "sequence-classification":
            return torch.randint(self._config.num_labels, tokens.shape[:1])
        guessed = max(1, round(_GUESSED * tokens.shape[1]))
        places = torch.rand(tokens.shape).argsort(1)[:, :guessed]
        return torch.full_like(tokens, _NO_LABEL).scatter(1, places, tokens.gather(1, places))


class _HfImages(_HfModel):
    """A classifier of images; a batch is images, float32 [N, 3, S, S], and labels, int64 [N]."""

    sample = "image"
    image: ImageInput

    def __init__(self, arch: str, task: Task, config: Any, image_size: int | None) -> None:
        super().__init__(arch, task, config)
        part = getattr(config, "vision_config", config)
        if getattr(part, "num_channels", 3) != 3:
            raise UserError(
                f"arch={arch!r}: its images have {part.num_channels} channels, not R, G and B"
            )
        size = image_size or _own_image_size(arch, part)
        if hasattr(part, "image_size"):
            part.image_size = size
        self.image = ImageInput(size, config.num_labels)

    def batch(self, samples: int) -> Batch:
        """Return normal images and random labels."""
        return random_images(self.image, samples)

    def output(self, model: Callable[..., Any], batch: Batch) -> Any:
        """Return the model's logits and loss."""
        images, labels = batch
        return model(pixel_values=images, labels=labels)


def _configuration(arch: str, model: HfModel) -> Any:
    from transformers import CONFIG_MAPPING  # takes seconds

    stated = dict(model.config or {})
    stated["architectures"] = [model.class_name]
    if model.task == "image-classification" and not {"id2label", "num_labels"} & stated.keys():
        stated["num_labels"] = DEFAULT_CLASSES
    with blamed(f"arch={arch!r}: transformers refuses this configuration,"):
        config = CONFIG_MAPPING[model.model_type].from_dict(stated)
    if model.task == "causal-lm" and hasattr(config, "is_decoder"):
        config.is_decoder = True  # BERT's attention looks ahead unless asked
    for part in (config, config.get_text_config()):
        part.use_cache = False  # kept for generation alone
        part.problem_type = "single_label_classification"
        # GPT-2's head for sequences looks for the last token that is no padding.
        if model.task == "sequence-classification" and part.pad_token_id is None:
            part.pad_token_id = 0
    return config


def _most_tokens(config: Any) -> int | None:
    """Return how many tokens the model has positions for; None where it has no such limit.

    RoBERTa and its relatives number positions from behind that of padding, as in fairseq.
    """
    import transformers

    text = config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)
    module = sys.modules[getattr(transformers, config.architectures[0]).__module__]
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    if positions is None:
        return None
    behind = "create_position_ids_from_input_ids" in source
    return int(positions) - (text.pad_token_id + 1 if behind else 0)


def _own_image_size(arch: str, config: Any) -> int:
    stated = getattr(config, "image_size", DEFAULT_IMAGE_SIZE)
    sides = {stated} if isinstance(stated, int) else set(stated)
    if len(sides) != 1:
        raise UserError(f"arch={arch!r}: its own images are not square {stated}; give image_size")
    return int(sides.pop())


def _leave_out_checks(model: Any) -> None:
    """Leave out what asks in each step for the values of tensors, and so waits for the device.

    Whether tokens are padding, or positions those of several packed sequences: ours never are.
    Where values cannot be asked for, as in CUDA graphs, compiled code and on fake tensors,
    transformers would make a mask, and attention would take another kernel.
    """
    from transformers import masking_utils

    masking_utils.find_packed_sequence_indices = _nothing
    for module in model.modules():
        if hasattr(module, "warn_if_padding_and_no_attention_mask"):
            module.warn_if_padding_and_no_attention_mask = _nothing
    if getattr(model, "loss_type", "") is None:
        model.loss_type = "ForCausalLM"  # the default, with a warning


def _nothing(*_: object, **__: object) -> None:
    return None
