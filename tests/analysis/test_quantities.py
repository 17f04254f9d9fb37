"""Numbers for people: three digits, or more where a difference would else not show."""

import pytest

from analysis.runs.quantities import (
    as_fast_as,
    interval,
    percent,
    percent_interval,
    plus_minus,
    three_digits,
    times,
)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (three_digits(1234567), "1230000"),
        (three_digits(999999), "1000000"),
        (three_digits(0.00012345), "0.000123"),
        (percent(-1.234), "-123 %"),
        (percent(-0.0512), "-5.1 %"),
        (percent(0.0995), "10 %"),
        (percent_interval(0.003, 0.004), "0.3 to 0.4 %"),
        (percent_interval(0.187, 0.341), "19 to 34 %"),
        (percent_interval(0.5, 0.501), "50 %"),
        (plus_minus(1234.5, 0.9), "1234.5 ± 0.9"),
        (plus_minus(1234.5, 120), "1230 ± 120"),
        (plus_minus(10.0, 0.0), "10 ± 0"),
        (plus_minus(10.0, None), "10"),
        (interval(1231, 1234), "1231 to 1234"),
        (interval(1.004, 1.0049), "1.004 to 1.0049"),
        (interval(0.288, 11.3), "0.288 to 11.3"),
        (interval(2.0, 2.0 + 1e-9), "2"),
        (times(1.004), "1.004x"),
        (times(1.8312), "1.83x"),
        (times(1.0), "1x"),
        (as_fast_as(1.0, 1.0), "as fast as"),
        (as_fast_as(1.0, 1.004), "1 to 1.004 times as fast as"),
    ],
)
def test_a_number_is_as_long_as_it_needs_to_be(shown, expected):
    assert shown == expected.replace("±", "\N{PLUS-MINUS SIGN}")
