# SPDX-License-Identifier: Apache-2.0
"""What a count of answers that failed, or held, says of the rate: one-sided bounds after Clopper and Pearson.

The upper bound is the rate at which so few would be seen with probability 1 - ``level``; exact for independent answers,
and too narrow where answers hang together.
[Clopper, Pearson: Biometrika 26 (1934)]
"""

import math

LEVEL = 0.95
_STEPS = 50


def upper_bound(count: int, of: int, level: float = LEVEL) -> float:
    """Return the rate that the true one stays below with the given probability; 1.0 of no answers at all.

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
    """Return the rate that the true one stays above with the given probability; 0.0 of no answers at all."""
    return 1.0 - upper_bound(of - count, of, level)


def chance_of(count: int, of: int, rate: float) -> float:
    """Return how likely so many or more of ``of`` are, each with probability ``rate``."""
    if count <= of * rate:
        below = sum(math.comb(of, number) * rate**number * (1 - rate) ** (of - number) for number in range(count))
        return 1.0 - below
    return sum(math.comb(of, number) * rate**number * (1 - rate) ** (of - number) for number in range(count, of + 1))


def _at_most(count: int, of: int, rate: float) -> float:
    """Return the probability of ``count`` or fewer of ``of``, for a rate above count / of, where terms shrink."""
    if rate >= 1.0:
        return 0.0
    log_choose = math.lgamma(of + 1) - math.lgamma(count + 1) - math.lgamma(of - count + 1)
    first = log_choose + count * math.log(rate) + (of - count) * math.log1p(-rate) if rate > 0 else 0.0
    total = term = 1.0
    for number in range(count, 0, -1):
        term *= number / (of - number + 1) * (1 - rate) / rate
        total += term
        if term < total * 1e-15:
            break
    return math.exp(first) * total
