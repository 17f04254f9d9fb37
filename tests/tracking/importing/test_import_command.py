"""`mlproject import`: records and tracked runs, marked, once, whatever else happens.

Models that torchvision does not have are not counted, which takes no torch.
"""

import json
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
from servers import free_port

from analysis import pull_iterations
from bench.errors import UserError
from bench.records import StepSpec
from bench.records.folders import read_records, record_folders
from mlproject import main
from tracking import schema
from tracking.connection import Server
from tracking.tracked_runs import download_record, search_runs

pytestmark = pytest.mark.usefixtures("unpainted")

TABLE = (
    "source,env,device,backend,arch,precision,batch_size,repeats,images_per_s,odd col/umn\n"
    "report-a,mac_cpu,Apple M3 Max CPU,cpu,lanet,fp32,16,3,1.74,x\n"
    "report-a,gcp_l4,NVIDIA L4,cuda,dinet,amp,256,7,382.52,<b>y</b>\n"
)
RUN = "iteration,iteration_time_s,env,model,precision,batch_size,repeat\n" + "".join(
    f"{number},{time_s},cpu,resnet_own,fp32,8,2\n"
    for number, time_s in enumerate((0.5, 0.25, 0.25))
)


@pytest.fixture
def place(tmp_path, monkeypatch, embedded):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text(TABLE)
    (tmp_path / "run.csv").write_text(RUN)
    return tmp_path


def imported():
    return {run.name: run for run in search_runs(f"tags.`{schema.IMPORTED}` = 'true'")}


@pytest.mark.slow
def test_results_become_runs_under_our_names_marked_with_their_source(place):
    assert main(["import", "table.csv", "run.csv"]) == 0
    runs = imported()
    l4 = runs["gcp_l4_dinet_amp_bs256"]
    assert l4.status == "FINISHED"
    assert l4.metrics == {"throughput_images_per_s": 382.52}
    assert l4.params == {
        "arch": "dinet",
        "backend": "cuda",
        "precision": "amp",
        "batch_size": "256",
        "env": "gcp_l4",
        "campaign": "imported",
        "repeats": "7",
    }
    assert l4.tags[schema.KIND] == "imported"
    assert l4.tags[schema.SOURCE_FILE] == "table.csv"
    assert l4.tags[schema.SOURCE_LINE] == "3"
    assert len(l4.tags[schema.SOURCE_SHA256]) == 64
    assert l4.tags[schema.ENV] == "gcp_l4"
    assert l4.tags[schema.DEVICE] == "NVIDIA L4"
    assert l4.tags["imported.source"] == "report-a"
    assert l4.tags["imported.odd_col_umn"] == "<b>y</b>"
    own = runs["cpu_resnet_own_fp32_bs8_run2"]
    history = Server().client.get_metric_history(own.run_id, schema.ITERATION_TIME_MS)
    assert [point.value for point in history] == [500.0, 250.0, 250.0]
    assert own.metrics["throughput_images_per_s"] == pytest.approx(24.0)


def test_a_bad_row_is_named_and_the_good_ones_go_in_once(place, capsys):
    (place / "table.csv").write_text(TABLE + "report-a,x,y,cuda,dinet,fp32,64,3,nan,z\n")
    assert main(["import", "table.csv"]) == 1
    said = capsys.readouterr()
    assert "table.csv:4: images_per_s: 'nan' is not a number" in said.err
    assert "2 imported, 1 not taken" in said.out
    before = imported()
    assert len(before) == 2
    (place / "table.csv").rename(place / "moved.csv")
    assert main(["import", "moved.csv"]) == 1
    assert "2 known already, 1 not taken" in capsys.readouterr().out
    assert imported() == before


@pytest.mark.slow
def test_commands_that_keep_data_answer_programs_in_json(place, capsys):
    def answer(*words, code=0):
        assert main([*words, "--format", "json"]) == code
        return json.loads(capsys.readouterr().out)

    (place / "table.csv").write_text(TABLE + "report-a,x,y,cuda,dinet,fp32,64,3,nan,z\n")
    [file] = answer("import", "table.csv", code=1)
    assert (file["file"], file["imported"], file["not_taken"]) == ("table.csv", 2, 1)
    assert file["problems"] == ["table.csv:4: images_per_s: 'nan' is not a number"]
    assert sorted(file["records"]) == sorted(path.name for path in Path("records").iterdir())
    synced = answer("sync")
    assert (synced["uploaded"], synced["there_already"], synced["failed"]) == (0, 2, 0)
    rows = answer("pull")
    assert sorted(row["throughput_images_per_s"] for row in rows) == [1.74, 382.52]
    assert {row["step_gflop"] for row in rows if "step_gflop" in row} <= {None}
    kept = answer("baseline", "set", "first", "campaign=imported")
    assert [one["name"] for one in answer("baseline", "list")] == [kept["name"]] == ["first"]
    assert answer("baseline", "remove", "first")["name"] == "first"
    size = ["--classes", "2", "--images-per-class", "1", "--out", "pictures"]
    made = answer("dataset", "generate", *size)
    assert (made["classes"], made["images"]) == (2, 2)
    assert answer("dataset", "check", "pictures") == made
    assert main(["pull", "--out", "runs.csv", "--format", "json"]) == 2


def test_a_server_that_is_away_costs_nothing(place, monkeypatch, capsys):
    with monkeypatch.context() as away:
        away.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
        away.setattr("tracking.connection._FIRST_PAUSE_S", 5.0)  # as long as its patience
        assert main(["import", "table.csv"]) == 3
    assert "safe on disk" in capsys.readouterr().err
    assert main(["sync"]) == 0
    assert len(imported()) == 2


def test_an_imported_run_is_no_measurement_of_ours(place, capsys):
    assert main(["import", "table.csv"]) == 0
    assert read_records(place / "records") == []
    run = next(iter(imported().values()))
    with pytest.raises(UserError, match=r"imported from table.csv"):
        download_record(run.run_id)
    assert pull_iterations([run.run_id]).empty
    capsys.readouterr()
    assert main(["pull"]) == 0
    assert "382.52" in capsys.readouterr().out


COUNTED = (
    "env,device,arch,precision,batch_size,images_per_s,attained_gflops\n"
    "gcp_l4,NVIDIA L4,resnet18,fp32,8,400,1420\n"  # the forward pass alone
    "gcp_l4,NVIDIA L4,resnet18,fp32,8,600,6389\n"
    "old,Voodoo 2,resnet18,fp32,8,4,\n"
)


@pytest.mark.slow
def test_work_is_counted_once_and_places_results_with_and_without_a_server(place, capsys):
    (place / "table.csv").write_text(COUNTED)
    assert main(["import", "table.csv"]) == 0
    said = capsys.readouterr().out
    assert "2 under the roof of NVIDIA L4 (datasheet), by modelled work" in said
    assert "1 not placed: no ceiling: the datasheet table does not hold 'Voodoo 2'" in said
    assert "table.csv:2: gcp_l4 resnet18 fp32 batch 8: note: its file states 1420" in said
    assert "are 4259: the stated figure fits the forward pass alone" in said
    assert "table.csv:3" not in said
    (placed,) = search_runs("metrics.throughput_images_per_s = 400")
    assert placed.metrics["step_gflop"] == pytest.approx(8 * 10.648412160)
    assert placed.metrics["attained_gflops"] == pytest.approx(400 * 10.648412160)
    assert placed.metrics["claimed_gflops"] == 1420
    assert schema.VERDICT not in placed.tags  # no one judged the measurement
    assert "note: its file states 1420" in placed.tags[schema.FINDINGS]
    assert main(["report", "--records", "records", "--out", "from-disk"]) == 0
    assert "3 imported runs, 2 of them placed by modelled work" in capsys.readouterr().out
    assert main(["report", "--no-log", "--out", "from-server", "--format", "json"]) == 0
    tracked = json.loads(capsys.readouterr().out)["imported"]
    assert {run["bound"] for run in tracked} == {"not known", "memory", None}  # in no order
    for folder in ("from-disk", "from-server"):
        page = (place / folder / "report.md").read_text("utf-8")
        assert "| imported, modelled |" in page
        assert "its file states 1420" in page
        assert (place / folder / "figures" / "roofline.png").is_file()


def test_a_result_that_is_known_is_not_counted_again(place, monkeypatch, capsys):
    command = import_module("commands.import")
    monkeypatch.setattr(command, "_count", lambda step: "not in this test")
    (place / "table.csv").write_text(COUNTED)
    assert main(["import", "table.csv", "--no-track"]) == 0
    monkeypatch.setattr(command, "_count", lambda step: pytest.fail(f"counts {step}"))
    assert main(["import", "table.csv", "--no-track"]) == 0
    assert "table.csv: 3 known already" in capsys.readouterr().out


@pytest.mark.slow
def test_many_new_steps_are_counted_by_several_processes_alike(monkeypatch, tmp_path):
    command = import_module("commands.import")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(command, "usable_cores", lambda: 2)
    monkeypatch.setattr(command, "_EACH", 2)
    sizes = {StepSpec("alexnet", size, "fp32") for size in (1, 2, 3)}
    wrong = StepSpec("alexnet", 2, "fp32", image_size=8)
    found = command._counts({*sizes, wrong})
    assert {step: found[step].step_flops / step.batch_size for step in sizes} == dict.fromkeys(
        sizes, found[StepSpec("alexnet", 1, "fp32")].step_flops
    )
    assert "cannot run" in found[wrong]
    monkeypatch.setattr(command, "ProcessPoolExecutor", None)  # they are known now
    assert command._counts(sizes) == {step: found[step] for step in sizes}


def test_results_are_imported_without_torch_too(place, monkeypatch, capsys):
    (place / "table.csv").write_text(COUNTED)
    monkeypatch.setitem(sys.modules, "bench.cost", None)
    assert main(["import", "table.csv", "--no-track"]) == 0
    said = capsys.readouterr().out
    assert "table.csv: 3 imported" in said
    assert "3 not placed: no complexity: PyTorch cannot be used here" in said


def test_hostile_text_stays_text_and_facts_of_the_user_fill_what_files_leave_open(place):
    (place / "evil.csv").write_text(
        "env,batch_size,images_per_s,=cmd|' /C calc'!A0,../../x\n"
        "../../../etc/passwd,8,100,=1+1,${jndi:ldap://x}\n"
    )
    assert main(["import", "evil.csv", "--set", "arch=dinet", "--set", "env=lab"]) == 0
    [run] = imported().values()
    assert run.name == "etc-passwd_dinet_unknown_bs8"  # facts of the user fill gaps alone
    assert run.params["env"] == "etc-passwd"
    folders = {path.name for path in place.iterdir() if path.is_dir()}
    assert folders <= {"cache", "mlruns", "records"}
    [folder] = record_folders(place / "records")
    assert folder.path.parent == place / "records"
    assert json.loads(folder.record.read_text())["extra"]["../../x"] == "${jndi:ldap://x}"


def test_the_plug_in_of_the_page_is_loaded_from_its_file_or_its_distribution(
    place, monkeypatch, capsys
):
    page = Path(__file__).resolve().parents[3] / "docs" / "import.md"
    [plug_in] = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    (place / "mybench_reader.py").write_text(plug_in)
    (place / "log.txt").write_text("mybench\nlanet 8 1.5e2\ndinet 8 fast\n")
    assert main(["import", "log.txt"]) == 1
    assert "log.txt: no column of it is known" in capsys.readouterr().err
    assert main(["import", "--reader", "mybench_reader.py", "log.txt"]) == 1
    assert capsys.readouterr().err == "mlproject: log.txt:3: 'fast' is not a number\n"
    [run] = imported().values()
    assert run.metrics == {"throughput_images_per_s": 150.0}
    assert (run.tags[schema.SOURCE_FORMAT], run.tags[schema.SOURCE_LINE]) == ("mybench", "2")
    about = place / "mybench-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: mybench\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[mlproject.readers]\nmybench = mybench_reader\n")
    monkeypatch.syspath_prepend(place)
    assert main(["import", "log.txt"]) == 1
    assert "log.txt: 1 known already, 1 not taken" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere.py", "No such file"),
        ("nowhere.reader", "No module named 'nowhere'"),
        ("broken.py", "invalid syntax"),
        ("json:loads", "has no functions recognises and read"),
    ],
)
def test_a_plug_in_that_cannot_be_loaded_is_a_wrong_value(place, capsys, name, reason):
    (place / "broken.py").write_text("def")
    assert main(["import", "--reader", name, "table.csv"]) == 2
    assert f"reader={name!r}: " in (said := capsys.readouterr().err)
    assert reason in said
