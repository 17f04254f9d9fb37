"""Tables with a row per result: what they say is taken, nothing added, a bad row has its line."""

import re
import shlex
from datetime import datetime, timezone
from pathlib import Path

import pytest

from bench.errors import UserError
from tracking.importing import read_results
from tracking.importing.tables import plain

PUBLISHED = (
    "source,env,device,backend,arch,precision,batch_size,repeats,images_per_s,images_per_s_sd\n"
    "report-a,mac_cpu,Apple M3 Max CPU,cpu,mobilenet_v2,fp32,16,3,1.74,0.19\n"
    "report-a,rtx4090,NVIDIA GeForce RTX 4090 Laptop GPU,cuda,resnet50,amp,64,3,807.54,3.98\n"
)
TIMM = "benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv"


def test_a_result_that_an_earlier_version_imported_is_known_again(read):
    known = [record.record_id for record in read(PUBLISHED).records]
    assert known == ["imported-6d699ec7a38592e4e36d", "imported-fd2c2d4a679b28b6f257"]


@pytest.mark.parametrize(("steps", "rate"), [("", 2000.0), ("1", 2000.0), ("4", None)])
def test_a_time_gives_no_rate_where_a_step_may_be_several_batches(read, steps, rate):
    [record] = read(
        f"model,batch_size,step_time_ms,grad_accum\nresnet18,128,64.0,{steps}\n"
    ).records
    assert record.throughput_images_per_s == rate
    why = record.missing.get("throughput_images_per_s", "")
    assert ("of one batch or of all" in why) == (rate is None)
    assert record.metrics["iteration_time_ms_mean"] == 64.0


def test_what_stands_beside_a_result_is_read_and_its_text_kept(read):
    header = "model,images_per_s,gpus,num_nodes,attained_tflops,params_m\n"
    first, second = read(f"{header}resnet18,8,2,3,1.5,11.7\nvgg16,8,,,,\n").records
    assert first.params == {"devices": "2", "nodes": "3"}
    assert first.metrics == {"claimed_gflops": 1500, "parameters": pytest.approx(11.7e6)}
    assert first.extra["attained_tflops"] == "1.5"
    assert (second.params, second.metrics) == ({}, {})
    [problem] = read(f"{header}resnet18,8,all,3,1.5,11.7\n").problems
    assert problem.reason == "gpus: 'all' is not a number"


def test_a_time_with_its_zone_is_when_it_was_measured(read):
    times = ("2024-05-01T12:00:00+02:00", "2024-05-01 12:00", "1970-01-01T00:00Z")
    rows = "".join(f"resnet18,{rate},{time}\n" for rate, time in enumerate(times, 1))
    found = read(f"model,images_per_s,timestamp\n{rows}")
    first, *others = found.records
    assert first.measured_at == first.created == datetime(2024, 5, 1, 10, tzinfo=timezone.utc)
    assert [one.measured_at for one in others] == [None, None]
    assert [one.extra for one in others] == [
        {"timestamp": "2024-05-01 12:00"},
        {"timestamp": "1970-01-01T00:00Z"},
    ]


def test_timm_results_have_milliseconds_and_what_their_name_says(read):
    found = read(
        "model,infer_samples_per_sec,train_samples_per_sec,train_step_time,train_batch_size,"
        "train_img_size,param_count,error\n"
        "resnet50,,1218.01,419.528,512,224,25.56,\n"
        "vgg11,4000,,,,,,\nvgg16,,,,,,,CUDA out of memory\nresnetv2_50d,9,800,,256,,,\n",
        TIMM,
    )
    record, other = found.records
    assert (record.arch, other.arch) == ("timm:resnet50", "timm:resnetv2_50d")
    assert record.throughput_images_per_s == 1218.01
    assert record.metrics == {"iteration_time_ms_mean": 419.528, "parameters": 25.56e6}
    assert (record.batch_size, record.params["image_size"]) == (512, "224")
    assert (record.precision, record.env) == ("amp", "rtx3090")
    assert record.extra == {"param_count": "25.56"}
    assert [problem.line for problem in found.problems] == [3, 4]  # nothing of training


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        *(("nan", "not a number"), ("inf", "not a number"), ("fast", "not a number")),
        *(("0x10", "not a number"), ("\uff11\uff12", "not a number"), ("1e999", "too large")),
        *(("-5", "negative"), ("0", "negative or zero"), ("=1+2", "not a number")),
    ],
)
def test_a_bad_cell_costs_its_row_and_is_named_by_line_and_column(read, cell, reason):
    found = read(f"model,batch_size,images_per_s\nresnet18,8,100\nvgg16,8,{cell}\nvgg11,8,50\n")
    assert [record.arch for record in found.records] == ["resnet18", "vgg11"]
    [problem] = found.problems
    assert problem.line == 3
    assert problem.reason.startswith("images_per_s: ")
    assert reason in problem.reason


def test_rows_that_are_none_are_named_and_the_others_taken(read):
    found = read(
        "model,batch_size,images_per_s\nvgg16,8,99\n,8,5\nvgg16,8,100\nvgg11,x,100\n"
        f"{'a' * 20000},8,100\nalexnet,8,100\n=cmd|calc,8,100\nvgg13,8,\nvgg13,0,1\nvgg13,8\n"
    )
    assert [record.arch for record in found.records] == ["vgg16", "vgg16", "alexnet"]
    assert [problem.line for problem in found.problems] == [3, 5, 6, 8, 9, 10, 11]


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfmodel,batch_size,images_per_s\r\nresnet18,8,12.5\r\n",
        b"model;batch_size;images_per_s\r\nresnet18;8.0;12.50\r\n",
        b"model\tbatch_size\timages_per_s\nresnet18\t8\t12.5\n",
        b'\n\nmodel,batch_size,images_per_s\n\n"resnet18",8,12.5\n',
    ],
)
def test_tables_as_spreadsheets_write_them_are_read(read, content):
    plain = read("model,batch_size,images_per_s\nresnet18,8,12.5\n").records
    found = read(content)
    assert found.problems == []
    assert [one.record_id for one in found.records] == [one.record_id for one in plain]


@pytest.mark.parametrize("cell", ["12,5", "1,234", "1.234,5", "1,234.5"])
def test_a_comma_in_a_number_refuses_the_file_by_the_value(read, cell):
    # beside it 1.234 could be 1234
    found = read(f"model;batch_size;images_per_s\nresnet18;8;1.234\nvgg16;8;{cell}\n")
    assert found.records == []
    [problem] = found.problems
    assert problem.reason.startswith(f"line 3: {cell!r} has a comma: write ")
    assert len(read("model;gpu_ids;images_per_s\nresnet18;0,1;9\n").records) == 1


UNCLEAR = {
    "devices": "n_gpu ngpus numGPUs gpus_per_node nproc-per-node cards num_accelerators ranks "
    "world_size nnodes ddp_size GPU(s) data_parallel_size workers_gpu Number_of_GPUs mpi_ranks "
    "trainers tiles",
    "batch_size": "bs train_batch_size Total-Batch-Size gbs effective-batch-size micro_batch "
    "globalBatch images_per_gpu gas accumulate_grad_batches ims_per_batch num_microbatches "
    "acc_steps eff_bs seqs_per_gpu",
}


@pytest.mark.parametrize(
    ("heading", "fact"),
    [
        *((heading, fact) for fact, headings in UNCLEAR.items() for heading in headings.split()),
        ("GPU Count", "devices"),
    ],
)
def test_what_looks_like_devices_or_a_batch_and_is_not_named_stops_the_import(read, heading, fact):
    table = f"model,images_per_s,{heading}\nresnet18,8,4\n"
    with pytest.raises(UserError, match=re.escape(f"--column {fact}={shlex.quote(heading)} (")):
        read(table)
    with pytest.raises(UserError, match=r"results\.csv"):  # in a folder, too
        read(name=".")
    [record] = read(table, named={plain(heading): "other"}).records
    assert (record.batch_size, record.params, record.extra) == (None, {}, {heading: "4"})
    [record] = read(table, named={plain(heading): fact}).records
    assert record.params.get("devices", record.batch_size) in ("4", 4)


@pytest.mark.parametrize(
    ("headings", "cells"),
    [
        ("gpu_id,device_memory_gb,num_workers", "3,80,8"),
        ("batch_time,num_batches,eval_batch_size,train_acc", "0.5,100,32,7"),
        ("gpu,host,instance", "NVIDIA L4,node12,p3.2xlarge"),
    ],
)
def test_what_only_reminds_of_devices_or_a_batch_stops_nothing(read, headings, cells):
    [record] = read(f"model,images_per_s,{headings}\nresnet18,8,{cells}\n").records
    assert (record.batch_size, record.params) == (None, {})


def test_a_number_under_the_heading_of_a_name_or_a_second_count_stops_the_import(read):
    for table in ("model,gpu,images_per_s\nvgg16,8,9\n", "model,gpus,devices,img/s\nvgg16,8,2,9\n"):
        with pytest.raises(UserError, match="a number of devices"):
            read(table)


@pytest.mark.parametrize("column", ["imgs/sec", "samples_per_s", "throughput", "fps"])
def test_a_rate_is_of_images_by_its_name_or_by_the_user(read, column):
    table = f"model,batch_size,{column}\nresnet18,8,100\ngpt2,8,100\n"
    with pytest.raises(UserError, match="looks like a throughput"):
        read(table)
    found = read(table, named={plain(column): "throughput"}).records
    assert [record.throughput_images_per_s for record in found] == [100, 100]
    [record, _] = read(table.replace(column, "Throughput (img/s)")).records
    assert record.throughput_images_per_s == 100


GLOBAL = "model,num_gpus,train_batch_size,step_time_s{}\nresnet50,4,{},0.5{}\n"


@pytest.mark.parametrize(
    ("more", "whole", "batch", "rate"),
    [
        (("", ""), 1024, 256, 2048.0),
        ((",images_per_s", ",2040"), 1024, 256, 2040.0),
        ((",nodes", ",2"), 1024, 128, 2048.0),
        ((",grad_accum_steps", ",2"), 1024, 128, None),
        (("", ""), 1022, None, None),  # four devices do not share it
        ((",batch_size", ",128"), 1024, None, None),
        ((",images_per_s", ",8192"), 1024, None, None),
    ],
)
def test_a_batch_of_all_devices_is_shared_by_them(read, more, whole, batch, rate):
    table = GLOBAL.format(more[0], whole, more[1])
    found = read(table, named={"train_batch_size": "global_batch_size"})
    assert len(found.problems) == (batch is None)
    for record in found.records:
        assert (record.batch_size, record.throughput_images_per_s) == (batch, rate)


def test_a_batch_of_nobody_knows_how_many_devices_is_refused(read):
    named = {"gbs": "global_batch_size"}
    table = "model,gbs,images_per_s\nvgg16,64,9\n"
    assert "--set devices=N" in read(table, named=named).problems[0].reason
    assert read(table, named=named, devices="4").records[0].batch_size == 16


@pytest.mark.parametrize(
    ("row", "taken"),
    [
        ("4,1024,0.5,2048,", False),  # the batch is of all four, or the rate of one
        ("4,256,0.5,2048,", True),
        ("4,256,0.5,2400,", True),
        ("4,256,0.5,2500,", False),  # over a fifth
        (",256,0.5,2048,", False),  # of one device, as far as the file says
        ("1,256,0.5,2048,4", True),  # the time is of four batches
        ("1,256,0.5,1024,4", False),
    ],
)
def test_rate_time_batch_and_devices_that_contradict_are_refused(read, row, taken):
    header = "model,gpus,batch_size,step_time_s,images_per_s,grad_accum_steps"
    found = read(f"{header}\nresnet50,{row}\n")
    assert (len(found.records), len(found.problems)) == (taken, not taken)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        *(
            ("bf16-mixed", "amp-bf16"),
            ("fp16-mixed", "amp-fp16"),
            ("16-mixed", "amp-fp16"),
            ("32-true", "fp32"),
        ),
        *(("mixed_bfloat16", "amp-bf16"), ("mixed_float16", "amp-fp16"), ("O1", "amp-fp16")),
        *(("O0", "fp32"), ("amp_bf16", "amp-bf16"), ("torch.float16", "fp16")),
        *(("bf16-true", "bf16-true"), ("O2", "o2"), ("transformer-engine", "transformer-engine")),
    ],
)
def test_a_precision_of_another_library_has_our_name_where_it_is_the_same(read, name, ours):
    [record] = read(f"model,precision,images_per_s\nresnet50,{name},9\n").records
    assert record.precision == ours


@pytest.mark.parametrize("column", ["s", "mean_ms", "gflop", "user_ms", "iterations_s"])
def test_a_column_that_only_looks_like_a_fact_stays_a_text(read, column):
    [record] = read(f"model,images_per_s,{column}\nresnet18,8,2.5\n").records
    assert (record.metrics, record.extra) == ({}, {column: "2.5"})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no header"),
        (b"\xff\x00\x80junk", "not UTF-8"),
        (b"PK\3\4\0\0xl/workbook.xml", "export a spreadsheet as CSV"),
        (b"model,model,images_per_s\n", "twice"),
        (b"a,b\n1,2\n", "no column of it is known"),
        (b"{}", "--reader"),
        (b"cos\nsystem\n(S'touch pwned'\ntR.", "known"),
    ],
)
def test_files_that_are_no_results_are_refused_in_one_line_and_counted_in_a_folder(
    read, tmp_path, content, reason
):
    found = read(content)
    assert found.records == []
    [problem] = found.problems
    assert problem.line is None
    assert reason in problem.reason
    assert "\n" not in str(problem)
    assert not (tmp_path / "pwned").exists()
    folder = read(name=".")
    assert (folder.problems, folder.other_files) == ([], 1)


def test_what_is_no_file_or_too_large_is_not_read(tmp_path):
    with (tmp_path / "huge.csv").open("wb") as file:
        file.truncate(65 * 2**20)  # a hole: takes no room
    for path, reason in {
        Path("/dev/null"): "not a file",
        tmp_path / "nowhere.csv": "No such file",
        tmp_path / "huge.csv": "64 MiB",
    }.items():
        found = read_results(path, campaign="old", given={})
        assert reason in found.problems[0].reason


# Tables with a row per iteration


RUN = {"arch": "resnet18", "batch_size": "8"}


def test_a_file_of_iterations_is_a_run_by_the_facts_of_the_user(read):
    text = "iteration,iteration_time_s,data_wait_s\n0,0.5,0\n1,0.25,0\n2,0.25,0\n"
    [record] = read(text, **RUN).records
    assert record.iteration_times_s == (0.5, 0.25, 0.25)
    assert record.throughput_images_per_s == pytest.approx(24)
    assert record.metrics["iteration_time_ms_p50"] == 250.0
    assert record.metrics["window_s"] == 1.0
    assert record.source_line is None
    [record] = read(text, warmup_iters="1", **RUN).records
    assert record.iteration_times_s == (0.25, 0.25)
    assert "those of the warm-up" in read(text, warmup_iters="3", **RUN).problems[0].reason


def test_columns_that_never_change_are_facts_and_marked_warm_up_is_left_out_by_the_user(read):
    text = (
        "iter,phase,step_time_ms,model,batch_size,label\n0,warmup,900,resnet18,8,x\n"
        "1,measure,100,resnet18,8,x\n2,measure,300,resnet18,8,x\n"
    )
    assert "leave the first out by --set warmup_iters=N" in read(text).problems[0].reason
    [record] = read(text, warmup_iters="1").records
    assert record.iteration_times_s == (0.1, 0.3)
    assert (record.arch, record.batch_size, record.extra["label"]) == ("resnet18", 8, "x")


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 1e-3), ("us", 1e-6)])
def test_a_time_of_an_iteration_has_a_unit_by_its_name(read, unit, factor):
    [record] = read(f"step,step_time_{unit},loss\n0,0.5,7\n1,0.25,7\n", **RUN).records
    assert record.iteration_times_s == pytest.approx((0.5 * factor, 0.25 * factor))


def test_the_user_names_the_counter_and_the_time(read):
    named = {"k": "iteration", "forward_backward": "iteration_time_ms"}
    [record] = read("k,forward+backward\n1,0.5\n2,0.25\n", named=named, **RUN).records
    assert record.iteration_times_s == pytest.approx((0.5e-3, 0.25e-3))


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("iteration,time,images_per_s\n0,0.5,9\n", None, "--column iteration_time_ms=HEADING"),
        ("step,images_per_s\n0,9\n", None, "where rows are runs, add --column other=step"),
        # a run with a hole in it is no run, nor are two
        ("iteration,iteration_time_s\n0,0.5\n1,0.5\n3,0.5\n", 4, "iteration 3 follows 1"),
        ("epoch,iter,iter_time_s\n0,0,0.5\n0,1,0.5\n1,0,0.5\n", 4, "iteration 0 follows 1"),
        ("iteration,iteration_time_s\n0,0.5\n1,nan\n", 3, "not a number"),
        ("iteration,iteration_time_s\n0,0.5\n1\n", 3, "1 cells under 2 columns"),
    ],
)
def test_rows_that_are_not_the_iterations_of_a_run_are_refused(read, text, line, reason):
    found = read(text, **RUN)
    assert found.records == []
    assert found.problems[0].line == line
    assert reason in found.problems[0].reason


def test_times_of_a_model_of_text_give_no_rate_of_images(read):
    [record] = read(
        "iteration,iteration_time_s,model,batch_size\n0,0.5,gpt2,8\n1,0.5,gpt2,8\n"
    ).records
    assert record.throughput_images_per_s is None
    assert record.iteration_times_s == (0.5, 0.5)
    assert "text" in record.missing["throughput_images_per_s"]
