"""Files of other programs: what they say is taken, nothing is added, each bad row has its line."""

import copy
import json
import zipfile
from pathlib import Path

import pytest

from tracking.importing import read_results

PUBLISHED = (
    "source,env,device,backend,arch,precision,batch_size,repeats,images_per_s,images_per_s_sd\n"
    "report-a,mac_cpu,Apple M3 Max CPU,cpu,mobilenet_v2,fp32,16,3,1.74,0.19\n"
    "report-a,rtx4090,NVIDIA GeForce RTX 4090 Laptop GPU,cuda,resnet50,amp,64,3,807.54,3.98\n"
)
TIMM = (
    "model,train_samples_per_sec,train_step_time,train_batch_size,train_img_size,param_count\n"
    "resnet50,1218.01,419.528,512,224,25.56\n"
    "vgg11,954.03,536.508,512,224,132.86\n"
)
OPTIMUM = {
    "config": {
        "name": "vit",
        "backend": {
            "name": "pytorch",
            "task": "image-classification",
            "model": "google/vit-base-patch16-224",
            "device": "cuda",
            "torch_dtype": "float32",
        },
        "scenario": {"name": "training", "training_arguments": {"per_device_train_batch_size": 8}},
        "environment": {"gpu": ["Tesla T4"], "cpu": "Xeon", "optimum_benchmark_version": "0.5.0"},
    },
    "report": {
        "overall": {"latency": {"unit": "s", "values": [9.0, 9.0, 0.5, 0.25, 0.25]}},
        "train": {
            "memory": None,
            "latency": {"unit": "s", "values": [0.5, 0.25, 0.25]},
            "throughput": {"unit": "samples/s", "value": 24.0},
        },
    },
}
HALF = ("half", "fp16", "float16", "torch.float16", "FP16")


@pytest.fixture
def read(tmp_path):
    def read(content, name="results.csv", **given):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_results(path, campaign="old", given=given)

    return read


def test_a_published_table_is_taken_row_by_row(read):
    found = read(PUBLISHED)
    assert found.problems == []
    mac, rtx = found.records
    assert (mac.env, mac.device, mac.backend) == ("mac_cpu", "Apple M3 Max CPU", "cpu")
    assert (mac.arch, mac.precision, mac.batch_size) == ("mobilenet_v2", "fp32", 16)
    assert mac.throughput_images_per_s == 1.74
    assert mac.metrics == {"throughput_images_per_s_std": 0.19}
    assert mac.params == {"repeats": "3"}
    assert mac.extra == {"source": "report-a"}
    assert (mac.source_file, mac.source_line) == ("results.csv", 2)
    assert rtx.source_line == 3
    assert mac.iteration_times_s is None
    assert "does not say" in mac.missing["iteration_times_s"]
    assert "does not say" in mac.missing["measured_at"]
    assert mac.campaign == "old"


@pytest.mark.parametrize(("steps", "rate"), [("", 2000.0), ("1", 2000.0), ("4", None)])
def test_a_time_gives_no_rate_where_a_step_may_be_several_batches(read, steps, rate):
    found = read(f"model,batch_size,avg_iter_ms,grad_accum\nresnet18,128,64.0,{steps}\n")
    assert found.problems == []
    (record,) = found.records
    assert record.throughput_images_per_s == rate
    assert ("of one batch or of all" in record.missing.get("throughput_images_per_s", "")) == (
        rate is None
    )
    assert record.metrics["iteration_time_ms_mean"] == 64.0


def test_names_and_units_of_older_ledgers_are_understood(read):
    found = read(
        "Run,Model,GPU,dtype,BS,avg_iter_ms,Throughput (img/s),maxrss_kb,real_s,notes\n"
        "rtx4090_vgg16_amp_bs64_run2,vgg16,RTX 4090,float32,64,160.0,400,1000000,31.5,warm room\n"
        ",resnet18,RTX 4090,fp16,128,64.0,,,,\n"
    )
    assert found.problems == []
    first, second = found.records
    assert (first.arch, first.device, first.precision) == ("vgg16", "RTX 4090", "fp32")
    assert (first.env, first.repeat) == ("rtx4090", 2)  # from the run's label
    assert first.metrics["iteration_time_ms_mean"] == 160.0
    assert first.metrics["max_rss_mb"] == pytest.approx(1024.0)
    assert first.metrics["real_s"] == 31.5
    assert first.extra["notes"] == "warm room"
    assert second.throughput_images_per_s == pytest.approx(2000.0)
    assert "batch size" in second.extra["throughput_from"]
    assert second.precision == "fp16"
    assert second.env is None


@pytest.mark.parametrize(
    ("label", "facts"),
    [
        ("mac_cpu_mobilenet_v2_fp32_bs16_run3", ("mac_cpu", "mobilenet_v2", "fp32", 16, 3)),
        ("gcp-l4_resnet50_amp-bf16_bs256", ("gcp-l4", "resnet50", "amp-bf16", 256, None)),
    ],
)
def test_a_run_per_file_takes_its_facts_from_the_files_name(read, label, facts):
    found = read("iteration,iteration_time_s,data_wait_s\n0,0.5,0\n1,0.25,0\n2,0.25,0\n", label)
    [record] = found.records
    env, arch, precision, batch, repeat = facts
    assert (record.env, record.arch, record.precision) == (env, arch, precision)
    assert (record.batch_size, record.repeat) == (batch, repeat)
    assert record.iteration_times_s == (0.5, 0.25, 0.25)
    assert record.throughput_images_per_s == pytest.approx(3 * batch)
    assert record.metrics["iteration_time_ms_p50"] == 250.0
    assert record.metrics["window_s"] == 1.0
    assert record.source_line is None


def test_warm_up_rows_are_left_out_and_columns_that_never_change_are_facts(read):
    found = read(
        "iter,phase,step_time_ms,model,batch_size\n"
        "0,warmup,900,resnet18,8\n0,measure,100,resnet18,8\n1,measure,300,resnet18,8\n"
    )
    [record] = found.records
    assert record.iteration_times_s == (0.1, 0.3)
    assert (record.arch, record.batch_size) == ("resnet18", 8)


def test_a_run_with_a_hole_in_it_is_no_run(read):
    times = "iteration,iteration_time_s\n0,0.5\n1,0.5\n3,0.5\n"
    found = read(times, "cpu_resnet18_fp32_bs8.csv")
    assert found.records == []
    assert "line 4: iteration 3 follows 1" in str(found.problems[0])
    found = read("iteration,iteration_time_s\n0,0.5\n1,nan\n", "cpu_resnet18_fp32_bs8.csv")
    assert found.records == []
    assert found.problems[0].line == 3


def test_timm_results_are_taken_with_milliseconds_and_what_their_name_says(read):
    found = read(TIMM, "benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv")
    assert found.problems == []
    record = found.records[0]
    assert record.source_format == "timm"
    assert record.throughput_images_per_s == 1218.01
    assert record.metrics["iteration_time_ms_mean"] == 419.528
    assert (record.batch_size, record.params["image_size"]) == (512, "224")
    assert (record.precision, record.env) == ("amp", "rtx3090")
    assert record.extra == {"param_count": "25.56"}


def test_timm_rows_without_training_are_named(read):
    found = read(
        "model,infer_samples_per_sec,infer_batch_size,train_samples_per_sec,error\n"
        "resnet50,4000,256,,\nvgg16,,,,CUDA out of memory\nresnet18,9000,256,800,\n"
    )
    assert [record.arch for record in found.records] == ["resnet18"]
    assert [problem.line for problem in found.problems] == [2, 3]
    assert "inference alone" in found.problems[0].reason
    assert "out of memory" in found.problems[1].reason


def test_accumulated_batches_of_an_optimum_report_belong_to_its_step(read):
    def report(**more):
        content = copy.deepcopy(OPTIMUM)
        content["config"]["scenario"]["training_arguments"] |= more
        [record] = read(json.dumps(content), "benchmark.json").records
        return record

    plain, one, four = report(), *(report(gradient_accumulation_steps=n) for n in (1, 4))
    steps = [record.params.get("grad_accum_steps") for record in (plain, one, four)]
    assert steps == [None, "1", "4"]
    assert plain.record_id == one.record_id != four.record_id


def test_an_optimum_report_is_taken_with_its_own_steps_or_beside_its_configuration(read, tmp_path):
    [record] = read(json.dumps(OPTIMUM), "benchmark.json").records
    assert record.source_format == "optimum-benchmark"
    assert record.arch == "google/vit-base-patch16-224"
    assert (record.backend, record.device, record.precision) == ("cuda", "Tesla T4", "fp32")
    assert record.batch_size == 8
    assert record.iteration_times_s == (0.5, 0.25, 0.25)
    assert record.throughput_images_per_s == 24.0
    (tmp_path / "benchmark_config.json").write_text(json.dumps(OPTIMUM["config"]))
    [beside] = read(json.dumps(OPTIMUM["report"]), "benchmark_report.json").records
    assert beside.record_id == record.record_id


@pytest.mark.parametrize(
    ("gpu", "device"),
    [("NVIDIA A100", "NVIDIA A100"), ({"0": "NVIDIA A100"}, None), ([], None), ([7], None)],
)
def test_a_gpu_of_an_optimum_report_is_a_name_or_missing(read, gpu, device):
    config = OPTIMUM["config"]
    environment = config["environment"] | {"gpu": gpu}
    changed = OPTIMUM | {"config": config | {"environment": environment}}
    [record] = read(json.dumps(changed), "benchmark.json").records
    assert record.device == device


def test_an_optimum_report_of_something_else_is_refused(read):
    for change, reason in (
        ({"report": {"load": {}}}, "no training"),
        ({"config": {"backend": {"task": "text-classification"}}}, "no images"),
        ({"config": {}}, "benchmark_config.json"),
    ):
        found = read(json.dumps({**OPTIMUM, **change}), "benchmark.json")
        assert found.records == []
        assert reason in found.problems[0].reason


def test_a_bad_cell_costs_its_row_and_is_named_by_line_and_column(read):
    for cell, reason in {
        "nan": "not a number",
        "inf": "not a number",
        "-5": "negative",
        "0": "not above zero",
        "fast": "not a number",
        "=1+2": "a formula",
        "1e999": "too large",
        '"1,234"': "two ways",
        '"12,5"': "decimal point",
        "\uff11\uff12": "not a number",
        "0x10": "not a number",
    }.items():
        found = read(f"model,batch_size,images_per_s\nresnet18,8,100\nvgg16,8,{cell}\nvgg11,8,50\n")
        assert [record.arch for record in found.records] == ["resnet18", "vgg11"]
        [problem] = found.problems
        assert problem.line == 3
        assert reason in problem.reason
        assert "images_per_s" in problem.reason


def test_what_stands_beside_a_result_is_read_and_its_text_kept(read):
    header = "model,images_per_s,gpus,num_nodes,attained_tflops,params_m\n"
    first, second = read(f"{header}resnet18,8,2,3,1.5,11.7\nvgg16,8,all,,fast,\n").records
    assert (first.params["devices"], first.params["nodes"]) == ("2", "3")
    assert first.metrics["claimed_gflops"] == 1500
    assert first.metrics["parameters"] == pytest.approx(11.7e6)
    assert first.extra["attained_tflops"] == "1.5"
    assert "devices" not in second.params
    assert "claimed_gflops" not in second.metrics
    assert second.extra["gpus"] == "all"


def test_rows_that_are_none_are_named_and_the_others_taken(read):
    found = read(
        "model,batch_size,images_per_s\nvgg19,1e9,100\n,8,5\nvgg16,8,100\nvgg11,x,100\n"
        f"{'a' * 20000},8,100\nalexnet,8,100\n=cmd|calc,8,100\nvgg13,8,\n"
    )
    assert [record.arch for record in found.records] == ["vgg16", "alexnet"]
    assert [problem.line for problem in found.problems] == [2, 3, 5, 6, 8, 9]


def test_tables_as_spreadsheets_write_them_are_read(read):
    plain = read("model,batch_size,images_per_s\nresnet18,8,12.5\n").records[0]
    for content in (
        b"\xef\xbb\xbfmodel,batch_size,images_per_s\r\nresnet18,8,12.5\r\n",
        b"model;batch_size;images_per_s\r\nresnet18;8;12,5\r\n",
        "model\tbatch_size\timages_per_s\nresnet18\t8.0\t12.50\n".encode("utf-16"),
        b'\n\nmodel,batch_size,images_per_s\n\n"resnet18",8,12.5\n',
    ):
        found = read(content)
        assert found.problems == []
        assert found.records[0].record_id == plain.record_id
    found = read("model;batch_size;images_per_s\nresnet18;8;1,234\nvgg16;8;1,25\n")
    assert [record.arch for record in found.records] == ["vgg16"]
    assert "two ways" in found.problems[0].reason  # it could be thousands
    found = read("model;batch_size;images_per_s\nresnet18;8;1.234\nvgg16;8;12,5\n")
    assert [record.arch for record in found.records] == ["vgg16"]
    assert "two ways" in found.problems[0].reason
    found = read("iteration;step_time_ms;model;batch_size\n0;1.234;vgg16;8\n1;12,5;vgg16;8\n")
    assert found.records == []


@pytest.mark.parametrize("column", ["samples_per_s", "throughput", "throughput_samples_per_s"])
def test_a_rate_is_of_images_by_its_name_by_its_model_or_by_the_user(read, column):
    table = f"model,batch_size,{column}\nresnet18,8,100\nresnetv2_50d,8,90\ngpt2,8,100\n"
    found = read(table)
    assert [record.arch for record in found.records] == ["resnet18", "resnetv2_50d"]
    assert "--set unit=images/s" in found.problems[0].reason
    assert len(read(table, unit="images/s").records) == 3
    assert len(read(table.replace(column, "Throughput (img/s)")).records) == 3


def test_times_of_a_model_of_text_give_no_rate_of_images(read):
    [record] = read("iteration,time_ms,model,batch_size\n0,500,gpt2,8\n1,500,gpt2,8\n").records
    assert record.throughput_images_per_s is None
    assert record.iteration_times_s == (0.5, 0.5)
    assert "text" in record.missing["throughput_images_per_s"]


def test_spellings_of_one_precision_are_one(read):
    rows = "".join(f"resnet18,8,{name},10{n}\n" for n, name in enumerate(HALF))
    found = read(f"model,batch_size,dtype,images_per_s\n{rows}")
    assert {record.precision for record in found.records} == {"fp16"}
    assert len(found.records) == len(HALF)


def test_the_same_result_has_the_same_identity_wherever_it_stands(read):
    first = read(PUBLISHED)
    head, mac, rtx = PUBLISHED.splitlines()
    turned = read("\n".join([head, rtx, mac, rtx]), "other.csv")
    assert {r.record_id for r in turned.records} == {r.record_id for r in first.records}
    assert turned.repeated == 1
    other = read(PUBLISHED.replace("807.54", "807.55"))
    assert other.records[1].record_id != first.records[1].record_id


def test_what_the_user_adds_fills_gaps_alone(read):
    found = read("model,images_per_s\nresnet18,10\n", env="lab", arch="vgg16", batch_size="32")
    [record] = found.records
    assert (record.env, record.arch, record.batch_size) == ("lab", "resnet18", 32)


def test_files_that_are_no_results_are_refused_in_one_line(read, tmp_path):
    for content, reason in {
        b"": "no header",
        b"\xff\x00\x80junk": "not UTF-8",
        b"model,images_per_s\0\n": "not text",
        b"model,model,images_per_s\n": "twice",
        b"a,b\n1,2\n": "no column of it is known",
        b"," * 600 + b"\n": "columns",
        b"[" * 100000: "nested too deep",
        b'{"report": {"train": {"throughput": {"value": NaN}}}}': "not a number",
        b'{"report": ' + b"1" * 10000 + b"}": "digits",
        b"{not json": "Expecting",
        b"cos\nsystem\n(S'touch pwned'\ntR.": "known",
    }.items():
        found = read(content)
        assert found.records == []
        [problem] = found.problems
        assert problem.line is None
        assert reason in problem.reason
        assert "\n" not in str(problem)
    assert not (tmp_path / "pwned").exists()


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


def iterations(header, times=("0.5", "0.25", "0.25"), first=0):
    rows = [f"{number},{time},7.1" for number, time in enumerate(times, first)]
    return "\n".join([header, *rows]) + "\n"


NAME = "cpu_resnet18_fp32_bs8.csv"


@pytest.mark.parametrize(
    ("header", "unit", "factor"),
    [
        ("iteration,batch_time,loss", None, 1),
        ("batch,time_sec,loss", None, 1),
        ("step,batch_time_ms,loss", None, 1e-3),
        ("iteration,time,loss", "us", 1e-6),
        ("iteration,batch_time,loss", "ms", 1e-3),
    ],
)
def test_a_time_of_an_iteration_has_a_unit_by_name_or_by_the_user(read, header, unit, factor):
    found = read(iterations(header), NAME, **({"unit": unit} if unit else {}))
    assert found.problems == []
    [record] = found.records
    assert record.iteration_times_s == pytest.approx([each * factor for each in (0.5, 0.25, 0.25)])


def test_rows_that_count_are_not_runs(read):
    for header, reason in {
        "iteration,time,images_per_s": "'time' names no unit: add --set unit=s, ms or us",
        "step,elapsed,img_per_sec": "call it iteration_time_s",
        "batch,images_per_s,loss": "call the counter repeat if rows are runs",
    }.items():
        for first in (0, 1):
            found = read(iterations(header, first=first), NAME)
            assert found.records == []
            assert reason in found.problems[0].reason
    ledger = "repeat,images_per_s,model\n0,5,a\n1,6,a\n2,5,a\n"
    assert len(read(ledger).records) == 3


def test_how_many_iterations_a_row_of_a_ledger_had_is_no_count_of_rows(read):
    ledger = "model,batch_size,iters,train_time_s,images_per_s\n" + "".join(
        f"resnet18,{batch},100,{time_s},9\n" for batch, time_s in ((8, 2), (16, 3), (32, 5))
    )
    assert [record.batch_size for record in read(ledger).records] == [8, 16, 32]


def test_a_clock_is_not_the_time_of_an_iteration(read):
    times = [f"{0.5 * n:.1f}" for n in range(1, 12)]
    found = read(iterations("iteration,time_s,loss", times), NAME)
    assert "grows from row to row" in found.problems[0].reason


def test_a_new_epoch_counts_from_its_beginning(read):
    rows = "epoch,iteration,batch_time\n0,0,0.5\n0,1,0.5\n1,0,0.25\n1,1,0.25\n"
    [record] = read(rows, NAME).records
    assert len(record.iteration_times_s) == 4
    [record] = read(rows, NAME, warmup_iters="3").records
    assert record.iteration_times_s == (0.25,)
    assert "follows 1" in read(rows.replace("1,0,", "3,0,"), NAME).problems[0].reason
    without_unit = rows.replace("batch_time", "time")
    assert "add --set unit=s" in read(without_unit, NAME).problems[0].reason
    assert len(read(without_unit, NAME, unit="s").records) == 1


@pytest.mark.parametrize("steps", [(100, 200, 300), (100, 100, 100)])
def test_the_time_of_an_epoch_is_not_that_of_an_iteration(read, steps):
    rows = "".join(f"{epoch},{step},12.5\n" for epoch, step in enumerate(steps))
    found = read(f"epoch,step,time_s\n{rows}", NAME)
    assert found.records == []
    assert "follows 100" in found.problems[0].reason


def test_zips_in_a_folder_are_searched(tmp_path):
    for name in ("a.zip", "b.zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("old.csv", PUBLISHED.replace("1.74", "1.75" if name < "b" else "1.76"))
    (tmp_path / "b.zip").write_bytes((tmp_path / "b.zip").read_bytes()[:-10])
    (tmp_path / "c.csv").write_text(PUBLISHED)
    found = read_results(tmp_path, campaign="old", given={})
    assert {record.throughput_images_per_s for record in found.records} == {1.75, 1.74, 807.54}
    assert [str(problem) for problem in found.problems] == [
        f"{tmp_path / 'b.zip'}: a damaged zip (File is not a zip file)"
    ]


def test_a_damaged_zip_is_named(tmp_path):
    path = tmp_path / "results.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("old.csv", PUBLISHED)
    whole = path.read_bytes()
    assert len(read_results(path, campaign="old", given={}).records) == 2
    for content, reason in (
        (whole[:-10], "a damaged zip"),
        (whole.replace(b"old.csv", b"\xff\xfe.csv", 1), "damaged"),
        (whole[:50] + b"garbage" + whole[57:], "damaged or encrypted"),
    ):
        path.write_bytes(content)
        found = read_results(path, campaign="old", given={})
        assert found.records == []
        assert reason in found.problems[0].reason
        assert "\n" not in str(found.problems[0])
