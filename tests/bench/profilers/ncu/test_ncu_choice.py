import pytest
from scripted_ncu import CHIPS

from bench.profilers.ncu.metrics import CHIPS as FAMILIES
from bench.profilers.ncu.metrics import MEMBERS, metrics_for_chip
from bench.profilers.ncu.program import RefusalError, choose_metrics, find_ncu


def choose(capability, root):
    return choose_metrics(find_ncu(root), capability)


def test_a_known_chip_gets_its_table(ncu, tree):
    choice = choose((9, 0), tree({}))
    assert choice.metrics == metrics_for_chip("gh100")
    assert (choice.chip, choice.left_out) == ("gh100", {})


def test_without_a_driver_ncu_is_asked_for_a_chip_of_the_family(ncu, tree):
    ncu.script(device=None)
    choice = choose((8, 9), tree({}))
    assert choice.metrics == metrics_for_chip("ad10x")
    assert ["--query-metrics", "--chips", "ad102"] in ncu.asked


def test_the_device_at_hand_may_lack_what_its_family_has(ncu, tree):
    ncu.script(device="tu116")  # 7.5 as tu102, without tensor cores
    choice = choose((7, 5), tree({}))
    assert not any("tensor" in name for name in choice.metrics)
    assert choice.left_out == {
        f"sm__ops_path_tensor_{kind}.sum": "ncu 2024.1.1 has none here"
        for kind in ("src_fp16_bf16_tf32_dst_fp32", "src_fp16_dst_fp16")
    }


@pytest.mark.parametrize("visible", ["1,0", "GPU-8f6a"])
def test_ncus_first_device_may_be_another_than_the_one_that_cuda_sees(
    ncu, tree, monkeypatch, visible
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    ncu.script(device="tu116")
    choice = choose((9, 0), tree({}))
    assert choice.metrics == metrics_for_chip("gh100")


def test_an_unknown_chip_gets_whatever_exists_and_nothing_twice(ncu, tree):
    parts = [
        "sm__ops_path_tensor_src_fp16_dst_fp32",
        "smsp__sass_thread_inst_executed_op_ffma2_pred_on",
    ]
    ncu.script(chips={"gr100": [*CHIPS["gh100"], *parts]}, device="gr100")
    choice = choose((13, 0), tree({}))
    assert choice.chip is None
    assert set(choice.metrics) == {*metrics_for_chip("gh100"), f"{parts[1]}.sum"}
    assert choice.left_out == {}


def test_an_unknown_chip_that_ncu_does_not_know_is_refused(ncu, tree):
    ncu.script(device=None)
    with pytest.raises(RefusalError, match=r"metrics of compute capability 13.0: see that"):
        choose((13, 0), tree({}))


def test_an_ncu_older_than_the_chip_is_refused(ncu, tree):
    with pytest.raises(RefusalError, match=r"ncu 2024.1.1 is older than .*12.0.*CUDA 12.8"):
        choose((12, 0), tree({}))


@pytest.mark.parametrize("script", ["exit 1", "echo nothing", "echo a__b Counter"])
def test_where_ncu_lists_nothing_of_use_the_table_stands(ncu, tree, script):
    found = find_ncu(tree({}))
    ncu.program.write_text(f"#!/bin/sh\ncase $1 in --query*) {script};; *) exit 1;; esac\n")
    choice = choose_metrics(found, (9, 0))
    assert choice.metrics == metrics_for_chip("gh100")


def test_every_family_of_the_table_has_a_member_that_ncu_can_be_asked_for():
    assert set(MEMBERS) == set(FAMILIES)


def test_a_chip_without_a_total_of_dram_bytes_counts_reads_and_writes(ncu, tree):
    halves = ["dram__bytes_op_read", "dram__bytes_op_write"]
    metrics = [name for name in CHIPS["gh100"] if name != "dram__bytes"]
    ncu.script(chips={"gb10b": [*metrics, *halves]}, device="gb10b")
    hardware = choose((12, 1), tree({})).metrics
    assert [name for name in hardware if "dram" in name] == [f"{half}.sum" for half in halves]
