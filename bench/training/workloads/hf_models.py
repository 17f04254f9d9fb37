"""transformers' models by configuration: random weights and batches, and the model's own loss."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
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
    build = partial(_build, arch, model.task, config)
    if model.task == "image-classification":
        return _of_images(arch, config, build, image_size)
    return _of_tokens(arch, model.task, config, build, seq_len)


def _build(arch: str, task: Task, config: Any) -> torch.nn.Module:
    """The model in float32, in training mode."""
    import transformers

    builder = getattr(transformers, _AUTO_CLASSES[task])
    with blamed(f"arch={arch!r}: transformers cannot build it,"):
        model: torch.nn.Module = builder.from_config(config, dtype=torch.float32)
    _leave_out_checks(model)
    return model.train()


def _loss(output: Any, batch: Batch) -> torch.Tensor:
    """The loss that the model has computed."""
    loss: torch.Tensor = output.loss
    return loss


def _of_tokens(
    arch: str, task: Task, config: Any, build: Callable[[], torch.nn.Module], seq_len: int | None
) -> Workload:
    most = _most_tokens(config)
    if most is not None and seq_len is not None and seq_len > most:
        raise UserError(f"seq_len={seq_len}: {arch} takes {most} tokens at most")
    if task == "causal-lm" and seq_len == 1:
        raise UserError(f"seq_len=1: {arch} has no next token to guess; give 2 or more")
    length = seq_len or min(_SEQ_LEN, most or _SEQ_LEN)
    batch = partial(_tokens, task, config, length)
    return Workload("sequence", build, batch, _by_name, _loss, None, length, length)


def _by_name(model: Callable[..., Any], batch: Batch) -> Any:
    return model(**batch)


def _tokens(task: Task, config: Any, length: int, samples: int) -> Batch:
    """Random `input_ids`, int64 [N, length], none of which is padding, and the task's `labels`."""
    text = config.get_text_config()
    tokens = torch.randint(text.vocab_size - 1, (samples, length))
    if text.pad_token_id is not None:
        tokens += tokens >= text.pad_token_id
    labels = tokens  # for causal-lm, where the model itself compares each with the next
    if task == "sequence-classification":
        labels = torch.randint(config.num_labels, tokens.shape[:1])
    elif task == "masked-lm":
        guessed = max(1, round(_GUESSED * length))
        places = torch.rand(tokens.shape).argsort(1)[:, :guessed]
        labels = torch.full_like(tokens, _NO_LABEL).scatter(1, places, tokens.gather(1, places))
    return {"input_ids": tokens, "labels": labels}


def _of_images(
    arch: str, config: Any, build: Callable[[], torch.nn.Module], image_size: int | None
) -> Workload:
    part = getattr(config, "vision_config", config)
    if getattr(part, "num_channels", 3) != 3:
        raise UserError(
            f"arch={arch!r}: its images have {part.num_channels} channels, not R, G and B"
        )
    size = image_size or _own_image_size(arch, part)
    if hasattr(part, "image_size"):
        part.image_size = size
    image = ImageInput(size, config.num_labels)

    def output(model: Callable[..., Any], batch: Batch) -> Any:
        images, labels = batch
        return model(pixel_values=images, labels=labels)

    return Workload("image", build, partial(random_images, image), output, _loss, image)


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
