# SPDX-License-Identifier: Apache-2.0
"""One-sided bounds at 95 % on a rate, by a count of answers, and on a mean over time, by readings of moments.

The bound on a rate, after Clopper and Pearson, is the rate at which so few would be seen with probability 1 -
``level``; exact for independent answers, and too narrow where answers hang together.
[Clopper, Pearson: Biometrika 26 (1934)]
"""

import math

LEVEL = 0.95
_STEPS = 50
# Readings at even distances of what hangs together over time err less than independent ones, of which this is true.
# Student's t is that of 9 degrees: the deviation of fewer readings than ten says too little.
FEWEST_READINGS = 10
_STUDENT_T, _NORMAL = 1.83, 1.645


def upper_bound(count: int, of: int, level: float = LEVEL) -> float:
    """Return the rate that the true one stays below with the given probability; no answers at all give 1.0.

    Raises:
        ValueError: ``count`` is not within ``of``.
    """
    if not 0 <= count <= of:
        raise ValueError(f"{count} of {of} is no share")
    if count == of:
        return 1.0
    low, high = count / of, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(count, of, middle) > 1 - level else (low, middle)
    return high


def lower_bound(count: int, of: int, level: float = LEVEL) -> float:
    """Return the rate that the true one stays above with the given probability; no answers at all give 0.0."""
    return 1.0 - upper_bound(of - count, of, level)


def _at_most(count: int, of: int, rate: float) -> float:
    """Return the probability of ``count`` or fewer of ``of``, for a rate above count / of, where terms shrink."""
    if rate >= 1.0:
        return 0.0
    log_choose = math.lgamma(of + 1) - math.lgamma(count + 1) - math.lgamma(of - count + 1)
    head = log_choose + count * math.log(rate) + (of - count) * math.log1p(-rate) if rate > 0 else 0.0
    total = term = 1.0
    for number in range(count, 0, -1):
        term *= number / (of - number + 1) * (1 - rate) / rate
        total += term
        if term < total * 1e-15:
            break
    return math.exp(head) * total


def mean_at_most_pct(mean_pct: float, deviation_pct: float, readings: float) -> float | None:
    """Return what a mean over time is at most, by readings with this mean and deviation; None of too few."""
    if readings < FEWEST_READINGS:
        return None
    return min(100.0, mean_pct + _STUDENT_T * deviation_pct / math.sqrt(readings))


def share_at_most_pct(mean_pct: float, readings: float) -> float:
    """Return the same where only the mean of so many readings is known.

    No values from 0 to 100 deviate more than those that are all 0 or 100: the bound is Wilson's on a share.
    [Wilson: J. Am. Stat. Assoc. 22 (1927)]
    """
    share, square = mean_pct / 100, _NORMAL**2 / max(1.0, readings)
    root = math.sqrt(share * (1 - share) * square + square**2 / 4)
    return 100 * (share + square / 2 + root) / (1 + square)
