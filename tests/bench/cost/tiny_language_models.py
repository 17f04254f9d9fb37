"""Language models small enough to count by hand, one for each reason why work is not required.

S tokens of W words, width D, H heads; a step has 6 FLOP for each multiply-add of the forward pass
(2 in it, 4 in the backward pass) unless a test says otherwise.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

S, W, D, H = 16, 32, 8, 2


def _added(seen):
    return torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)


def _by_rows(seen):
    """A mask that is written row by row into storage that nothing has filled."""
    mask = torch.empty(S, S)
    for row, of_row in zip(mask, seen, strict=True):
        row[...] = -torch.inf
        row[of_row] = 0
    return mask


def _by_places(seen):
    """A mask of one value, repeated, of which places are written through a view."""
    mask = torch.zeros(1).expand(S, S) + 0
    flat = mask.view(-1)
    for i in range(S):
        flat[torch.arange(S) + i * S] = _added(seen)[i]
    return mask


def _put(scores, hidden, value):
    scores = scores.clone()
    scores[:, :, hidden] = value
    return scores


#: How models mask scores of attention.
MASKED = {
    "filled": lambda scores, seen: (
        scores + torch.empty(S, S).fill_(-torch.inf).masked_fill_(seen, 0)
    ),
    "overwritten": lambda scores, seen: scores + torch.rand(S, S).copy_(_added(seen)),
    "rows": lambda scores, seen: scores + _by_rows(seen),
    "places": lambda scores, seen: scores + _by_places(seen),
    "heads": lambda scores, seen: scores + _added(seen).expand(1, H, S, S).clone().view(H, S, S),
    "put": lambda scores, seen: _put(scores, ~seen, -1e9),
    "put_tensor": lambda scores, seen: _put(scores, ~seen, torch.tensor(-1e9)),
    "in_place": lambda scores, seen: scores.masked_fill_(~seen, -torch.inf),
    "where": lambda scores, seen: torch.where(seen, scores, torch.tensor(-torch.inf)),
    "where_hidden": lambda scores, seen: torch.where(~seen, -torch.inf, scores),
    "where_full": lambda scores, seen: torch.where(seen, scores, torch.full_like(scores, -1e9)),
    "added": lambda scores, seen: scores + _added(seen),
    "added_in_place": lambda scores, seen: scores.add_((1 - seen.float()) * -10_000.0),
    "in_two": lambda scores, seen: (
        scores.masked_fill(~seen & (torch.arange(S) < 6), -1e9) / 2
        + _added(seen | (torch.arange(S) < 6))
    ),
    "as_large": lambda scores, seen: scores + _added(seen).expand_as(scores).clone(),
    "sinks": lambda scores, seen: torch.cat([scores + _added(seen), scores[..., :1]], -1),
    "learned_bias": lambda scores, seen: (
        scores + (torch.ones(1, requires_grad=True) + _added(seen))
    ),
}


def _written(mask, value):
    mask[..., 1:5] = value
    return mask


#: Masks of data: added, written into a constant in part or at places, and into scores.
DATA = {
    "factor": lambda scores, seen: scores + (1 - (torch.rand(S) > 0.5).float()) * -1e4,
    "part": lambda scores, seen: scores + _written(_added(seen), torch.rand(S, 4)),
    "highest": lambda scores, seen: (
        scores + torch.full_like(scores, -torch.inf).scatter_(-1, scores.topk(4).indices, 0)
    ),
    "put_data": lambda scores, seen: _put(scores, torch.rand(S, S) > 0.5, torch.tensor(-1e9)),
    "slices": lambda scores, seen: _written(scores.clone(), -torch.inf),
}


class Attention(nn.Module):
    """Scores of all queries with all keys; `mask` says from positions which pairs are seen."""

    def __init__(self, mask=None, *, kv_heads=H, op_by_op=False, fill=-torch.inf, how=None,
                 **options):  # fmt: skip
        super().__init__()
        self.project = nn.Linear(D, D + 2 * kv_heads * (D // H), bias=False)
        self.out = nn.Linear(D, D, bias=False)
        self.kv_heads, self.mask, self.options = kv_heads, mask, options
        self.op_by_op, self.fill, self.how = op_by_op or how, fill, (MASKED | DATA).get(how)
        at = torch.arange(S)
        self.register_buffer("bias", mask(at[:, None], at) if how == "buffer" else None)

    def forward(self, x):
        heads = self.project(x).unflatten(-1, (-1, D // H)).transpose(1, 2)
        query, key, value = heads.split([H, self.kv_heads, self.kv_heads], dim=1)
        at = torch.arange(x.shape[1])
        seen = self.mask and self.mask(at[:, None], at[None, :]) if self.bias is None else self.bias
        if self.op_by_op:
            scores = query @ key.transpose(-1, -2) / (D // H) ** 0.5
            if self.how is not None:
                scores = self.how(scores, seen)
            elif seen is not None:
                scores = scores.masked_fill(~seen, self.fill)
            weights = scores.softmax(-1)[..., : x.shape[1]]  # without sinks
            mixed = functional.dropout(weights, 0.1) @ value
        else:
            mixed = functional.scaled_dot_product_attention(
                query, key, value, seen, enable_gqa=self.kv_heads != H, **self.options
            )
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Weighed(nn.Module):
    """torch's own attention, which adds its mask within the product if it returns weights."""

    def __init__(self, padding=None, **options):
        super().__init__()
        self.inner = nn.MultiheadAttention(D, H, bias=False, batch_first=True)
        self.padding, self.options = padding, options

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(S)
        padding = self.padding and self.padding(len(x))
        return x + self.inner(x, x, x, padding, attn_mask=mask, **self.options)[0]


class Encoder(nn.Module):
    """torch's own layers, which ask whether the mask is causal."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, H, 1, batch_first=True)
        self.inner = nn.TransformerEncoder(layer, 1)

    def forward(self, x):
        return self.inner(x, nn.Transformer.generate_square_subsequent_mask(S))


class Checkpointed(nn.Module):
    def __init__(self, inner, *, use_reentrant=False):
        super().__init__()
        self.inner, self.use_reentrant = inner, use_reentrant

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.use_reentrant)


class LowRank(nn.Module):
    """A frozen layer and one of rank 2 beside it, which is trained (LoRA, arXiv 2106.09685)."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(D, D, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(D, 2, bias=False), nn.Linear(2, D, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class TrainedQueries(nn.Module):
    """Attention of which the queries alone are trained, as where all else is frozen."""

    def __init__(self, *, op_by_op=False):
        super().__init__()
        self.query, self.op_by_op = nn.Linear(D, D, bias=False), op_by_op

    def forward(self, x):
        query, key = (each.unflatten(-1, (H, -1)).transpose(1, 2) for each in (self.query(x), x))
        if self.op_by_op:
            mixed = (query @ key.transpose(-1, -2)).softmax(-1) @ key
        else:
            mixed = functional.scaled_dot_product_attention(query, key, key)
        return mixed.transpose(1, 2).flatten(2)


class Padded(nn.Module):
    """Attention to the keys that the batch says are no padding."""

    def __init__(self):
        super().__init__()
        self.words, self.attention = nn.Embedding(W, D), Attention()
        self.head = nn.Linear(D, W, bias=False)

    def forward(self, tokens, seen):
        self.attention.mask = lambda *_: seen[:, None, None].expand(-1, 1, S, S)
        return self.head(self.attention(self.words(tokens)))


class Step:
    sample, tokens_per_sample = "sequence", S

    def __init__(self, *blocks, tie=False, frozen_ends=False):
        words, head = nn.Embedding(W, D), nn.Linear(D, W, bias=False)
        if tie:
            head.weight = words.weight
        if frozen_ends:
            words.requires_grad_(False), head.requires_grad_(False)
        self.model = nn.Sequential(words, *blocks, head)

    def batch(self, n):
        return torch.randint(W, (n, S))

    def loss(self, output, batch):
        return functional.cross_entropy(output.flatten(0, 1), batch.flatten())


class PaddedStep:
    sample, tokens_per_sample = "sequence", S

    def __init__(self, length=None):
        self.model, self.length = Padded(), length

    def batch(self, n):
        lengths = torch.randint(1, S, (n, 1)) if self.length is None else self.length
        seen = (torch.arange(S) < lengths).expand(n, S)
        return {"tokens": torch.randint(W, (n, S)), "seen": seen}

    def loss(self, output, batch):
        return functional.cross_entropy(output.flatten(0, 1), batch["tokens"].flatten())


def _causal(i, j):
    return j <= i


def _window(i, j):
    return (j <= i) & (j > i - 4)


def _packed(i, j):
    """Two documents, of 6 and of 10 tokens."""
    return (j <= i) & ((i < 6) == (j < 6))


def _of_heads(i, j):
    """Earlier tokens for the first head, all for the second."""
    return torch.stack([j <= i, (j <= i) | True])


def _on_data(i, j):
    return torch.rand(S, S) > 0.5


def _step(**options):
    return Step(Attention(**options))


whole = _step
causal = partial(_step, is_causal=True)
window = partial(_step, mask=_window)
window_op_by_op = partial(_step, mask=_window, op_by_op=True)
causal_op_by_op = partial(_step, mask=_causal, op_by_op=True)
weak_mask = partial(_step, mask=_causal, op_by_op=True, fill=-100.0)
unknown_mask = partial(_step, mask=_on_data)
unknown_op_by_op = partial(_step, mask=_on_data, op_by_op=True)
grouped = partial(_step, kv_heads=1, is_causal=True)
grouped_op_by_op = grouped  # as CUDA computes it in fp32, with a mask that is added


packed = partial(_step, mask=_packed)
of_heads = partial(_step, mask=_of_heads)


def both():
    """A window in the first block, all earlier tokens in the second."""
    masks = (_window, _causal)
    return Step(*(Attention(mask, op_by_op=True) for mask in masks))


def weighed():
    return Step(Weighed())


def _padding(samples):
    """The last four keys are hidden."""
    padding = torch.zeros(samples, S, dtype=torch.bool)
    padding[:, 12:] = True
    return padding


def weighed_padding():
    return Step(Weighed(_padding))


def fused_padding():
    return Step(Weighed(_padding, need_weights=False))


def random_padding():
    return Step(Weighed(lambda samples: torch.rand(samples, S) > 0.5, need_weights=False))


def encoder():
    return Step(Encoder())


def one_element():
    """A mask of one value, repeated, of which one element is written."""

    def mask(i, j):
        added = torch.zeros(1).expand(S, S) + 0
        added[0, 1] = -torch.inf
        return added == 0

    return Step(Attention(mask))


def __getattr__(name):
    """Each of `MASKED`: `causal_by_added`; `checkpointed_by_added` computes it again."""
    kind, _, how = name.partition("_by_")
    if how not in {*MASKED, *DATA, "buffer", "kernel"}:
        raise AttributeError(name)
    mask = _window if kind == "window" else _causal
    inner = partial(Attention, mask, how=None if how == "kernel" else how)
    return lambda: Step(
        inner()
        if kind in ("causal", "window")
        else Checkpointed(inner(), use_reentrant=kind == "reentrant")
    )


padded = partial(PaddedStep, 12)
of_any_length = PaddedStep


def trained_queries():
    return Step(TrainedQueries(), frozen_ends=True)


def trained_queries_op_by_op():
    return Step(TrainedQueries(op_by_op=True), frozen_ends=True)


def low_rank():
    return Step(LowRank(), frozen_ends=True)


def checkpointed():
    return Step(Checkpointed(Attention(is_causal=True)))


def tied():
    return Step(tie=True)
