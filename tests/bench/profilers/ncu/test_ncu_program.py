import shutil
from pathlib import Path

import pytest
from scripted_ncu import ScriptedNcu

from bench.machine.probes import UnknownFactError
from bench.profilers.ncu.metrics import MEMBERS, metrics_for_chip
from bench.profilers.ncu.program import RefusalError, find_ncu

REAL = shutil.which("ncu")


def refusal(root, environ=None):
    with pytest.raises(RefusalError) as caught:
        find_ncu(root, environ or {})
    return caught.value


def test_no_ncu_anywhere(folder_of_ncu, tree):
    refused = refusal(tree({}))
    assert refused.what == "ncu is not found: no kernel counters"
    assert "install Nsight Compute" in refused.remedy
    assert "sudo" not in refused.remedy
    assert "sudo -E env" in refusal(tree({}), {"SUDO_USER": "ada"}).remedy


def test_of_several_off_path_the_newest_is_taken(ncu, tree, monkeypatch):
    root = tree({})
    for toolkit in ("cuda-9.2", "cuda-13.0", "cuda"):
        folder = root / "usr/local" / toolkit / "bin"
        folder.mkdir(parents=True)
        ScriptedNcu(folder)
    monkeypatch.setenv("PATH", str(root))
    newest = str(root / "usr/local/cuda-13.0/bin/ncu")
    assert find_ncu(root).path == newest
    assert find_ncu(root).command(root / "out", ["dram__bytes.sum"])[0] == newest


def test_an_ncu_without_tensor_metrics_is_refused(ncu, tree):
    ncu.script(version="2023.2.0.0")
    assert find_ncu(tree({})).version == (2023, 2, 0)
    ncu.script(version="2023.1.1.0")
    refused = refusal(tree({}))
    assert refused.what.startswith("ncu 2023.1.1 at ")
    assert "2023.2" in refused.remedy


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo 'error while loading shared libraries' >&2; exit 127", "error while loading"),
        ("echo hello", "tells no version"),
    ],
)
def test_a_broken_ncu(ncu, tree, script, complaint):
    ncu.program.write_text(f"#!/bin/sh\n{script}\n")
    refused = refusal(tree({}))
    assert complaint in refused.what
    assert refused.remedy == "reinstall Nsight Compute"


def test_chips_and_metrics_as_ncu_lists_them(ncu, tree):
    found = find_ncu(tree({}))
    assert found.chips() == {"tu102", "tu116", "ad102", "gh100"}
    of_hopper = found.metrics("--chips", "gh100")
    assert {"dram__bytes", "sm__ops_path_tensor_src_fp16"} < of_hopper
    assert not any(" " in name or name == "Metric" for name in of_hopper)
    assert "sm__ops_path_tensor_src_fp16" not in found.metrics("--chips", "ad102")
    with pytest.raises(UnknownFactError, match="Invalid chip zz9"):
        found.metrics("--chips", "zz9")


def test_the_command_line_that_counts(ncu, tree):
    found = find_ncu(tree({}))
    command = found.command(Path("/records/a%p/ncu/hardware"), ["dram__bytes.sum", "b.sum"])
    assert " ".join(command) == (
        f"{ncu.program} --config-file off --profile-from-start off --replay-mode kernel "
        "--clock-control none --metrics dram__bytes.sum,b.sum --force-overwrite "
        "--export /records/a%%p/ncu/hardware"
    )


def test_a_report_that_ncu_cannot_read(ncu, tree, tmp_path):
    report = tmp_path / "junk.ncu-rep"
    report.write_text("junk")
    with pytest.raises(RefusalError, match="Failed to load report file"):
        find_ncu(tree({})).to_csv(report, tmp_path / "junk.csv", ["dram__bytes.sum"])
    assert not (tmp_path / "junk.csv").exists()


@pytest.mark.skipif(REAL is None, reason="no ncu on PATH")
@pytest.mark.parametrize(("chip", "member"), MEMBERS.items())
def test_the_real_ncu_has_every_metric_of_the_table(chip, member):
    ncu = find_ncu()
    if member not in ncu.chips():
        pytest.skip(f"{ncu} is older than {member}")
    known = ncu.metrics("--chips", member)
    wanted = {name.rpartition(".")[0] for name in metrics_for_chip(chip)}
    assert wanted - known == set()
