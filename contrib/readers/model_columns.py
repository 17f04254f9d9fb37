"""A reader of tables with a column per model, of two labs, known by their files' names.

Lambda's `pytorch-train-throughput-*.csv` have a row per machine, in images/s. Those of lamikr's
pytorch-gpu-benchmark, `*_model_train_benchmark.csv`, have a row per iteration: milliseconds of a
step without an optimizer, behind its own warm-up (`train` in its `benchmark_models.py`). The batch
of all its GPUs is in the `config.json` beside them.
"""

import json
import re
from collections.abc import Iterator, Mapping
from math import fsum
from pathlib import Path
from typing import Any

from bench.config.model_names import TORCHVISION_MODELS
from bench.records.metrics import iteration_statistics_ms
from contrib.readers import gpu_in_name, near
from tracking.importing import (
    NotTaken,
    OtherFileError,
    Result,
    count,
    number,
    parse_table,
)

_THROUGHPUTS = "train-throughput"
_TIMES = re.compile(
    r"(?P<device>.+?)_{1,2}(?:(?P<gpus>\d{1,2})X_{1,2})?(?P<precision>half|float|double)"
    r"_model_(?P<work>train|inference)_benchmark"
)
_PRECISIONS = {"half": "fp16", "float": "fp32", "double": "fp64"}
_NOT_MEASURED = frozenset(("", "-", "0", "0.0", "n/a", "nan"))


def recognises(file: Path, text: str) -> bool:
    """Whether the file's name is one of these."""
    return _THROUGHPUTS in file.stem or _TIMES.fullmatch(file.stem) is not None


def read(file: Path, text: str, given: Mapping[str, str]) -> Iterator[Result | NotTaken]:
    """Yield a result for each model of a machine, or for the iterations of each model."""
    if (name := _TIMES.fullmatch(file.stem)) is None:
        yield from _throughputs(text)
    elif name["work"] == "inference":
        raise OtherFileError("times of inference")
    else:
        yield from _times(file, text, name)


def _throughputs(text: str) -> Iterator[Result | NotTaken]:
    """Cells that are empty or 0, and columns of other models, are left out."""
    table = parse_table(f"env{text}" if text.startswith(",") else text)
    models = [column for column in table.columns if column in TORCHVISION_MODELS]
    yield from table.problems
    for line, cells in table.rows:
        names = {"env": cells.get("env"), "device": cells.get("name_gpu")}
        gpu, gpus = gpu_in_name(names["env"] or names["device"] or "")
        for model in models:
            if cells[model].lower() in _NOT_MEASURED:
                continue
            try:
                facts: dict[str, Any] = {"throughput_images_per_s": number(cells[model])}
                facts["devices"] = count(cells["num_gpu"]) if cells.get("num_gpu") else gpus
            except ValueError as error:
                yield NotTaken(f"{model}: {error}", line)
                continue
            facts |= {"arch": model, "env": names["env"], "device": names["device"] or gpu}
            why = {"iteration_times_s": "the table has one number per model"}
            yield Result("wide-table", facts, line, missing=why)


def _times(file: Path, text: str, name: re.Match[str]) -> Iterator[Result | NotTaken]:
    table = parse_table(text)
    if table.problems or not table.rows:
        yield from table.problems or [NotTaken("no iteration")]
        return
    for model in filter(None, table.columns):
        times_s = []
        try:
            for row in table.rows:
                times_s.append(number(row.cells[model]) / 1e3)
        except ValueError as error:
            yield NotTaken(f"{model}: {error}", row.line)
            continue
        facts: dict[str, Any] = iteration_statistics_ms(times_s) | {"window_s": fsum(times_s)}
        facts |= {"iterations": len(times_s), "arch": model, "image_size": 224}
        facts |= {"device": name["device"].strip("_").replace("_", " ")}
        facts |= {"devices": int(name["gpus"] or 0) or None, "backend": "cuda"}  # ROCm, too
        facts |= {"env": file.parent.name, "precision": _PRECISIONS[name["precision"]]}
        extra = {"step": "forward, loss and backward; no optimizer"}
        if name["precision"] == "float":
            extra["precision_note"] = "PyTorch may compute fp32 convolutions in TF32 from Ampere on"
        missing = {"throughput_images_per_s": "no batch size is known"}
        missing["batch_size"] = _take_config(facts, near(file, "config.json"))
        params = {"step": "forward and backward", "data": "synthetic"}
        result = Result("wide-iterations", facts, None, extra, missing, params)
        result.iteration_times_s = tuple(times_s)
        yield result


def _take_config(facts: dict[str, Any], text: str | None) -> str:
    """Take the batch and the number of GPUs; return why there is no batch."""
    beside = "config.json beside the file"
    if text is None:
        return "no config.json is beside the file"
    config = json.loads(text)
    if not isinstance(config, dict):
        return f"{beside} holds no object"
    if count(str(config.get("NUM_TEST", 0))) != facts["iterations"]:
        return f"{beside} is of another number of iterations"
    gpus = count(str(config.get("GPU_COUNT", config.get("NUM_GPU", 1))))
    if facts["devices"] not in (None, gpus) or not gpus:
        return f"{beside} is of another number of GPUs"
    facts |= {"devices": gpus, "warmup_iters": count(str(config.get("WARM_UP", 0)))}
    batch = count(str(config.get("BATCH_SIZE", 0)))
    if not batch or batch % gpus:
        return f"a batch of {batch} is not shared evenly by {gpus} GPUs"
    facts["batch_size"] = batch // gpus
    return ""
