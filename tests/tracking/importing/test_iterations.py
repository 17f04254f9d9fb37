"""Tables with a row per iteration."""

import pytest

NAME = "cpu_resnet18_fp32_bs8.csv"


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
    stated = (record.env, record.arch, record.precision, record.batch_size, record.repeat)
    assert stated == facts
    assert record.iteration_times_s == (0.5, 0.25, 0.25)
    assert record.throughput_images_per_s == pytest.approx(3 * record.batch_size)
    assert record.metrics["iteration_time_ms_p50"] == 250.0
    assert record.metrics["window_s"] == 1.0
    assert record.source_line is None


def test_warm_up_rows_are_left_out_and_columns_that_never_change_are_facts(read):
    found = read(
        "iter,phase,step_time_ms,model,batch_size,run\n0,warmup,900,resnet18,8,x\n"
        "0,measure,100,resnet18,8,x\n1,measure,300,resnet18,8,x\n"
    )
    [record] = found.records
    assert record.iteration_times_s == (0.1, 0.3)
    assert (record.arch, record.batch_size) == ("resnet18", 8)
    assert record.extra["label"] == "x"


def iterations(header, times=("0.5", "0.25", "0.25"), first=0):
    rows = [f"{number},{time},7.1" for number, time in enumerate(times, first)]
    return "\n".join([header, *rows]) + "\n"


@pytest.mark.parametrize(
    ("header", "factor"),
    [
        ("iteration,batch_time,loss", 1),
        ("batch,time_sec,loss", 1),
        ("step,batch_time_ms,loss", 1e-3),
        ("iteration,latency_us,loss", 1e-6),
    ],
)
def test_a_time_of_an_iteration_has_a_unit_by_its_name(read, header, factor):
    [record] = read(iterations(header), NAME).records
    assert record.iteration_times_s == pytest.approx([each * factor for each in (0.5, 0.25, 0.25)])


def test_the_user_names_the_counter_and_the_time(read):
    named = {"k": "iteration", "forward_backward": "iteration_time_ms"}
    [record] = read(iterations("k,forward+backward,loss"), NAME, named).records
    assert record.iteration_times_s == pytest.approx((0.5e-3, 0.25e-3, 0.25e-3))


CLOCK = iterations("iteration,time_s,loss", [f"{0.5 * n:.1f}" for n in range(1, 12)])


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (iterations("iteration,time,images_per_s"), None, "--column iteration_time_ms=HEADING"),
        (
            iterations("step,elapsed,img_per_sec", first=1),
            None,
            "--column iteration_time_ms=HEADING",
        ),
        (
            iterations("batch,images_per_s,loss"),
            None,
            "say what it is, as --column batch_size=batch",
        ),
        (CLOCK, None, "grows from row to row"),
        # a run with a hole in it is no run
        (
            "iteration,iteration_time_s\n0,0.5\n1,0.5\n3,0.5\n",
            None,
            "line 4: iteration 3 follows 1",
        ),
        ("iteration,iteration_time_s\n0,0.5\n1,nan\n", 3, "not a number"),
        ("iteration,iteration_time_s\n0,0.5\n1\n", 3, "1 cells under 2 columns"),
        # the time of an epoch is not that of an iteration
        ("epoch,step,time_s\n0,100,12.5\n1,200,12.5\n2,300,12.5\n", None, "follows 100"),
        ("epoch,step,time_s\n0,100,12.5\n1,100,12.5\n2,100,12.5\n", None, "follows 100"),
    ],
)
def test_rows_that_are_not_the_iterations_of_a_run_are_refused(read, text, line, reason):
    found = read(text, NAME)
    assert found.records == []
    assert found.problems[0].line == line
    assert reason in found.problems[0].reason


def test_times_that_also_fall_are_no_clock_and_a_ledger_that_counts_is_no_run(read):
    times = [f"{0.5 + 0.01 * (n % 3):.2f}" for n in range(11)]
    assert len(read(iterations("iteration,time_s,loss", times), NAME).records) == 1
    assert len(read("repeat,images_per_s,model\n0,5,a\n1,6,a\n2,5,a\n").records) == 3
    assert len(read("step,images_per_s,model\n0,5,a\n0,6,a\n0,5,b\n").records) == 3
    ledger = "model,batch_size,iters,train_time_s,images_per_s\n" + "".join(
        f"resnet18,{batch},100,{time_s},9\n" for batch, time_s in ((8, 2), (16, 3), (32, 5))
    )
    assert [record.batch_size for record in read(ledger).records] == [8, 16, 32]


def test_a_new_epoch_counts_from_its_beginning(read):
    rows = "epoch,iteration,batch_time\n0,0,0.5\n0,1,0.5\n1,0,0.25\n1,1,0.25\n"
    [record] = read(rows, NAME).records
    assert len(record.iteration_times_s) == 4
    [record] = read(rows, NAME, warmup_iters="3").records
    assert record.iteration_times_s == (0.25,)
    assert "those of the warm-up" in read(rows, NAME, warmup_iters="4").problems[0].reason
    assert "follows 1" in read(rows.replace("1,0,", "3,0,"), NAME).problems[0].reason
    without_unit = rows.replace("batch_time", "time")
    assert "no column is known as the time of one" in read(without_unit, NAME).problems[0].reason
    assert len(read(without_unit, NAME, {"time": "iteration_time_s"}).records) == 1


def test_times_of_a_model_of_text_give_no_rate_of_images(read):
    [record] = read("iteration,time_ms,model,batch_size\n0,500,gpt2,8\n1,500,gpt2,8\n").records
    assert record.throughput_images_per_s is None
    assert record.iteration_times_s == (0.5, 0.5)
    assert "text" in record.missing["throughput_images_per_s"]
