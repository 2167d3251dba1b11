# SPDX-License-Identifier: Apache-2.0
import re
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.units import (
    at_least,
    at_most,
    capacity_mib,
    demand_mib,
    demand_units,
    device_indices,
    joules,
    kilowatt_hours,
    percent,
    significant,
    time_limit_min,
    time_span_s,
    used_mib,
    watts,
)
from tests.unit.golden import Printed


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("9G", 9216),
        ("512M", 512),
        ("1.5T", 1572864),
        ("0.0005G", 1),
        ("1K", 1),
        ("1025K", 2),
        ("9GiB", 9216),
        (" 9 gb ", 9216),
    ],
)
def test_demand_rounds_up(text: str, mib: int) -> None:
    assert demand_mib(text) == mib


@pytest.mark.parametrize("text", ["", "9", "G", "-1G", "0M", "0G", "nan", "1e3M", "9P", "9G 1M", "9" * 400 + "G"])
def test_not_a_size(text: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"'{text}' is ")):
        demand_mib(text)


@given(st.integers(0, 2**50))
def test_capacity_down_use_up(size: int) -> None:
    assert 0 <= used_mib(size) - capacity_mib(size) <= 1
    assert capacity_mib(size) * 1024 * 1024 <= size <= used_mib(size) * 1024 * 1024


def test_whole_mib_are_exact() -> None:
    assert (capacity_mib(3 << 20), used_mib(3 << 20)) == (3, 3)
    assert (capacity_mib((3 << 20) - 1), used_mib((3 << 20) + 1)) == (2, 4)


@pytest.mark.parametrize(
    ("fraction", "whole", "units"), [(0.25, 100, 25), (0.2501, 100, 26), (0.0, 4, 1), (0.26, 4, 2), (1.0, 4, 4)]
)
def test_shares(fraction: float, whole: int, units: int) -> None:
    assert demand_units(fraction, whole) == units


@given(st.floats(0, 1), st.integers(1, 1000))
def test_shares_hold_the_fraction(fraction: float, whole: int) -> None:
    units = demand_units(fraction, whole)
    assert units >= max(1, fraction * whole - 1e-6)
    assert units <= fraction * whole + 1


@pytest.mark.parametrize(
    ("text", "value"),
    [("30", 30.0), ("30%", 30.0), ("1", 1.0), ("0.3%", 0.3), ("1.5", 1.5), ("2.5", 2.5), ("100", 100.0), (" 5 ", 5.0)],
)
def test_percent(text: str, value: float) -> None:
    assert percent(text, "sm") == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "0", "-1", "100.1", "nan", "inf", "x", "1/3", "0.0", "0.3", "0.99", "1.0"])
def test_not_percent(text: str) -> None:
    with pytest.raises(InputError, match="sm"):
        percent(text, "sm")


def test_what_may_be_a_fraction_is_shown_both_ways(printed: Printed) -> None:
    with printed.raises("csub-options", InputError, r"'0\.3' .*'30%' .*'0\.3%'"):
        percent("0.3", "sm")
    with pytest.raises(InputError, match=r"sm '0\.0' lies outside"):
        percent("0.0", "sm")


def test_small_conversions() -> None:
    assert (watts(71500), joules(71500), kilowatt_hours(7.2e6)) == (71.5, 71.5, 2.0)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("90", 90),
        ("90:00", 90),
        ("90:01", 91),
        ("90:61", 92),
        ("2:03:00", 123),
        ("2:03:04", 124),
        ("1-2", 26 * 60),
        ("1-2:03", 26 * 60 + 3),
        ("1-2:03:04", 26 * 60 + 4),
        ("0-0:00:01", 1),
        ("0", inf),
        ("0-0", inf),
        ("UNLIMITED", inf),
        ("infinite", inf),
        ("-1", inf),
    ],
)
def test_time_limits(text: str, minutes: float) -> None:
    assert time_limit_min(text) == minutes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0:00", 0), ("0:06", 6), ("9:54", 594), ("1:00:01", 3601), ("1-02:03:54", 93834), ("UNLIMITED", inf)],
)
def test_times_that_squeue_prints_are_read_to_the_second(text: str, seconds: float) -> None:
    assert time_span_s(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "1:2:3:4", "1-", "-2", "1-2:3:4:5", "1.5", "1 ", "1-2-3", "\u0661"])
def test_not_a_time_limit(text: str) -> None:
    for read in (time_limit_min, time_span_s):
        with pytest.raises(InputError, match=f"time limit '{text}' is none of"):
            read(text)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (0.00001, "<0.0001"),
        (-0.00001, "just below 0"),
        (0.01234, "0.0123"),
        (12.345, "12.3"),
        (1234567.8, "1234568"),
    ],
)
def test_figures_are_never_by_a_power_of_ten(value: float, words: str) -> None:
    assert significant(value) == words


def test_a_bound_is_never_rounded_to_what_does_not_hold() -> None:
    assert [at_least(value) for value in (100.0, 100 - 1e-12, 98.99, 59.5, 0.04)] == ["100", "100", "98.9", "59.5", "0"]
    values = (0.0, 0.00001, 0.1, 0.1 + 1e-15, 0.01234, 0.0999, 0.09991, 0.9999, 57.14, 999.2, 1024.0)
    assert [at_most(value) for value in values] == [
        *("0", "<0.0001", "0.1", "0.1", "0.0124", "0.0999", "0.1", "1", "57.2", "1000", "1024"),
    ]


@given(st.floats(0.0001, 1e7))
def test_what_is_at_most_so_much_is(value: float) -> None:
    shown = float(at_most(value))
    assert value <= shown * (1 + 1e-6)
    assert shown <= value * (1 + 1e-2) + 1e-6


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0", (0,)),
        ("0,2-4", (0, 2, 3, 4)),
        ("", ()),
        ("3-1", ()),
        ("GPU-123", ()),
        ("0,x", ()),
        ("1-", ()),
        ("-1", ()),
        ("\u00b2", ()),
        ("\u0660", ()),
        ("0-999999", ()),
        ("1023", (1023,)),
        ("1024", ()),
    ],
)
def test_indices(text: str, found: tuple[int, ...]) -> None:
    assert device_indices(text) == found
