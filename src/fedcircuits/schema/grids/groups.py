"""Groups of neighbouring rows, known by their means and spreads, and points in their place."""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray

MAX_POINTS = 4096
MOST_APART = 8  # points that stand for one group of rows
FEW_GROUPS = 3  # fewer are not drawn apart
EVEN_END = 3**0.5  # where rows that lie evenly end, in standard deviations from their mean

Groups = tuple[FloatArray, FloatArray, FloatArray]


def outer_rows(rows: FloatArray) -> FloatArray:
    """(2,) rows from the middle of the second group outwards, lower and upper.

    How many rows lie beyond a mean is known better than beyond the end of a group.
    """
    return np.array([rows[0], rows[-1]]) + (0.5 * rows[[1, -2]] if rows.size > 2 else 0.0)


def points_apart(
    groups: Groups, among: float, domain: tuple[float, float] | None, positive: bool
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Points in place of groups of one client, with the same rows, means and spreads.

    Where points would leave the domain the group is narrower instead. Where no row is below zero, a
    group that would reach there falls off upwards.

    Evenly apart; an outer group wider than its neighbour is a tail: it begins where the neighbour
    ends and falls off outwards. So does another that would reach beyond a neighbour's mean. One or
    two groups that spread less than the values beside them that
    repeat are what is left of these: they stay, so that a column of few values has a state each.

    Args:
        groups: means, rows and standard deviations of the groups, in order.
        among: from the lowest to the highest value that repeats.
        domain: interval that no point may leave.
        positive: whether no row is below zero.

    Returns:
        The points in order, their rows, and spreads of zero.
    """
    means, rows, spreads = groups
    if means.size < FEW_GROUPS and spreads.max(initial=0.0) <= among:
        return means, rows, spreads
    values, sizes = [], []
    gaps = np.diff(means)
    for at, (mean, count, spread) in enumerate(zip(means, rows, spreads, strict=True)):
        n = min(max(round(count), 1), MOST_APART) if spread > 0 else 1
        places, width = _even_places(n)
        away = spread / width * places
        beside = gaps[max(at - 1, 0) : at + 1]  # to the means of the neighbours
        if beside.size == 1:  # an outer group
            next_to = 1 if at == 0 else at - 1
            if spread > spreads[next_to]:
                # Rows of the neighbour, which is narrow, end about here.
                room = max(beside[0] - EVEN_END * spreads[next_to], spread / 8)
                away = tail_places(n, room, spread)
                away = -away[::-1] if at == 0 else away
        elif beside.size and n > 1 and -away[0] > beside.min():
            # Rows beyond the mean of a neighbour would be out of order: these fall off to one side.
            away = tail_places(n, max(beside.min(), spread / 8), spread)
            away = away if beside[0] <= beside[-1] else -away[::-1]
        if positive and n > 1 and mean + away[0] < 0:
            away = tail_places(n, mean, spread)
        if domain is not None and n > 1:
            room = min((domain[0] - mean) / away[0], (domain[1] - mean) / away[-1])
            away = away * max(0.0, min(1.0, room))
        values.append(mean + away)
        sizes.append(n)
    points, share = np.concatenate(values), np.repeat(rows / sizes, sizes)
    order = np.argsort(points, kind="stable")
    return points[order], share[order], np.zeros(points.size)


@lru_cache(maxsize=MOST_APART)
def _even_places(n: int) -> tuple[FloatArray, float]:
    """(n,) places evenly apart about zero, and their spread (1 for a single place)."""
    places = (np.arange(n) + 0.5) / n - 0.5
    places.setflags(write=False)
    return places, float(np.sqrt(np.mean(places**2))) or 1.0


def tail_places(n: int, room: float, spread: float) -> FloatArray:
    """(n,) places about a mean, falling off upwards, none lower than -room; spread as given.

    Powers of an exponential's quantiles: the larger the spread, the higher the power.
    """
    steps = -np.log1p(-(np.arange(n) + 0.5) / n)
    shares, low, high = steps / steps[-1], 0.0, 30.0
    for _ in range(40):
        power = 0.5 * (low + high)
        raised = shares**power
        away = room * (raised / raised.mean() - 1.0)
        low, high = (power, high) if away.std() < spread else (low, power)
    return np.asarray(away)


def grouped(
    values: FloatArray, rows: FloatArray, holders: IntArray, min_rows: int, least_weight: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Neighbouring values joined into means, each of `min_rows` rows and of `least_weight` or more.

    What is left at the upper end joins the last group; too few rows for one group give none.

    Returns:
        The means, their rows and the standard deviations within the groups.
    """
    if holders.sum() < min_rows:
        return values[:0], rows[:0], rows[:0]
    if values.size <= MAX_POINTS and (holders >= min_rows).all():
        return values, rows, np.zeros(values.size)
    row_sum, weight_sum = np.cumsum(holders), np.cumsum(rows)
    # Views: a search in them takes a quarter of the time that NumPy takes to start one.
    row_view, weight_view = row_sum.data, weight_sum.data
    starts = [0]
    while True:  # at most MAX_POINTS rounds: a group has a share of the weight
        before = starts[-1]
        row_goal = min_rows + (row_view[before - 1] if before else 0)
        weight_goal = least_weight + (weight_view[before - 1] if before else 0.0)
        last = bisect_left(row_view, row_goal, before)
        last = max(last, bisect_left(weight_view, weight_goal, before))
        if last + 1 >= values.size or row_view[-1] - row_view[last] < min_rows:
            break
        starts.append(last + 1)
    sums = np.add.reduceat(rows, starts)
    shares = rows / np.repeat(sums, np.diff([*starts, values.size]))
    means = np.add.reduceat(shares * values, starts)
    away = values - np.repeat(means, np.diff([*starts, values.size]))
    size = np.abs(away).max(initial=0.0) or 1.0  # squares are taken of numbers up to 1
    return means, sums, size * np.sqrt(np.add.reduceat(shares * (away / size) ** 2, starts))
