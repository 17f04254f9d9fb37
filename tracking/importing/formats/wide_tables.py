"""Tables with a column per model: a row per machine, or a row per iteration.

Times in `*_model_train_benchmark.csv` of lamikr/pytorch-gpu-benchmark are milliseconds of a step
without an optimizer, behind its own warm-up (`train` in its `benchmark_models.py`); its
`config.json` has the batch of all GPUs. Of any other table the user states the unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from bench.config.architectures import torchvision_architectures
from bench.errors import UserError
from bench.records.verdict.record_metrics import iteration_statistics_ms
from tracking.importing.facts import BadLine, Facts, OtherWorkError
from tracking.importing.formats.columns import (
    BESIDE,
    MS_FACTORS,
    TEXTS,
    Meaning,
    known_columns,
    plain,
    take_beside,
)
from tracking.importing.formats.machine_names import gpu_in_name, gpus_in_name
from tracking.importing.json_text import parse_json
from tracking.importing.source_files import SourceFile
from tracking.importing.text_table import Row, Table, count, parse_table

_GPU_BENCHMARK = re.compile(
    r"(?P<device>.+?)_{1,2}(?:(?P<gpus>\d{1,2})X_{1,2})?(?P<precision>half|float|double)"
    r"_model_(?P<work>train|inference)_benchmark"
)
_PRECISIONS = {"half": "fp16", "float": "fp32", "double": "fp64"}
_IMAGES_PER_S = "images/s"
#: Columns that Lambda's tables have beside the models.
_BESIDE_MODELS = {"name_gpu": Meaning("device"), "num_gpu": Meaning("devices")}
_NONE_THERE = frozenset(("", "-", "n/a", "na", "none", "null", "0", "0.0"))


def is_wide(file: SourceFile, text: str) -> bool:
    """Whether the text is a table with a column for a model, and none for a result."""
    try:
        table = _table(file, text)
    except UserError:
        return False
    results = {meaning.fact for meaning in known_columns(table, "wide-table").values()}
    has_result = any(fact.startswith(("arch", "throughput", "iteration")) for fact in results)
    return not has_result and any(_is_model(column) for column in table.columns)


def read_wide(file: SourceFile, text: str, given: Mapping[str, str]) -> Iterator[Facts | BadLine]:
    """Yield a run per model of a row, or per model where the rows are iterations.

    Columns that are not named after a model of torchvision are left out, or are facts of the row.
    Raises `OtherWorkError` for times of inference, `ValueError` where the unit is not known.
    """
    table = _table(file, text)
    if all(_is_model(column) for column in table.columns if column):
        yield from _read_iterations(table, file, given)
    elif given.get("unit") == _IMAGES_PER_S:
        for row in table.rows:
            yield from _read_machine(table, row)
    else:
        raise ValueError(
            f"the unit of the columns of models is not stated: add --set unit={_IMAGES_PER_S} "
            "if they are throughputs"
        )


def _table(file: SourceFile, text: str) -> Table:
    """The table; a first column without a name, as pandas writes an index, is the machine's."""
    content = text.lstrip()
    return parse_table(f"env{content}" if content.startswith(",") else content, file.shown)


def _is_model(column: str) -> bool:
    return column in torchvision_architectures()


# A row per machine


def _read_machine(table: Table, row: Row) -> Iterator[Facts | BadLine]:
    if row.problem is not None:
        yield BadLine(row.line, row.problem)
        return
    known = known_columns(table, "wide-table") | {
        column: _BESIDE_MODELS[plain(column)]
        for column in table.columns
        if plain(column) in _BESIDE_MODELS
    }
    for model in filter(_is_model, table.columns):
        cell = row.cells[model]
        if cell.lower() in _NONE_THERE:
            continue
        facts = Facts("wide-table", row.line, texts={"arch": model})
        try:
            facts.numbers["throughput_images_per_s"] = table.number(cell)
        except ValueError as error:
            yield BadLine(row.line, f"{model}: {error}")
            continue
        for column, meaning in known.items():
            if meaning.fact in TEXTS and row.cells[column]:
                facts.texts[meaning.fact] = row.cells[column]
            elif meaning.fact in BESIDE:
                take_beside(facts, meaning, row.cells[column], table)
        label = facts.texts.get("env") or facts.texts.get("device") or ""
        if "device" not in facts.texts and (gpu := gpu_in_name(label)) is not None:
            facts.texts["device"] = gpu
        facts.devices = facts.devices or gpus_in_name(label)
        facts.missing["iteration_times_s"] = "the table has one number per model"
        yield facts


# A row per iteration


def _read_iterations(
    table: Table, file: SourceFile, given: Mapping[str, str]
) -> Iterator[Facts | BadLine]:
    benchmark = _GPU_BENCHMARK.fullmatch(file.stem)
    if benchmark is not None and benchmark["work"] == "inference":
        raise OtherWorkError("times of inference")
    unit = "ms" if benchmark is not None else given.get("unit")
    if unit not in MS_FACTORS:
        raise ValueError("the unit of the times is not stated: add --set unit=s, ms or us")
    bad = [BadLine(row.line, row.problem) for row in table.rows if row.problem is not None]
    if bad:
        yield from bad
        return
    warm_up = 0 if benchmark is not None else int(given.get("warmup_iters", 0))
    rows = table.rows[warm_up:]
    if not rows:
        raise ValueError("no iteration but those of the warm-up")
    for model in filter(None, table.columns):
        times = []
        for row in rows:
            try:
                times.append(table.number(row.cells[model]) * MS_FACTORS[unit] / 1e3)
            except ValueError as error:
                yield BadLine(row.line, f"{model}: {error}")
                break
        else:
            facts = _facts_of(model, tuple(times))
            if benchmark is not None:
                _take_benchmark(facts, benchmark, file)
            yield facts


def _facts_of(model: str, times: tuple[float, ...]) -> Facts:
    facts = Facts("wide-iterations", None, texts={"arch": model}, iteration_times_s=times)
    facts.numbers = {**iteration_statistics_ms(times), "window_s": math.fsum(times)}
    facts.counts["iterations"] = len(times)
    return facts


def _take_benchmark(facts: Facts, named: re.Match[str], file: SourceFile) -> None:
    """What pytorch-gpu-benchmark says by the file's name and by `config.json` beside it."""
    facts.has_optimizer = False
    facts.extra["step"] = "forward, loss and backward; no optimizer"
    facts.texts["device"] = named["device"].strip("_").replace("_", " ")
    facts.texts["env"] = file.folders[0] if file.folders else named["device"]
    facts.texts["backend"] = "cuda"  # so does PyTorch call ROCm
    facts.texts["precision"] = _PRECISIONS[named["precision"]]
    if named["precision"] == "float":
        facts.extra["precision_note"] = (
            "PyTorch may compute fp32 convolutions in TF32 from Ampere on"
        )
    facts.params["data"] = "synthetic"
    facts.counts["image_size"] = 224
    facts.missing["batch_size"] = _take_config(facts, named, file)
    facts.missing["throughput_images_per_s"] = "no batch size is known"


def _take_config(facts: Facts, named: re.Match[str], file: SourceFile) -> str:
    """Take the batch and the number of GPUs; return why there is no batch."""
    facts.devices = int(named["gpus"] or 0) or None
    text = file.near("config.json")
    if text is None:
        return "no config.json is beside the file"
    config = parse_json(text)
    if not isinstance(config, dict):
        return "config.json beside the file holds no object"
    if count(str(config.get("NUM_TEST", 0))) != facts.counts["iterations"]:
        return "config.json beside the file is of another number of iterations"
    gpus = count(str(config.get("GPU_COUNT", config.get("NUM_GPU", 1))))
    if facts.devices not in (None, gpus) or not gpus:
        return "config.json beside the file is of another number of GPUs"
    facts.devices = gpus
    facts.counts["warmup_iters"] = count(str(config.get("WARM_UP", 0)))
    batch = count(str(config.get("BATCH_SIZE", 0)))
    if not batch or batch % gpus:
        return f"a batch of {batch} is not shared evenly by {gpus} GPUs"
    facts.counts["batch_size"] = batch // gpus
    return ""
