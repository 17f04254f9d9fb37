"""Required work beside counted work, each by hand; S tokens, width D, H heads, W words."""

import pytest
import tiny_language_models as tiny
import torch
from tiny_language_models import D, S, W

from bench.cost.estimate import count_step, step_complexity
from bench.cost.masks import KnownValues
from bench.records import StepSpec

#: Multiply-adds of a sequence: the logits, the projections of attention, and both its products.
LOGITS = S * D * W
PROJECTIONS = S * (D * 3 * D + D * D)
PAIRS = S * S
CAUSAL = S * (S + 1) // 2
#: A window of 4: the first queries see 1, 2 and 3 tokens.
WINDOW = 1 + 2 + 3 + (S - 3) * 4
PRODUCTS = 2 * D  # of each pair, over all heads
BATCH = 2


def _complexity(name, **changes):
    return step_complexity(StepSpec(f"tiny_language_models:{name}", BATCH, "fp32", **changes))


def _per_sequence(name, **changes):
    found = _complexity(name, **changes)
    return found.step_flops / BATCH, found.required_flops and found.required_flops / BATCH


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("whole", PAIRS),
        ("causal", CAUSAL),
        ("window", WINDOW),
        ("causal_op_by_op", CAUSAL),
        ("window_op_by_op", WINDOW),
        ("weak_mask", PAIRS),  # -100 makes a score small, not its product unneeded
        ("packed", 6 * 7 // 2 + 10 * 11 // 2),
        ("of_heads", (CAUSAL + PAIRS) // 2),
        ("weighed", CAUSAL),
        ("weighed_padding", 12 * 13 // 2 + 4 * 12),
        ("fused_padding", 12 * 13 // 2 + 4 * 12),
        ("one_element", PAIRS - 1),
        ("padded", S * 12),  # as the batch says
        *((f"causal_by_{how}", CAUSAL) for how in ("buffer", *tiny.MASKED)),
        *((f"{how}_by_{mask}", CAUSAL) for how in ("checkpointed", "reentrant")
          for mask in ("added", "kernel", "where")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_masks_hide_pairs_of_all_six_products(name, seen, backend):
    counted = 6 * (LOGITS + PROJECTIONS + PAIRS * PRODUCTS)
    required = 6 * (LOGITS + PROJECTIONS + seen * PRODUCTS)
    assert _per_sequence(name, backend=backend) == (counted, required)


def test_a_mask_of_one_block_is_not_that_of_another():
    """Both have scores of one shape: what is hidden follows the tensors, not the sizes."""
    counted = 6 * (LOGITS + 2 * PROJECTIONS + 2 * PAIRS * PRODUCTS)
    required = 6 * (LOGITS + 2 * PROJECTIONS + (WINDOW + CAUSAL) * PRODUCTS)
    assert _per_sequence("both") == (counted, required)


def test_a_window_is_computed_by_the_kernel_though_it_is_not_required():
    assert _complexity("causal").causal_skipped_flops == BATCH * 6 * (PAIRS - CAUSAL) * PRODUCTS
    assert _complexity("window").causal_skipped_flops == 0


@pytest.mark.parametrize(
    "name",
    ["unknown_mask", "unknown_op_by_op", "of_any_length", "random_padding",
     *(f"causal_by_{how}" for how in tiny.DATA)],
)  # fmt: skip
def test_a_mask_of_data_is_not_known(name):
    found = _complexity(name)
    assert found.required_flops is None
    assert "mask" in found.required_missing


def test_a_mask_that_is_too_large_is_not_known(monkeypatch):
    """Nothing is said to be seen because nobody looked."""
    monkeypatch.setattr("bench.cost.masks._MOST_ELEMENTS", PAIRS - 1)
    for name in ("window", "causal_op_by_op", "grouped_op_by_op"):
        assert _complexity(name, backend="cuda").required_flops is None


@pytest.mark.slow
def test_zeros_that_are_too_large_to_keep_hide_nothing(tmp_path, monkeypatch):
    """Experts put what they compute into zeros of all tokens, by places that data give."""
    monkeypatch.setattr("bench.cost.masks._MOST_ELEMENTS", S * D)
    experts = {"moe_intermediate_size": 12, "num_experts": 8, "num_experts_per_tok": 2}
    found = _of_transformers(tmp_path, "Qwen3MoeConfig", intermediate_size=12, **experts)
    assert found.required_flops < found.step_flops


def test_layers_may_ask_whether_a_mask_that_is_known_is_causal():
    counted = 6 * (LOGITS + PROJECTIONS + 2 * S * D + PAIRS * PRODUCTS)  # two layers, 1 wide
    assert _per_sequence("encoder") == (counted, counted - 6 * (PAIRS - CAUSAL) * PRODUCTS)


def test_heads_that_share_keys_project_less_and_multiply_as_much():
    projections = S * (D * (D + 2 * D // 2) + D * D)
    counted = 6 * (LOGITS + projections + PAIRS * PRODUCTS)
    required = 6 * (LOGITS + projections + CAUSAL * PRODUCTS)
    assert _per_sequence("grouped") == (counted, required)


def test_frozen_weights_need_no_gradient():
    """LoRA: the logits' layer gives a gradient to its input alone; below is nothing to train."""
    logits = 4 * LOGITS
    base = 2 * S * D * D
    down, up = 4 * S * D * 2, 6 * S * D * 2  # the input of `down` is of a frozen embedding
    assert _per_sequence("low_rank") == (logits + base + down + up,) * 2


def test_frozen_keys_and_values_need_no_gradient():
    """Of attention's four products backward two are left; a fused kernel computes them all."""
    linear = 4 * LOGITS + 4 * S * D * D
    required = linear + (2 + 2) * PAIRS * PRODUCTS  # forward 2, of the weights and of the queries
    assert _per_sequence("trained_queries_op_by_op") == (required, required)
    assert _per_sequence("trained_queries") == (linear + 6 * PAIRS * PRODUCTS, required)


def test_what_a_checkpoint_computes_again_is_in_neither():
    counted = 6 * (LOGITS + PROJECTIONS + PAIRS * PRODUCTS)
    required = 6 * (LOGITS + PROJECTIONS + CAUSAL * PRODUCTS)
    assert _per_sequence("checkpointed") == (counted, required)
    again = BATCH * 2 * (S * D * 3 * D + PAIRS * PRODUCTS)  # nothing needs the last projection
    assert _complexity("checkpointed").recomputed_flops == again


def test_a_tied_embedding_multiplies_once():
    """It is looked up for the words, which computes nothing, and multiplied for the logits."""
    assert _per_sequence("tied") == (6 * LOGITS,) * 2
    assert _complexity("tied").parameters == W * D


@pytest.mark.parametrize(
    "name",
    ["window", "window_op_by_op", "unknown_mask", *(f"window_by_{how}" for how in tiny.MASKED)],
)
def test_a_step_that_runs_shows_its_masks(name):
    step = getattr(tiny, name)()
    batch = step.batch(BATCH)
    torch.manual_seed(0)
    with count_step() as cost:
        step.loss(step.model(batch), batch).backward()
    seen = WINDOW
    if name == "unknown_mask":
        torch.manual_seed(0)
        seen = int((torch.rand(S, S) > 0.5).sum())
    assert cost.step_flops == BATCH * 6 * (LOGITS + PROJECTIONS + PAIRS * PRODUCTS)
    assert cost.required_flops == BATCH * 6 * (LOGITS + PROJECTIONS + seen * PRODUCTS)
    assert cost.required_missing is None


def _of_transformers(tmp_path, kind, **widths):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, kind)(
        vocab_size=W, hidden_size=D, num_attention_heads=2, head_dim=4, num_hidden_layers=1,
        num_key_value_heads=1, **widths,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    return step_complexity(StepSpec(f"hf:{tmp_path}", BATCH, "fp32", seq_len=S))


#: Projections of 2 heads of queries and 1 of keys and values, each 4 wide.
OF_GROUPS = S * (2 * D * D + 2 * D * 4)


@pytest.mark.slow
def test_two_of_eight_experts_are_counted_and_required(tmp_path):
    experts = {"intermediate_size": 12, "num_local_experts": 8, "num_experts_per_tok": 2}
    found = _of_transformers(tmp_path, "MixtralConfig", **experts, sliding_window=None)
    linear = LOGITS + OF_GROUPS + S * (8 * D + 2 * 3 * D * 12)
    assert found.step_flops == BATCH * 6 * (linear + PAIRS * PRODUCTS)
    assert found.required_flops == BATCH * 6 * (linear + CAUSAL * PRODUCTS)


@pytest.mark.slow
def test_experts_that_compute_all_tokens_are_counted_whole_and_required_for_their_own(tmp_path):
    experts = {"intermediate_size": 12, "num_local_experts": 4, "num_experts_per_tok": 1}
    found = _of_transformers(tmp_path, "Llama4TextConfig", intermediate_size_mlp=12, **experts)
    shared = LOGITS + OF_GROUPS + S * (4 * D + 3 * D * 12)  # the router, and an expert for all
    assert found.step_flops == BATCH * 6 * (shared + 4 * S * 3 * D * 12 + PAIRS * PRODUCTS)
    assert found.required_flops == BATCH * 6 * (shared + S * 3 * D * 12 + CAUSAL * PRODUCTS)


@pytest.mark.slow
def test_a_window_of_mistral_is_not_required(tmp_path):
    widths = {"intermediate_size": 12, "sliding_window": 4}
    found = _of_transformers(tmp_path, "MistralConfig", **widths)
    linear = LOGITS + OF_GROUPS + S * 3 * D * 12
    assert found.step_flops == BATCH * 6 * (linear + PAIRS * PRODUCTS)
    assert found.required_flops == BATCH * 6 * (linear + WINDOW * PRODUCTS)


@pytest.mark.slow
def test_what_turns_queries_and_keys_is_too_small_to_hide_a_pair(tmp_path, monkeypatch):
    """At 192 Ki tokens each of four products a layer had 100 MB, only to see that none hides."""
    computed = []
    whole = KnownValues._computed

    def note(self, call, func, *unknown):
        computed.extend(call.op for _ in unknown)
        return whole(self, call, func, *unknown)

    monkeypatch.setattr(KnownValues, "_computed", note)
    _of_transformers(tmp_path, "MistralConfig", intermediate_size=12, sliding_window=4)
    assert "mul" not in computed
    _complexity("causal_op_by_op")
    assert computed
