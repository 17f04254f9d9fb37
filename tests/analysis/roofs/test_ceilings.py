"""Which roof a run is held against."""

import factories as make
import pytest
import samples

from analysis.report.write import problems
from analysis.roofs import (
    Peaks,
    UsedCeiling,
    choose_ceiling,
    datasheet_ceiling,
    datasheet_peaks,
    read_peaks,
)
from analysis.runs.place import place_runs
from bench.errors import Unknown, UserError
from bench.records import Finding
from bench.records.environment import environment_id

GPU_ENV = make.environment(label="gpu", device=make.gpu())
GPU_RUN = make.run_record(environment=GPU_ENV, resolved=make.resolved(backend="cuda"))
GPU_CEILING = make.ceiling(backend="cuda", device="Example GPU")


def gpu_ceilings(record_id="c", *, hours=0, ceilings=(GPU_CEILING,), outcome="ok", **device):
    changes = {} if outcome == "ok" else {"outcome": outcome, "reason": "no"}
    return make.ceilings_record(
        record_id,
        hours=hours,
        environment=make.environment(device=make.gpu(**device)),
        ceilings=ceilings,
        **changes,
    )


def chosen(record, ceilings):
    used = choose_ceiling(record, ceilings)
    assert isinstance(used, UsedCeiling), used
    return used


def refused(record, ceilings):
    refusal = choose_ceiling(record, ceilings)
    assert isinstance(refusal, Unknown)
    return refusal.reason


BUSY = Finding(code="busy-host", level="suspect", message="others used 40% of the processor")


def test_a_doubtful_roof_is_one_problem_of_all_runs_under_it():
    roofs = [make.ceilings_record("doubtful", verdict=make.suspect(BUSY))]
    runs = place_runs([make.run_record("r1"), make.run_record("r2")], roofs)
    assert [run.verdict for run in runs] == ["clean", "clean"]
    assert [run.problems for run in runs] == [(), ()]
    [(subject, [why])] = problems(runs, (), ())
    assert subject == "Roof of lab, over runs 1, 2"
    assert "others used 40%" in why
    assert "mlproject ceilings" in why
    sound = place_runs([make.run_record()], [make.ceilings_record()])
    assert problems(sound, (), ()) == []


@pytest.mark.parametrize(
    ("roofs_mhz", "run_mhz", "limited", "refused"),
    [
        (1980.0, 1410.0, {}, True),
        (1410.0, 1980.0, {}, True),
        (1980.0, 1900.0, {}, False),
        (1980.0, 1410.0, {"run": 1.0}, False),  # by its power limit, as far as the work asks
        (1410.0, 1980.0, {"roofs": 1.0}, False),
        (1980.0, 1410.0, {"roofs": 1.0}, True),
        (None, 1410.0, {}, False),
    ],
)
def test_a_roof_at_another_clock_that_no_load_explains_does_not_fit(
    roofs_mhz, run_mhz, limited, refused
):
    def sampled(mhz, who):
        clock = samples.SampledSeries(
            name="gpu_sm_clock_mhz", source="nvml", times_s=(0,), values=(mhz,)
        )
        share = {"SwPowerCap": limited.get(who, 0.0)}
        return samples.telemetry(series=(clock,), throttle_share=share)

    roofs = make.ceilings_record(telemetry=roofs_mhz and sampled(roofs_mhz, "roofs"))
    found = choose_ceiling(make.run_record(telemetry=sampled(run_mhz, "run")), [roofs])
    assert isinstance(found, Unknown) is refused
    if refused:
        clocks = f"a mean SM clock of {roofs_mhz:.0f} MHz, the run of {run_mhz:.0f} MHz"
        assert clocks in found.reason


def test_a_roof_at_other_application_clocks_does_not_fit():
    run = make.run_record(
        environment=make.environment(device=make.gpu(application_clock_mhz=1980.0))
    )
    assert chosen(run, [gpu_ceilings(application_clock_mhz=1980.0)]).record_id == "c"
    assert chosen(run, [gpu_ceilings()]).record_id == "c"  # an earlier version did not record it
    reason = "c is at application clocks of 1410 MHz, the run of 1980 MHz"
    assert reason in refused(run, [gpu_ceilings(application_clock_mhz=1410.0)])


def test_the_newest_of_this_device_is_used():
    ceilings = [gpu_ceilings("old", hours=-5), gpu_ceilings("new", hours=2), gpu_ceilings("mid")]
    assert chosen(GPU_RUN, ceilings).record_id == "new"
    assert chosen(GPU_RUN, ceilings).instead_of_measured is None
    # a failed calibration is passed over
    ceilings = [gpu_ceilings("good"), gpu_ceilings("bad", hours=1, outcome="crashed")]
    assert chosen(GPU_RUN, ceilings).record_id == "good"
    ceilings = [gpu_ceilings("older", driver="535.0"), ceilings[1]]
    assert "fits (bad ended crashed)" in refused(GPU_RUN, ceilings)  # the newest is named


NOT_MEASURED = "no ceilings were measured on this device"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"uuid": "GPU-2"}, NOT_MEASURED),
        ({"backend": "cpu"}, NOT_MEASURED),
        ({"driver": "535.0"}, "c is of driver 535.0, the run of 570.1"),
        ({"power_limit_w": 250.0}, "c is at a power limit of 250.0 W, the run at 300.0 W"),
        ({"power_limit_w": None}, "c is at a power limit of None W"),
        ({"math_mode": "bf16"}, "c did not measure fp32"),
        ({"peak_bytes_per_s": None}, "only one of the two roofs of fp32"),
        ({"kind": "datasheet"}, "c did not measure fp32"),  # a row of a record measures nothing
    ],
)
def test_another_device_driver_limit_mode_or_half_a_roof_is_no_roof(changes, reason):
    of_roof = {"math_mode", "peak_bytes_per_s", "kind"} & changes.keys()
    roof = make.ceiling(backend="cuda", **{name: changes[name] for name in of_roof})
    device = {name: value for name, value in changes.items() if name not in of_roof}
    assert reason in refused(GPU_RUN, [gpu_ceilings(ceilings=(roof,), **device)])


def test_a_processor_with_fewer_instructions_is_held_against_its_own_roof():
    fewer = make.environment(variables={"ONEDNN_MAX_CPU_ISA": "AVX2"})
    whole, limited = make.ceilings_record(), make.ceilings_record(environment=fewer)
    run = make.run_record(environment=fewer)
    assert "limited by none, the run by ONEDNN_MAX_CPU_ISA=avx2" in refused(run, [whole])
    assert chosen(run, [limited]).record_id == chosen(make.run_record(), [whole]).record_id
    assert "limited by ONEDNN_MAX_CPU_ISA=avx2" in refused(make.run_record(), [limited])
    assert environment_id(fewer) != environment_id(make.environment())


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"cpu_model": "Another CPU"}, False),
        ({"cpu_signature": "family 26 model 2 stepping 1"}, False),
        ({"cpu_cores_usable": 4}, False),
        ({"machine": "arm64"}, False),
        ({"memory_bytes": 32 * make.GIGA}, False),
        ({"memory_bytes": int(15.9 * make.GIGA)}, True),
        ({"device": make.device(cores=2)}, False),
        ({"device": make.device(name="Another CPU")}, False),
    ],
)
def test_without_a_uuid_the_machines_figures_decide(change, same):
    used = choose_ceiling(
        make.run_record(), [make.ceilings_record(environment=make.environment(**change))]
    )
    assert same == bool(used)
    assert same or NOT_MEASURED in used.reason


@pytest.mark.parametrize("device", [{"power_limit_w": 300.4}, {"uuid": None}])
def test_a_little_power_more_or_a_missing_uuid_is_the_same_device(device):
    assert chosen(GPU_RUN, [gpu_ceilings(**device)]).record_id == "c"


def test_without_a_measured_roof_the_datasheets_is_used_or_there_is_none():
    env = make.environment(device=make.gpu(name="NVIDIA H200", power_limit_w=700.0))
    run = make.run_record(environment=env, resolved=make.resolved(math_mode="bf16"))
    used = chosen(run, [])
    assert used.record_id is None
    assert (used.ceiling.kind, used.ceiling.peak_flops_per_s) == ("datasheet", 989e12)
    assert used.instead_of_measured == NOT_MEASURED
    reason = refused(GPU_RUN, [])
    assert "datasheet table does not hold 'Example GPU'" in reason
    assert reason.endswith("run mlproject ceilings on that machine")
    assert "does not say on which device" in refused(make.run_record(environment=None), [])


# Datasheets: whole names only, and nothing for what the table does not hold


def peaks(name, mode, **device):
    """TFLOP/s and GB/s of the datasheet, or why there are none."""
    found = datasheet_ceiling(make.gpu(name=name, **device), mode)
    if isinstance(found, Unknown):
        return found.reason
    assert (found.ceiling.kind, found.record_id) == ("datasheet", None)
    assert found.ceiling.source
    assert found.ceiling.peak_flops_per_s == found.roof.peak_flops_per_s
    return found.roof.peak_flops_per_s / 1e12, found.roof.peak_bytes_per_s / 1e9


LAPTOP = "NVIDIA GeForce RTX 4090 Laptop GPU"
#: As one driver calls both; a device is half of a card.
SHARED = "AMD Instinct MI250X / MI250"


@pytest.mark.parametrize(
    ("name", "mode", "expected", "device"),
    [
        ("Tesla T4", "fp16", (65, 320), {}),
        ("NVIDIA L4", "tf32", (60, 300), {}),
        ("NVIDIA H100 80GB HBM3", "tf32", (495, 3350), {}),
        ("  nvidia   geforce rtx 4090 ", "fp16", (165.2, 1008), {}),
        ("A100-SXM4-40GB", "fp32", (19.5, 1555), {}),  # as older drivers spell it
        ("NVIDIA A10G", "bf16", (70, 600), {}),
        ("NVIDIA H100 PCIe", "tf32", (378, 2039), {}),
        # a laptop's part depends on its power limit
        (LAPTOP, "fp32", (39.7, 576), {"power_limit_w": 150.0}),
        (LAPTOP, "fp32", (29.3, 576), {"power_limit_w": 109.5}),
        # parts that share a name are known by their multiprocessors
        (SHARED, "bf16", (181, 1638), {"cores": 104}),
        (SHARED, "bf16", (191.5, 1638), {"cores": 110}),
        ("AMD Instinct MI300X", "tf32", (653.7, 5325), {"cores": 304}),
    ],
)
def test_a_device_is_known_by_its_whole_name_and_part(name, mode, expected, device):
    assert peaks(name, mode, **device) == pytest.approx(expected)


NAMES = (
    *("NVIDIA L4 24GB", "NVIDIA H200 NVL", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "T4", ""),
    *("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "AMD Instinct MI300A"),
    *("NVIDIA GeForce RTX 4080 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "Apple M3 Max"),
)


@pytest.mark.parametrize(
    ("name", "mode", "device", "why"),
    [
        *((name, "fp32", {}, f"the datasheet table does not hold {name!r}") for name in NAMES),
        *(
            (name, mode, {}, f"the datasheet of '{name}' gives no {mode} peak")
            for name, mode in (("Tesla T4", "bf16"), ("Tesla T4", "tf32"), ("NVIDIA L40", "bf16"))
        ),
        (LAPTOP, "fp32", {"power_limit_w": 130.0}, "150 W and 110 W, this device's limit is 130 W"),
        (LAPTOP, "fp32", {"power_limit_w": None}, "limit is unknown"),
        (SHARED, "bf16", {"cores": None}, "104 multiprocessors and 110 multiprocessors"),
        # one of the eight parts of a divided card has the whole card's name
        ("AMD Instinct MI300X", "tf32", {"cores": 38}, "multiprocessors are 38"),
    ],
)
def test_other_devices_and_modes_have_no_peak(name, mode, device, why):
    assert why in peaks(name, mode, **device)


# Peaks of datasheets


#: Units, their boost clock in MHz, FLOP per clock of one unit in fp32 and in 16 bits, the bits and
#: GT/s of the memory, and the clock of the 16-bit figure where it is another. NVIDIA publishes no
#: such clock for H100 PCIe, H100 NVL, B200 and B300, and no boost clock of the Server Edition and
#: the GB10: theirs are what the figures imply, at most the boost clock of the chip.
CHIPS = {
    "tesla p4": (20, 1063, 256, 256, 256, 6),
    "tesla p100-pcie-16gb": (56, 1303, 128, 256, 4096, 1.43),
    "tesla t4": (40, 1590, 128, 1024, 256, 10),
    "l4": (58, 2040, 256, 1024, 192, 12.5),
    "tesla v100-sxm2-16gb": (80, 1530, 128, 1024, 4096, 1.752),
    "tesla v100-sxm2-32gb": (80, 1530, 128, 1024, 4096, 1.752),
    "tesla v100-pcie-16gb": (80, 1380, 128, 1024, 4096, 1.752),
    "tesla v100-pcie-32gb": (80, 1380, 128, 1024, 4096, 1.752),
    "a100-sxm4-40gb": (108, 1410, 128, 2048, 5120, 2.43),
    "a100-pcie-40gb": (108, 1410, 128, 2048, 5120, 2.43),
    "a100-sxm4-80gb": (108, 1410, 128, 2048, 5120, 3.186),
    "a100 80gb pcie": (108, 1410, 128, 2048, 5120, 3.024),
    "h100 80gb hbm3": (132, 1980, 256, 4096, 5120, 5.24, 1830),
    "h200": (132, 1980, 256, 4096, 6016, 6.4, 1830),
    "geforce rtx 4090": (128, 2520, 256, 512, 384, 21),
    "geforce rtx 4080": (76, 2505, 256, 512, 256, 22.4),
    "geforce rtx 4090 laptop gpu 150 W": (76, 2040, 256, 512, 256, 18),
    "geforce rtx 4090 laptop gpu 110 W": (76, 1505, 256, 512, 256, 18),
    "geforce rtx 3090": (82, 1695, 256, 512, 384, 19.5),
    "geforce rtx 5090": (170, 2407, 256, 512, 512, 28),
    "geforce rtx 5080": (84, 2620, 256, 512, 256, 30),
    "geforce rtx 5070 ti": (70, 2450, 256, 512, 256, 28),
    "geforce rtx 5070": (48, 2510, 256, 512, 192, 28),
    "geforce rtx 5060 ti": (36, 2570, 256, 512, 128, 28),
    "geforce rtx 4070": (46, 2480, 256, 512, 192, 21),
    "geforce rtx 3060": (28, 1780, 256, 512, 192, 15),
    "gb10": (48, 2523, 256, 512, 256, 8.533),
    "b300 sxm6 ac": (148, 1980, 256, 8192, 8192, 7.8, 1856),
    "a10": (72, 1695, 256, 1024, 384, 12.5),
    "a10g": (80, 1710, 256, 512, 384, 12.5),
    "a30": (56, 1440, 128, 2048, 3072, 2.43),
    "a40": (84, 1740, 256, 1024, 384, 14.5),
    "rtx a6000": (84, 1800, 256, 1024, 384, 16),
    "l40": (142, 2490, 256, 512, 384, 18),
    "l40s": (142, 2520, 256, 1024, 384, 18),
    "h100 pcie": (114, 1755, 256, 4096, 5120, 3.186, 1620),
    "h100 nvl": (132, 1785, 256, 4096, 6016, 5.238, 1545),
    "gh200 480gb": (132, 1980, 256, 4096, 6144, 5.238, 1830),
    "gh200 144g hbm3e": (132, 1980, 256, 4096, 6144, 6.4, 1830),
    "b200": (148, 1980, 256, 8192, 8192, 7.5, 1856),
    "rtx pro 6000 blackwell workstation edition": (188, 2617, 256, 1024, 512, 28),
    "rtx pro 6000 blackwell server edition": (188, 2493, 256, 1024, 512, 24.96),
    "amd instinct mi210 104 multiprocessors": (104, 1700, 256, 1024, 4096, 3.2),
    "amd instinct mi250x / mi250 104 multiprocessors": (104, 1700, 256, 1024, 4096, 3.2),
    "amd instinct mi250x 110 multiprocessors": (110, 1700, 256, 1024, 4096, 3.2),
    "amd instinct mi300x 304 multiprocessors": (304, 2100, 256, 2048, 8192, 5.2),
    "amd instinct mi325x 304 multiprocessors": (304, 2100, 256, 2048, 8192, 6),
    "amd instinct mi355x 256 multiprocessors": (256, 2400, 256, 4096, 8192, 8),
}


def misquoted(row):
    """The figures of a row that its units, clocks and memory do not give."""
    (chip,) = {f"{name} {row.part}".strip() for name in row.names} & CHIPS.keys()
    units, mhz, fp32, half, bits, gt_per_s, *other = CHIPS[chip]
    half_flops = units * half * (other[0] if other else mhz) * 1e6
    expected = dict.fromkeys(("bf16", "fp16"), half_flops) | {
        "tf32": half_flops / 2,
        "fp8": 2 * half_flops,
        "fp32": units * fp32 * mhz * 1e6,
    }
    found = {**row.flops_per_s, "memory": row.bytes_per_s}
    expected["memory"] = bits / 8 * gt_per_s * 1e9
    return [what for what, rate in found.items() if abs(rate / expected[what] - 1) > 0.03]


def test_every_figure_follows_from_the_units_and_clocks():
    assert all(chip[6] <= chip[1] for chip in CHIPS.values() if len(chip) > 6)
    assert {(*row.names,): wrong for row in datasheet_peaks() if (wrong := misquoted(row))} == {}
    for row in datasheet_peaks():
        rates = [*filter(None, map(row.flops_per_s.get, ("fp32", "tf32", "bf16", "fp8")))]
        assert rates == sorted(rates)


# A user's own file

HEADER = ",".join(Peaks.model_fields)


def own_peaks(folder, *rows, header=HEADER):
    path = folder / "own.csv"
    path.write_text("\n".join((header, *rows)), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["A,,,1,,,,2,s", "B,,,1,,,,,s"], "line 3: memory_gb_per_s='' is no memory bandwidth"),
        (["A,,,,,,,2,s"], "line 2: no peak: fill in one of fp32_tflop_per_s, "),
        (["A,,,1,,,,2, "], "line 2: source=' ' is no source"),
        ([",,,1,,,,2,s"], "line 2: devices='' is no name"),
        (["A,,,0,,,,2,s"], "line 2: fp32_tflop_per_s='0' is no positive number; empty means"),
        (["A,,,inf,,,,2,s"], "line 2: fp32_tflop_per_s='inf' is no positive number"),
        (["A,,,1,,,,null,s"], "line 2: memory_gb_per_s='null' is no memory bandwidth"),
        (["A,,,1,,,,2,s", "nvidia a,,,1,,,,2,s"], "line 3: 'a' is in line 2 too"),
        (["A,,,1,,,,2,s,,,,,,,, t"], "line 2: 'a value too many': the columns are devices,"),
        ([], f"line 1: no row follows: the columns are {HEADER}"),
    ],
)
def test_a_row_that_is_no_roof_is_refused_with_its_line(tmp_path, rows, message):
    path = own_peaks(tmp_path, *rows)
    with pytest.raises(UserError) as refusal:
        read_peaks(path)
    assert str(refusal.value).startswith(f"peaks={str(path)!r}, {message}")
    assert "\n" not in str(refusal.value)
