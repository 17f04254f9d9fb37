"""The table of datasheet peaks against arithmetic, and a user's own file of them."""

import pytest

from analysis.roofs import Peaks, datasheet_peaks, read_peaks
from bench.errors import UserError

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
