"""The meter of a script, in this process: what is a step, a sample, and what it leaves alone."""

import threading
import time
from operator import le
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.flop_counter import FlopCounterMode

import mlproject
from bench.config import TimeLimits
from bench.cost.estimate import step_complexity
from bench.records import StepSpec
from bench.records.metrics import attained_flops_per_s, summary
from bench.worker.rank_meter import parallelism_of, ranks_of_a_batch
from bench.worker.script_model import Batches, Training

pytestmark = pytest.mark.usefixtures("frozen_heap")


def tokens_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(16, 8), nn.Flatten(), nn.Linear(32, 16))


def trained(model, steps, *, accumulated=1, is_over=lambda: False):
    """Losses of training steps."""
    torch.manual_seed(1)
    optimizer, losses = torch.optim.AdamW(model.parameters()), []
    for _ in range(steps):
        for _ in range(accumulated):
            tokens = torch.randint(16, (3, 4))
            with torch.autocast("cpu", torch.bfloat16):
                loss = functional.cross_entropy(model(tokens), tokens[:, 0])
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if is_over():
            break
    return losses


@pytest.fixture
def short_window(monkeypatch):
    """Warm-up and window have so many steps at any pace; other tests have compiled nothing."""
    monkeypatch.setattr("bench.worker.script.compiled_graphs", lambda: 0)
    monkeypatch.setattr("bench.profilers.torch_profiler._ROOM_BYTES", 2**20)  # of small models
    monkeypatch.setattr(TimeLimits, "of", lambda *_: TimeLimits(3, 6, 500.0))


def ended(records):
    """Whether a measurement there has written all that it will."""
    return lambda: any('"ended"' in file.read_text() for file in records.glob("*/journal.jsonl"))


def watched(records, step, **how):
    """The record of a loop of `step`, which ends once all of it is measured."""
    is_over = ended(records)
    with mlproject.watch(600, records=records, **how) as seen:
        while not is_over():
            step()
    return seen.record


def stepping(model, *inputs):
    """A step on each of `inputs`."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step():
        for given in inputs:
            model(given).float().sum().backward()
            optimizer.step()

    return step


@pytest.mark.slow
def test_a_loop_that_stops_stepping_keeps_its_window(short_window, monkeypatch, tmp_path):
    alarms, more = [], iter(range(3))

    def timer(_, ring):
        alarms.append(ring)
        return SimpleNamespace(start=lambda: None, cancel=lambda: None)

    monkeypatch.setattr("bench.worker.script.threading.Timer", timer)
    monkeypatch.setattr("sys.argv", ["/x/train.py", "--lr", "1", "--api-key", "abc123"])
    with mlproject.watch(600, records=tmp_path) as seen:
        trained(tokens_model(), 10**6, is_over=lambda: alarms and next(more, None) is None)
        ringing = threading.Thread(target=alarms[0])
        ringing.start()
        ringing.join()
    measured = seen.record.measurement
    assert (seen.record.outcome, len(measured.iteration_times_s)) == ("ok", 3)
    assert measured.ended_early == "no step ended after seconds=600 after 3 iterations"
    assert seen.record.script["command"] == "python /x/train.py --lr 1 --api-key (left out)"


@pytest.mark.slow
def test_the_loop_of_a_trainer_is_a_loop_like_any_other(short_window, tmp_path):
    pytest.importorskip("accelerate", reason="transformers' Trainer needs it")
    import transformers

    sizes = {"n_layer": 1, "n_embd": 8, "n_head": 1, "vocab_size": 16, "n_positions": 4}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    how = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2, "max_steps": 160}
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"), **how, use_cpu=True, report_to=[], save_strategy="no"
    )
    data = [{"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]}] * 960
    trainer = transformers.Trainer(model, arguments, train_dataset=data)
    with mlproject.watch(600, records=tmp_path) as seen:
        trainer.train()
    record = seen.record
    assert (record.outcome, record.resolved.tokens_per_sample) == ("ok", 4)
    assert record.resolved.batch_size == 6
    (tmp_path / "config.json").write_text(model.config.to_json_string())
    asked = step_complexity(StepSpec(f"hf:{tmp_path}/config.json", 6, "fp32", seq_len=4))
    assert record.complexity.step_flops == asked.step_flops
    assert record.ops.ops


class Timed(torch.utils.data.Dataset):
    """Notes how long each of its samples takes."""

    def __init__(self):
        self.took_s = []

    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        begin = time.perf_counter()
        sample = torch.randn(100, 1000).sum(0)[:4]
        self.took_s.append(time.perf_counter() - begin)
        return sample


class Stream(torch.utils.data.IterableDataset):
    """The same without a length."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return map(self.data.__getitem__, range(10**6))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [lambda data: data, Stream])
def test_the_wait_for_torchs_loader_is_timed_within_the_window_alone(short_window, tmp_path, kind):
    data, untouched = Timed(), _BaseDataLoaderIter.__next__
    batches = iter(torch.utils.data.DataLoader(kind(data), batch_size=1))
    model = nn.Linear(4, 1)
    step = stepping(model, torch.ones(1, 4))

    def loads():
        next(batches)
        step()

    record = watched(tmp_path, loads)
    waits_s = record.measurement.data_wait_s
    assert len(waits_s) == 6
    begins = range(len(data.took_s) - 5)
    assert any(all(map(le, data.took_s[begin : begin + 6], waits_s)) for begin in begins)
    assert sum(waits_s) < record.measurement.window_s
    assert _BaseDataLoaderIter.__next__ is untouched
    record = watched(tmp_path / "none", step)
    assert record.measurement.data_wait_s is None
    assert "no DataLoader" in record.measurement.missing["data_wait_s"]


@pytest.mark.slow
def test_a_loop_measures_itself_and_learns_the_same(short_window, tmp_path):
    with mlproject.watch(600, records=tmp_path) as seen:
        losses = trained(tokens_model(), 10**6, accumulated=2, is_over=ended(tmp_path))
    assert losses == trained(tokens_model(), len(losses), accumulated=2)
    record = seen.record
    assert record.outcome == "ok"
    assert (record.resolved.sample, record.resolved.tokens_per_sample) == ("sequence", 4)
    assert (record.resolved.batch_size, record.resolved.math_mode) == (6, "bf16")
    assert record.complexity.forward_macs == 6 * 32 * 16
    assert record.complexity.step_flops == 3 * 2 * record.complexity.forward_macs
    assert {op.phase for op in record.ops.ops if op.flops} == {"forward", "backward"}
    assert record.verdict.level != "invalid"
    assert record.measurement.changed_switches == ()


@pytest.mark.slow
def test_arithmetic_that_a_script_changes_after_the_first_look_is_said(short_window, tmp_path):
    step, done = stepping(nn.Linear(4, 4), torch.ones(3, 4)), []

    def changing():
        step()
        done.append(step)
        if len(done) == 7:  # of the window
            torch.backends.cuda.matmul.fp32_precision = "tf32"

    try:
        record = watched(tmp_path, changing)
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
    assert record.measurement.changed_switches == ("cuda.matmul.fp32_precision to tf32",)
    levels = {finding.code: finding.level for finding in record.verdict.findings}
    assert levels["changed-switches"] == "suspect"


def test_arithmetic_is_read_within_the_step_by_the_layers_that_it_holds_for():
    seen, images = Batches("cpu"), torch.zeros(2, 3, 4, 4)
    torch.backends.cuda.matmul.fp32_precision = "none"  # as in a new process
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        seen.look(nn.Conv2d(3, 4, 3), (images,), {})
    seen.look(nn.Linear(4, 4), (images,), {})
    assert seen.switches["cudnn.conv.fp32_precision"] == "tf32"
    assert seen.switches["cuda.matmul.fp32_precision"] == "none"


@pytest.mark.slow
def test_of_two_optimizers_the_rarer_ends_a_step(short_window, tmp_path):
    often, rare = (stepping(nn.Linear(4, 4), torch.ones(3, 4)) for _ in range(2))
    record = watched(tmp_path, lambda: (often(), often(), rare()), samples_per_step=9)
    assert record.complexity.forward_macs == 3 * 3 * 4 * 4
    assert record.measurement.samples_per_iteration == 9


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["whole loop", "schedule", "first steps"])
def test_while_the_script_profiles_itself_it_is_left_alone(
    kind, short_window, monkeypatch, tmp_path
):
    monkeypatch.setattr("bench.worker.script._PROFILE_S", 0.0 if kind == "whole loop" else 500.0)
    seen, done, is_over = [], [], ended(tmp_path)

    def products(profiler):
        names = [event.name for event in profiler.events()]
        seen.append((names.count("aten::mm"), "ProfilerStep#0" in names))

    plan = torch.profiler.schedule(wait=3, warmup=2, active=2) if kind == "schedule" else None
    cpu = [torch.profiler.ProfilerActivity.CPU]
    usual = torch.profiler.profile(activities=cpu, schedule=plan, on_trace_ready=products)

    def after_a_step():
        done.append(len(done))
        if kind == "schedule":
            usual.step()
        if kind == "first steps" and len(done) == 31:
            usual.stop()
        return is_over()

    with mlproject.watch(600, records=tmp_path) as watched:
        usual.start()
        trained(tokens_model(), 5000, is_over=after_a_step)
        if kind != "first steps":
            usual.stop()
    record, steps = watched.record, 31 if kind == "first steps" else len(done)
    assert record.outcome == "ok"
    if kind == "schedule":
        assert {count for count, _ in seen[:-1]} == {2 * 2}
    else:
        assert seen == [(2 * steps, False)]
    if kind == "first steps":
        assert (len(record.ops.ops) > 0, record.complexity.forward_macs) == (True, 3 * 32 * 16)
    else:
        assert "profiles itself" in record.missing["ops"]


@pytest.mark.slow
def test_a_profile_that_begins_in_a_step_of_ours_is_whole(short_window, tmp_path):
    model, seen, steps = tokens_model(), [], iter(range(10**9))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step():
        loss = model(torch.randint(16, (3, 4))).sum()
        if next(steps) % 3 == 0:
            with torch.autograd.profiler.profile() as profiler:
                loss.backward()
            names = [event.name for event in profiler.function_events]
            seen.append(names.count("aten::mm"))
        else:
            loss.backward()
        optimizer.step()

    record = watched(tmp_path, step)
    assert set(seen) == {2}
    assert record.outcome == "ok"
    assert "profiles itself" in record.missing["ops"]


@pytest.mark.slow
def test_a_mode_that_the_script_enters_in_the_counted_step_stays_its_own(short_window, tmp_path):
    model, counted = nn.Linear(4, 4), []
    whole = stepping(model, torch.ones(3, 4))

    def step():
        model(torch.ones(3, 4)).sum().backward()
        with FlopCounterMode(display=False) as mode:
            whole()  # within it ends the step
            model(torch.ones(3, 4)).sum().backward()
        counted.append(mode.get_total_flops())
        whole()

    watched(tmp_path, step)
    assert set(counted) == {2 * 2 * (2 * 3 * 4 * 4)}
    assert torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.slow
def test_optimizers_that_step_in_the_backward_pass_leave_the_rate_and_a_reason(
    short_window, tmp_path
):
    model = nn.Linear(4, 4).double()
    for one in model.parameters():
        optimizer = torch.optim.SGD([one], 0.1)
        one.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    batch = torch.ones(3, 4, dtype=torch.float64)
    record = watched(tmp_path, lambda: model(batch).sum().backward())
    assert (record.outcome, record.measurement.samples_per_iteration) == ("ok", 3)
    assert "within the backward pass" in record.missing["complexity"]
    assert "within the backward pass" in record.missing["ops"]
    assert record.resolved.math_mode == "fp64"


@pytest.mark.slow
def test_rates_of_steps_of_different_sizes_are_sums_over_the_window(short_window, tmp_path):
    record = watched(tmp_path, stepping(nn.Linear(4, 4), torch.ones(4, 4), torch.ones(2, 4)))
    measured = record.measurement
    size = measured.samples_per_iteration  # of the first step that was seen
    assert size == record.complexity.batch_size in (4, 2)
    assert set(measured.iteration_samples) == {4, 2}
    rate = sum(measured.iteration_samples) / measured.window_s
    assert measured.throughput_samples_per_s == measured.pace_samples_per_s == pytest.approx(rate)
    # forward and weights' gradient of a linear layer of 4 x 4
    assert record.complexity.step_flops == 2 * 2 * 4 * 4 * size
    assert attained_flops_per_s(record) == pytest.approx(2 * 2 * 4 * 4 * rate)
    assert "sizes-differ" in {finding.code for finding in record.verdict.findings}
    assert "differ in size" in record.missing["ops"]
    alike = watched(tmp_path / "x", stepping(nn.Linear(4, 4), torch.ones(4, 4), torch.zeros(4, 4)))
    assert (alike.measurement.samples_per_iteration, alike.complexity.batch_size) == (4, 4)
    assert alike.measurement.iteration_samples is None


@pytest.mark.slow
def test_of_samples_that_differ_in_size_the_work_of_one_step_is_not_claimed(short_window, tmp_path):
    inputs = [torch.ones(3, 5, dtype=torch.long), torch.ones(2, 7, dtype=torch.long)]
    record = watched(tmp_path, stepping(nn.Sequential(nn.Embedding(9, 4)), *inputs))
    assert set(record.measurement.iteration_samples) == {3, 2}
    assert (record.resolved.sample, record.resolved.tokens_per_sample) == ("sequence", None)
    tokens = sum({3: 15, 2: 14}[samples] for samples in record.measurement.iteration_samples)
    rate = summary(record)["throughput_tokens_per_s"]
    assert rate == pytest.approx(tokens / record.measurement.window_s)
    assert "differ in size" in record.missing["complexity"]


@pytest.mark.slow
def test_a_closure_looks_at_one_batch_however_often(short_window, tmp_path):
    model, batch = nn.Linear(4, 1), torch.ones(6, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-9, max_iter=3, tolerance_change=0)

    def closure():
        optimizer.zero_grad()
        loss = (model(batch) - 1).square().mean()
        loss.backward()
        return loss

    record = watched(tmp_path, lambda: optimizer.step(closure))
    assert record.measurement.samples_per_iteration == 6


def test_a_block_without_a_step_is_refused(tmp_path):
    with mlproject.watch(records=tmp_path) as seen:
        pass
    assert seen.record.outcome == "refused"
    with pytest.raises(ValueError, match="mine"), mlproject.watch(records=tmp_path) as seen:
        raise ValueError("mine")
    assert (seen.record.outcome, seen.record.reason) == ("crashed", "ValueError: mine")


@pytest.mark.parametrize(
    ("inputs", "found"),
    [
        (((torch.ones(5, 3, 8, 8),), {}), ("image", 5, 8)),
        (((), {"labels": torch.ones(5), "ids": torch.ones(5, 7, dtype=torch.long)}),
         ("sequence", 5, 7)),
        (((torch.ones(5, 7),), {}), ("sample", 5, None)),
        ((([torch.ones(3, 6, 8), torch.ones(3, 8, 6)],), {}), ("sample", 2, None)),
        (((), {"images": [torch.ones(3, 6, 8), torch.ones(3, 8, 6)]}), ("sample", 2, None)),
        ((((torch.ones(3, 6, 8), torch.ones(3, 8, 6)),), {}), ("sample", 2, None)),
        ((((torch.ones(5, 7), torch.ones(5, 7)),), {}), ("sample", 5, None)),  # two inputs
        ((([torch.ones(6), torch.ones(8)],), {}), ("sample", 2, None)),
        ((([torch.ones(n, 3) for n in (4, 5, 6)],), {}), ("sample", 3, None)),  # point clouds
        (((torch.ones(5, 7, 4), torch.ones(7, 7), torch.ones(5)), {}), ("sample", 5, None)),
        (((torch.ones(5, 7, 4), (torch.ones(2, 5, 3),)), {}), ("sample", 5, None)),  # a state
        (((torch.ones(2, 3, 8, 8), torch.ones(9, 6)), {}), ("image", 2, 8)),  # boxes of both
        (((torch.ones(5, 7, dtype=torch.bool),), {}), ("sample", 5, None)),
        ((([{"image": torch.ones(3, 6, 8)}] * 4,), {}), ("sample", 4, None)),
        ((((pack_sequence([torch.ones(4, 2), torch.ones(3, 2)])),), {}), ("sample", 2, None)),
        (((SimpleNamespace(num_graphs=8, x=torch.ones(99, 4)),), {}), ("sample", 8, None)),
        (((), {"ids": torch.ones(2, 7), "input_ids": torch.ones(5, 7, dtype=torch.long)}),
         ("sequence", 5, 7)),
        ((("text",), {}), ("sample", 0, None)),
    ],
)  # fmt: skip
def test_the_first_input_says_what_a_sample_is(inputs, found):
    seen, model = Batches("cpu"), nn.Identity()
    seen.look(model, *inputs)
    assert (seen.sample, seen.samples, seen.size) == found
    seen.look(nn.Identity(), (torch.ones(9, 9),), {})
    with torch.no_grad():
        seen.look(model, *inputs)
    assert seen.samples == found[1] or found[1] == 0


def given(*inputs):
    return lambda model: model(*inputs)


def whole(*shape):
    return torch.zeros(*shape, dtype=torch.long)


def mapped(model):
    torch.func.vmap(lambda row: model(row, None))(torch.ones(9, 4))


class Takes(nn.Linear):
    def forward(self, nodes, edges):
        return super().forward(nodes)


class Unpacks(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs[0])


class Holds(nn.Module):
    def __init__(self, *size):
        super().__init__()
        self.inner = nn.Linear(*size)

    def forward(self, batch):
        return self.inner(batch.rows.flatten(0, 1))


class Graph:
    num_nodes = 9


def twice_checkpointed(model):
    first, second = (checkpoint(model, torch.ones(3, 4), use_reentrant=False) for _ in range(2))
    (first + second).sum().backward()


@pytest.mark.parametrize(
    ("model", "step"),
    [
        (Takes(4, 4), mapped),
        (nn.LSTM(4, 4), given(torch.ones(9, 2, 4))),
        # nodes, and what joins them: edges, a square, a sparse square, an object, their groups
        (Takes(4, 4), given(torch.ones(9, 4), whole(2, 7))),
        (Takes(4, 4), given(torch.ones(9, 4), whole(7, 2))),
        (Takes(4, 4), given(torch.ones(9, 4), torch.eye(9))),
        (Takes(4, 4), given(torch.ones(9, 4), torch.eye(9).to_sparse())),
        (Takes(4, 4), given(torch.ones(9, 4), Graph())),
        (Takes(4, 4), given(torch.ones(9, 4), torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2]))),
        # inputs of several lengths
        (Takes(4, 4), given(torch.ones(9, 4), torch.ones(5))),
        (nn.EmbeddingBag(9, 4), given(whole(9), whole(2))),
        (Unpacks(4, 4), given([torch.ones(9, 4), torch.ones(5, 4)])),
        (Unpacks(4, 4), given((torch.ones(9, 4), torch.ones(5, 4)))),
        # one sample without a batch
        (nn.Conv2d(3, 4, 1), given(torch.ones(3, 8, 8))),
        (nn.LSTM(4, 4, batch_first=True), given(torch.ones(9, 4))),
        (nn.TransformerEncoderLayer(4, 2, 4, batch_first=True), given(torch.ones(9, 4))),
        # rows that the model makes of what an object holds
        (Holds(4, 4), given(SimpleNamespace(rows=torch.ones(2, 9, 4)))),
    ],
)
def test_where_no_dimension_is_surely_the_batch_steps_are_counted(model, step):
    training = Training([torch.optim.SGD(model.parameters(), 0.1)])
    with training.watched(0) as seen:
        step(model)
    assert (seen.sample, seen.samples, seen.size) == ("step", 1, None)
    with training.watched(7) as seen:
        step(model)
    assert seen.samples == 7


@pytest.mark.parametrize(("between", "samples"), [(True, 1), (False, 16)])
def test_samples_around_an_update_within_the_step_are_not_added_up(between, samples):
    made, judged = nn.Linear(4, 4), nn.Linear(4, 1)
    of_made, of_judged = (torch.optim.SGD(model.parameters(), 0.1) for model in (made, judged))
    with Training([of_judged, of_made]).watched(0) as seen:
        judged(made(torch.ones(8, 4))).sum().backward()
        if between:
            of_made.step()
        judged(torch.zeros(8, 4)).sum().backward()
        judged(made(torch.ones(8, 4)).detach()).sum().backward()
        of_judged.step()
    assert (seen.sample, seen.samples) == ("step" if between else "sample", samples)


def test_what_a_checkpoint_runs_again_is_no_second_pass():
    model = nn.Sequential(nn.Linear(4, 4))
    training = Training([torch.optim.SGD(model.parameters(), 0.1)])
    with training.watched(0) as seen:
        twice_checkpointed(model)
    assert (seen.samples, seen.passes) == (6, 2)


def test_a_look_at_what_cannot_be_asked_leaves_the_script_alone():
    class Odd:
        @property
        def num_graphs(self):
            raise RuntimeError("not now")

    seen = Batches("cpu")
    seen.look(nn.Identity(), (Odd(),), {})
    seen.compare(nn.Identity(), (Odd(),), {})
    assert seen.unsure


def test_equal_models_have_equal_digests_whatever_wraps_them():
    def name(wrap, width=4):
        model = nn.Sequential(nn.Linear(4, width))
        wrapped = wrap(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return Training([optimizer]).names["model"], wrapped

    (plain, _), (shared, _), (wide, _) = (
        name(lambda model: model),
        name(nn.DataParallel),
        name(lambda model: model, 5),
    )
    assert plain == shared != wide


@pytest.fixture
def four_ranks():
    """Rank 0 of four that send each other nothing."""
    distributed = torch.distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "split", "gathered", "sharing", "named"),
    [
        ((4,), True, False, 4, "tensor parallel"),
        ((4,), False, True, 1, "fully_shard"),
        ((2, 2), False, True, 1, "fully_shard"),  # of which each half has a copy
        ((2, 2), True, True, 2, "fully_shard, tensor parallel"),
        ((2, 2), True, False, 2, "tensor parallel"),  # of which each half has a copy
        ((4,), False, False, 1, "DistributedDataParallel"),
    ],
)
def test_ranks_that_share_a_batch_are_those_that_split_a_layer(
    four_ranks, sizes, split, gathered, sharing, named
):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("outer", "inner")[: len(sizes)])
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    if split:
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(model, mesh["inner"] if len(sizes) > 1 else mesh, plan)
    if gathered:
        fully_shard(model, mesh=mesh["outer"] if split else mesh)
    if named == "DistributedDataParallel":
        model = nn.parallel.DistributedDataParallel(model)
    training = Training([torch.optim.SGD(model.parameters(), 0.1)])
    assert (ranks_of_a_batch(training), parallelism_of(training)) == (sharing, named)


@pytest.mark.slow
def test_stages_of_a_pipeline_share_a_batch(four_ranks):
    from torch.distributed.pipelining import PipelineStage

    model = nn.Linear(8, 8)
    stage = PipelineStage(model, 0, 4, torch.device("cpu"))
    training = Training([torch.optim.SGD(stage.submod.parameters(), 0.1)])
    assert (ranks_of_a_batch(training), parallelism_of(training)) == (4, "pipeline")
