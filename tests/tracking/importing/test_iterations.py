"""Tables with a row per iteration."""

import pytest

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
