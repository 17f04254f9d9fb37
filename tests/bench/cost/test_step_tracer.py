"""What counts as moved: in-place ops, views, empty tensors, parts of storages."""

import pytest
import torch
from generated_steps import traced

from bench.cost.passes import Role, Traffic


def _passes(function, *tensors):
    return traced(lambda: function(*tensors))[1].passes


def _bytes(item):
    return [access.size_bytes for access in item.reads], [a.size_bytes for a in item.writes]


def test_an_op_in_place_reads_and_writes_and_makes_a_new_value():
    first, second = _passes(lambda t: t.relu_().add_(1), torch.zeros(5))
    assert (first.op, second.op) == ("relu_", "add_")
    assert _bytes(first) == _bytes(second) == ([20], [20])
    assert second.reads[0].value == first.writes[0].value != first.reads[0].value


def test_overwriting_reads_nothing():
    (item,) = _passes(lambda t: t.fill_(3), torch.zeros(5))
    assert _bytes(item) == ([], [20])
    (item,) = _passes(lambda t, s: t.copy_(s), torch.zeros(5), torch.ones(5, dtype=torch.float64))
    assert _bytes(item) == ([40], [20])


def test_views_and_metadata_move_nothing():
    def views(tensor):
        tensor.view(6).unsqueeze(0).expand(9, 6).t()
        tensor.t_()
        return tensor.shape, tensor.detach()

    assert _passes(views, torch.zeros(2, 3)) == []


def test_an_expanded_tensor_is_read_once():
    (item,) = _passes(lambda t: t.expand(100, 5) + 1, torch.zeros(5))
    assert _bytes(item) == ([20], [2000])
    (item,) = _passes(lambda t: t[:5].expand(100, 5) + 1, torch.zeros(400))
    assert _bytes(item) == ([20], [2000])


def test_contents_of_an_empty_tensor_are_not_read():
    (item,) = _passes(lambda t: torch.empty_like(t) * 2, torch.zeros(5))
    assert _bytes(item) == ([], [20])


def test_both_operands_of_the_same_storage_are_read_once_in_eager_bytes():
    tensor = torch.zeros(6)
    _, tracer = traced(lambda: (tensor * tensor, tensor[:4] * tensor[2:]))
    sizes = tracer.values.sizes_bytes
    assert [Traffic().add(item.reads, sizes) for item in tracer.passes] == [24, 24]


def test_a_part_is_written_by_a_kernel_of_its_own_that_needs_the_rest():
    fill, part = _passes(lambda t: t.fill_(1)[2:4].mul_(3), torch.zeros(10))
    assert _bytes(part) == ([8, 0], [8])
    assert {access.value for access in part.reads} == {fill.writes[0].value}
    assert (fill.role, part.role) == (Role.POINTWISE, Role.OPAQUE)


def test_an_unused_shape_argument_is_not_read():
    tensor = torch.randn(1, 1, 8, 8, requires_grad=True)
    pooled = torch.nn.functional.avg_pool2d(tensor, 2)
    (item,) = [p for p in _passes(lambda: pooled.sum().backward()) if "pool" in p.op]
    assert _bytes(item) == ([4], [256])  # the sum's gradient, expanded


@pytest.mark.parametrize(
    ("pool", "flops"),
    [
        (lambda t: torch.nn.functional.max_pool2d(t, 3, 2), 9 * 9),
        (lambda t: torch.nn.functional.avg_pool2d(t, 2), 4 * 16),
        (lambda t: torch.nn.functional.adaptive_avg_pool2d(t, 2), 64),
    ],
)
def test_pooling_counts_the_elements_of_its_windows(pool, flops):
    (item,) = _passes(pool, torch.zeros(1, 1, 8, 8))
    assert item.elementwise_flops == flops
    assert item.role is Role.OPAQUE


def test_a_scaled_addition_is_two_flops_and_a_copy_none():
    items = _passes(lambda t: (t.add(t), t.add(t, alpha=2), t.clone()), torch.zeros(7))
    assert [item.elementwise_flops for item in items] == [7, 14, 0]


def test_a_gather_reads_no_more_than_it_takes():
    """8 rows of 64; then more indices than rows, which may all be another."""
    table, few, many = (
        torch.zeros(64, 4),
        torch.zeros(8, dtype=torch.long),
        torch.zeros(2, 100).long(),
    )
    (item,) = _passes(lambda: torch.nn.functional.embedding(few, table))
    assert _bytes(item) == ([8 * 4 * 4, 8 * 8], [8 * 4 * 4])
    (item,) = _passes(lambda: torch.nn.functional.embedding(many, table))
    assert _bytes(item) == ([64 * 4 * 4, 200 * 8], [200 * 4 * 4])
    (item,) = _passes(lambda: table.expand(5, 64, 4)[few.clamp(0, 0)])[-1:]
    assert _bytes(item)[1] == [8 * 64 * 4 * 4]
    assert _bytes(item)[0][0] == 64 * 4 * 4
    sums = _passes(lambda: torch.nn.functional.embedding_bag(few, table, torch.tensor([0, 5])))
    assert _bytes(sums[-1])[0][:2] == [8 * 4 * 4, 8 * 8]


def test_the_loss_over_a_vocabulary_takes_one_number_of_each_row():
    logits = torch.zeros(6, 1000, requires_grad=True)
    labels = torch.zeros(6, dtype=torch.long)
    _, tracer = traced(
        lambda: torch.nn.functional.cross_entropy(logits, labels), lambda loss: loss.backward()
    )
    by_op = {item.op: item for item in tracer.passes}
    reads, writes = _bytes(by_op["nll_loss_forward"])
    assert (reads, writes) == ([6 * 4, 6 * 8], [4, 4])
    assert by_op["nll_loss_forward"].elementwise_flops == 6
    reads, writes = _bytes(by_op["nll_loss_backward"])
    assert (sum(reads), writes) == (4 + 6 * 8 + 4, [6 * 1000 * 4])
    assert by_op["nll_loss_backward"].elementwise_flops == 0
    assert by_op["_log_softmax"].elementwise_flops == 5 * 6000


def test_an_embeddings_gradient_adds_rows_into_a_whole_table():
    table = torch.zeros(64, 4, requires_grad=True)
    indices = torch.zeros(8, dtype=torch.long)
    _, tracer = traced(
        lambda: torch.nn.functional.embedding(indices, table),
        lambda rows: rows.backward(torch.ones(8, 4)),
    )
    (item,) = (item for item in tracer.passes if item.op == "embedding_dense_backward")
    assert _bytes(item) == ([8 * 4 * 4, 8 * 8], [64 * 4 * 4])
    assert (item.macs, item.elementwise_flops, item.role) == (0, 8 * 4, Role.REDUCTION)
