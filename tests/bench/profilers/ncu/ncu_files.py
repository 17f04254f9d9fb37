"""Files as Nsight Compute writes them, in every form, locale and scale, made of known launches."""

from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal

SASS = {
    f"smsp__sass_thread_inst_executed_op_{width}{op}_pred_on.sum": 2 if op == "fma" else 1
    for width in "fhd"
    for op in ("add", "mul", "fma")
}
TENSOR = [
    f"sm__ops_path_tensor_src_{kind}.sum"
    for kind in ("fp16_dst_fp32", "fp16_dst_fp16", "bf16_dst_fp32", "tf32_dst_fp32", "fp64")
]
DURATION, DRAM = "gpu__time_duration.sum", "dram__bytes.sum"
BYTES = [
    DRAM,
    "lts__t_bytes.sum",
    "l1tex__t_bytes.sum",
    "pcie__read_bytes.sum",
    "pcie__write_bytes.sum",
]
ALL = [DURATION, *BYTES, *TENSOR, *SASS]
PERCENT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"

#: Thousands separator and decimal mark.
LOCALES = {
    "C": ("", "."),
    "en_US": (",", "."),
    "de_DE": (".", ","),
    "fr_FR": ("\u202f", ","),
    "cs_CZ": ("\u00a0", ","),
    "de_CH": ("'", "."),
}
SPELLINGS = {"old": ("nsecond", "usecond"), "new": ("ns", "us")}
#: The third with --nvtx, --print-details all and rules.
LONG_FORMS = ("2020", "new", "rules")
FORMS = (*LONG_FORMS, "raw", "raw nvtx", "summary")
_NVTX = [
    "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
    "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
]
_RULES = ["Rule Name", "Rule Type", "Rule Description"]
_RULES += ["Estimated Speedup Type", "Estimated Speedup"]


@dataclass
class Launch:
    """A kernel launch and its metrics in base units; None is printed as n/a."""

    id: int
    kernel: str
    values: dict[str, int | None]
    process: int = 4711
    capability: str = "8.0"


@dataclass
class Style:
    """How ncu was run."""

    locale: str = "C"
    unit_power: int = 0  # 3: Kbyte and usecond, 6: Mbyte
    spelling: str = "new"
    percent: str | None = "87.53"  # a metric besides, which shows the decimal mark
    line_end: str = "\n"
    noise: dict[int, str] = field(default_factory=dict)  # before which row


def launches(count, values=None, kernels=("gemm", "relu"), **others):
    """`count` launches that take turns at `kernels`, every metric with a value of its own."""
    values = values or {name: 10**6 + 1000 * index for index, name in enumerate(ALL)}
    taking_turns = [kernels[index % len(kernels)] for index in range(count)]
    return [
        Launch(index, kernel, {name: value + index for name, value in values.items()}, **others)
        for index, kernel in enumerate(taking_turns)
    ]


def number(value, style, is_scaled=False):
    """`value` as the locale prints it: decimals where it needs them or is scaled, no exponent."""
    thousands, mark = LOCALES[style.locale]
    whole, _, rest = format(Decimal(value), "f").partition(".")
    grouped = f"{int(whole):,}".replace(",", thousands)
    return f"{grouped}{mark}{rest.ljust(2, '0')}" if is_scaled or rest.strip("0") else grouped


def unit(metric, style):
    """The unit that `metric` is printed in."""
    if metric == PERCENT:
        return "%"
    if metric == DURATION:
        return SPELLINGS[style.spelling][1 if style.unit_power else 0]
    if metric in BYTES:
        return {0: "byte", 3: "Kbyte", 6: "Mbyte"}[style.unit_power]
    return "inst" if metric in SASS else ""


def cell(metric, value, style):
    """Unit and text of a figure."""
    if value is None:
        return "", "n/a"
    if metric == PERCENT:
        return "%", value.replace(".", LOCALES[style.locale][1])
    power = min(style.unit_power, 3) if metric == DURATION else style.unit_power
    if metric not in (DURATION, *BYTES):
        power = 0
    return unit(metric, style), number(Decimal(value).scaleb(-power), style, power > 0)


def quoted(cells, ragged=False):
    """A row in quotes; a ragged one stops early, with a comma."""
    text = ",".join('"' + str(one).replace('"', '""') + '"' for one in cells)
    return text + "," if ragged else text


def figures(launch, style):
    """Metric -> value, and the percentage where the style has one."""
    return launch.values | ({PERCENT: style.percent} if style.percent else {})


def identity(launch, form):
    """Names and cells that come before a row's figures."""
    row = {"ID": launch.id, "Process ID": launch.process, "Process Name": "python3.11"}
    row |= {"Host Name": "127.0.0.1"}
    if form in ("rules", "raw nvtx"):
        row |= {_NVTX[0]: f'{launch.id}  "<default domain>:step, one:none" ', _NVTX[1]: ""}
    row |= {"Kernel Name": launch.kernel}
    if form == "2020":
        return row | {"Kernel Time": "2020-Nov-13 18:14:36", "Context": 1, "Stream": 7}
    row |= {"Context": 1, "Stream": 7, "Block Size": "(256, 1, 1)", "Grid Size": "(8, 4, 1)"}
    return row | {"Device": 0, "CC": launch.capability}


def long_rows(table, form, style):
    """Header and rows of the long forms."""
    rules = _RULES if form == "rules" else []
    label = ["Body Item Label"] if rules else []
    names = ["Section Name", *label, "Metric Name", "Metric Unit", "Metric Value"]
    yield quoted([*identity(table[0], form), *names, *rules])
    for launch in table:
        begin = [*identity(launch, form).values(), "Command line profiler metrics", *label]
        for metric, value in figures(launch, style).items():
            yield quoted([*begin, metric, *cell(metric, value, style)], ragged=bool(rules))
        if rules:
            rule = ["SOLBottleneck", "OPT", 'Look at "L2", 1.5x\nand at DRAM', "global", "20,33"]
            yield quoted([*begin, "", "", "", *rule])


def raw_rows(table, form, style):
    """Header, units and rows of the raw form; a missing figure is an empty cell."""
    metrics = list(dict.fromkeys(name for launch in table for name in figures(launch, style)))
    columns = identity(table[0], form)
    yield quoted([*columns, *metrics])
    yield quoted([*[""] * len(columns), *(unit(metric, style) for metric in metrics)])
    for launch in table:
        values = figures(launch, style)
        cells = [cell(name, values.get(name), style)[1].replace("n/a", "") for name in metrics]
        yield quoted([*identity(launch, form).values(), *cells])


def summary_rows(table, form, style):
    """Header and rows of a summary per kernel: means over its launches, all or none n/a."""
    begin = ["Process ID", "Kernel Name", "Block Size", "Grid Size", "Device", "CC", "Invocations"]
    names = ["Section Name", "Metric Name", "Metric Unit", "Minimum", "Maximum", "Average"]
    yield quoted([*begin, *names])
    kernels = defaultdict(list)
    for launch in table:
        kernels[launch.kernel].append(figures(launch, style))
    for kernel, rows in kernels.items():
        group = [4711, kernel, "(256, 1, 1)", "(8, 4, 1)", 0, "8.0", len(rows)]
        for metric in rows[0]:
            values = [row[metric] for row in rows]
            spread = [values[0]] * 3
            if metric != PERCENT and None not in values:
                spread = [min(values), max(values), Decimal(sum(values)) / len(values)]
            cells = [cell(metric, value, style) for value in spread]
            texts = [text for _, text in cells]
            yield quoted([*group, "Command line profiler metrics", metric, cells[0][0], *texts])


def written(table, form="new", style=None):
    """The text of a file that holds `table`."""
    style = style or Style()
    rows_of = {"summary": summary_rows, "raw": raw_rows, "raw nvtx": raw_rows}.get(form, long_rows)
    lines = []
    for index, row in enumerate(rows_of(table, form, style)):
        lines += [style.noise[index], row] if index in style.noise else [row]
    return style.line_end.join(lines) + style.line_end


def truth(table, form="new"):
    """What a reader must find; None where a launch lacks the metric.

    The form of 2020 does not tell the chip, and so not whether it has a metric that is n/a.
    """

    def total(metrics):
        values = [launch.values.get(name) for launch in table for name in metrics]
        return None if None in values or not metrics else sum(values)

    told = [name for name in TENSOR if any(name in one.values for one in table)]
    counted = [name for name in told if any(one.values[name] is not None for one in table)]
    tensor = total(counted if form == "2020" or not counted else told)
    if tensor == 0 and len(counted) < len(TENSOR):
        tensor = None
    weighted = [
        [launch.values.get(name), weight] for launch in table for name, weight in SASS.items()
    ]
    sass = None if None in [value for value, _ in weighted] else sum(v * w for v, w in weighted)
    duration = total([DURATION])
    return {
        "kernels": len(table),
        "duration_s": None if duration is None else float(Decimal(duration).scaleb(-9)),
        "flops": None if None in (sass, tensor) else sass + tensor,
        "tensor_flops": tensor,
        "dram_bytes": total([DRAM]),
        "l2_bytes": total(["lts__t_bytes.sum"]),
        "l1_bytes": total(["l1tex__t_bytes.sum"]),
        "pcie_bytes": total(BYTES[3:]),
    }


def found(counters):
    """The same figures of a record."""
    return {name: getattr(counters, name) for name in truth([])}
