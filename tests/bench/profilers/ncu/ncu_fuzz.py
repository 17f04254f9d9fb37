"""Damaged and arbitrary files for the reader of Nsight Compute's, and what it may do with them.

As a program: `python tests/bench/profilers/ncu/ncu_fuzz.py --inputs 100000`.
"""

import argparse
import random
import re
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[4])]

from ncu_files import DRAM, DURATION, FORMS, LOCALES, SASS, TENSOR, Style, launches, written

from bench.errors import UserError
from bench.profilers.ncu.read import read_counters

TOKENS = [
    *(b'"', b'""', b",", b'","', b'",', b"\n", b"\r\n", b"\r", b"\n\n", b" ", b"\t", b"\x00"),
    *(b"n/a", b"nan", b"-", b"0", b"1", b"9", b".", b"1.234", b"1,234", b"1.234.567", b"0x1F"),
    *(b"\xa0", b"\xc2\xa0", b"\xe2\x80\xaf", b"\xff\xfe", b"\xef\xbb\xbf", b"\xe9", b"1e5"),
    *(b"byte", b"Mbyte", b"ns", b"usecond", b"%", b"==PROF== ", b"==ERROR== no", b"Epoch 1 "),
    *(b'"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n',),
    *(b'"ID","Process ID","Kernel Name","dram__bytes.sum"\n', b'"","","","byte"\n'),
    *(b'"0","1","k","dram__bytes.sum","byte","5"\n', b'"0","1","k","7"\n', b"ID,Kernel Name,"),
    *(DRAM.encode(), DURATION.encode(), b"flop_count_sp", b"Duration", b"Invocations"),
]
OPERATIONS = ("insert", "delete", "replace", "copy", "cut", "swap", "digit")
#: A cell that reads as zero, alone or rounded.
_ZERO = re.compile(rb"(?<![1-9.,])0+(?:[.,][0-9]+)?(?![0-9])")
_FIGURES = ("duration_s", "flops", "tensor_flops", "dram_bytes", "l2_bytes", "l1_bytes")


@cache
def bases():
    """Whole files of few launches in every form and locale, none of whose figures is zero."""
    metrics = [DURATION, DRAM, TENSOR[0], *list(SASS)[:3]]
    values = {name: 1234567 + 1111 * index for index, name in enumerate(metrics)}
    table = launches(3, values)
    styles = [Style(locale=locale, percent="65.77") for locale in LOCALES]
    styles += [Style(unit_power=6, spelling="old", percent=None), Style(line_end="\r\n")]
    files = [written(table, form, style).encode() for form in FORMS for style in styles]
    return [*files, files[0].decode().encode("utf-16"), b"\xef\xbb\xbf" + files[1], b""]


def mutated(base, changes):
    """`base` after `changes`: operation, where (0 to 1), how much, a token."""
    content = bases()[base % len(bases())]
    for operation, where, much, token in changes:
        at = int(where * len(content))
        end = min(len(content), at + much)
        head, piece, tail = content[:at], content[at:end], content[end:]
        if operation == "insert":
            content = head + TOKENS[token % len(TOKENS)] + piece + tail
        elif operation == "delete":
            content = head + tail
        elif operation == "replace":
            content = head + TOKENS[token % len(TOKENS)] + tail
        elif operation == "copy":
            content = head + piece + piece + tail
        elif operation == "cut":
            content = head
        elif operation == "digit":
            content = head + str(token % 10).encode() + content[at + 1 :]
        else:
            lines = content.split(b"\n")
            one, other = int(where * len(lines)) % len(lines), much % len(lines)
            lines[one], lines[other] = lines[other], lines[one]
            content = b"\n".join(lines)
    return content


def outcome(path):
    """What the reader made of `path`: the record, or None where it refused it."""
    try:
        return read_counters(path)
    except UserError as error:
        message = str(error)
    assert str(path) in message
    assert "\n" not in message
    return None


def check(content, path):
    """Refused in one line, or read without a zero that the file does not hold."""
    path.write_bytes(content)
    record = outcome(path)
    if record is None:
        return False
    assert record.kernels > 0
    for row in (record, *record.per_kernel):
        for name in _FIGURES:
            value = getattr(row, name)
            assert value != 0 or _ZERO.search(content.replace(b"\x00", b"")), name
            assert value is not None or row.missing[name], name
    return True


def changes_of(chosen):
    """A few random changes; most are small, so that much of the file stays whole."""
    return [
        (
            chosen.choice(OPERATIONS),
            chosen.random(),
            chosen.choice((0, 1, 1, 2, 5, 30, 200)),
            chosen.randrange(10**6),
        )
        for _ in range(chosen.choice((0, 1, 1, 1, 2, 3, 6)))
    ]


def main():
    """Try many inputs and print how many were read, refused and bad."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    read = bad = 0
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ncu.csv"
        for index in range(given.inputs):
            chosen = random.Random(f"{given.seed}/{index}")
            content = mutated(chosen.randrange(10**6), changes_of(chosen))
            begin = time.perf_counter()
            try:
                read += check(content, path)
            except Exception as error:
                bad += 1
                print(f"input {given.seed}/{index}: {type(error).__name__}: {error}"[:300])
            slowest = max(slowest, time.perf_counter() - begin)
    refused = given.inputs - read - bad
    print(
        f"{given.inputs} inputs, {read} read, {refused} refused, {bad} bad; {slowest:.2f} s at most"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
