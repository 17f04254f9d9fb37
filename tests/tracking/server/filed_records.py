"""Record folders as `mlproject run` and `sweep` leave them, from samples."""

from bench.launcher.exports import write_exports
from bench.records.folders import RecordFolder


def filed(records, record):
    """Write `record` to a folder of its own under `records`; return the folder and the record."""
    folder = RecordFolder.create(records)
    record = type(record).model_validate({**record.model_dump(), "record_id": folder.record_id})
    folder.write(folder.record, record)
    if record.kind == "measurement":
        write_exports(folder, record)
    return folder, record
