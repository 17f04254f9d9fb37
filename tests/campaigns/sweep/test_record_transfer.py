"""A record's way home from a node, and what is refused on it."""

import io
import zipfile

import pytest
import samples
from refusals import refusal

from bench.errors import UserError
from bench.records.folders import RecordFolder, read_records
from campaigns.sweep.ray.record_transfer import ArchiveError, pack, unpack

RECORD_ID = "20261120T100000Z-00000001"


@pytest.fixture
def folder(tmp_path):
    record = samples.run_record(record_id=RECORD_ID)
    folder = RecordFolder.create(tmp_path / "node", RECORD_ID)
    folder.write(folder.config, record.config)
    folder.journal.write_text("{}\n")
    folder.close(record)
    return folder


def parcel(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def names(folder):
    return sorted(path.name for path in folder.path.iterdir())


def test_a_parcel_becomes_the_same_folder_without_what_concerns_one_machine(folder, tmp_path):
    for name in ("mlflow_run", "owners.json", ".reserve"):
        (folder.path / name).write_text("{}")
    arrived, record = unpack(pack(folder), tmp_path / "home")
    assert arrived.path == tmp_path / "home" / RECORD_ID
    assert record == folder.read_record()
    assert names(arrived) == ["config.json", "journal.jsonl", "record.json"]
    assert [path.name for path in (tmp_path / "home").iterdir()] == [RECORD_ID]


def test_what_arrived_before_stays_as_it_is(folder, tmp_path):
    first, _ = unpack(pack(folder), tmp_path / "home")
    first.project_run.write_text("{}")
    unpack(pack(folder), tmp_path / "home")
    assert first.project_run.is_file()


def test_what_a_killed_driver_left_half_unpacked_is_replaced(folder, tmp_path):
    half = tmp_path / "home" / ".arriving" / RECORD_ID
    half.mkdir(parents=True)
    (half / "config.json").write_text("{")
    assert read_records(tmp_path / "home") == []
    unpack(pack(folder), tmp_path / "home")
    assert len(read_records(tmp_path / "home")) == 1


@pytest.mark.parametrize(
    "name",
    [
        f"{RECORD_ID}/../../outside.json",
        "../outside.json",
        "/outside.json",
        f"{RECORD_ID}/sub/outside.json",
        f"{RECORD_ID}/.hidden.json",
        f"{RECORD_ID}/owners.json",
        f"{RECORD_ID}/mlflow_run",
        f"{RECORD_ID}\\..\\outside.json",
        "another/record.json",
    ],
)
def test_names_that_are_no_files_of_one_record_are_refused(folder, tmp_path, name):
    files = {f"{RECORD_ID}/record.json": folder.record.read_text(), name: "{}"}
    home = tmp_path / "home"
    with pytest.raises(ArchiveError):
        unpack(parcel(files), home)
    assert not home.exists()
    assert not (tmp_path / "outside.json").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"no zip",
        parcel({}),
        parcel({"../../etc/record.json": "{}"}),
        parcel({f"{RECORD_ID}/record.json": "{"}),
        parcel({f"{RECORD_ID}/config.json": "{}"}),
        parcel({f"{RECORD_ID}/record.json": samples.ceilings_record().model_dump_json()}),
        parcel({"20261120T100000Z-0000ffff/record.json": samples.run_record().model_dump_json()}),
    ],
)
def test_anything_but_a_whole_measurement_is_refused(content, tmp_path):
    assert refusal(unpack, content, tmp_path / "home", error=ArchiveError)
    assert list((tmp_path / "home").glob("*")) == []


@pytest.mark.slow
def test_a_bomb_is_refused_unopened(tmp_path):
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(f"{RECORD_ID}/record.json", "w") as file,
    ):
        for _ in range(257):
            file.write(bytes(2**20))
    with pytest.raises(ArchiveError, match="too large"):
        unpack(buffer.getvalue(), tmp_path / "home")


def test_a_home_that_cannot_be_written_is_the_users_to_mend(folder, tmp_path):
    (tmp_path / "home").write_text("a file")
    with pytest.raises(UserError, match="the node keeps what it measured"):
        unpack(pack(folder), tmp_path / "home")
