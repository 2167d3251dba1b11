# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import InputError
from slurm_colloc.units import capacity_mib, demand_mib, demand_units, percent, used_mib, watts


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
    with pytest.raises(InputError):
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
    [("30", 30.0), ("30%", 30.0), ("1", 1.0), ("0.3%", 0.3), ("2.5", 2.5), ("100", 100.0), (" 5 ", 5.0)],
)
def test_percent(text: str, value: float) -> None:
    assert percent(text, "sm") == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "0", "-1", "100.1", "nan", "inf", "x", "1/3", "0.0", "0.3", "0.99", "1.0"])
def test_not_percent(text: str) -> None:
    with pytest.raises(InputError, match="sm"):
        percent(text, "sm")


def test_small_conversions() -> None:
    assert watts(71500) == 71.5
