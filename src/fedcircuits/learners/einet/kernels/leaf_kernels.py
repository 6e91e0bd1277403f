"""Triton kernels of leaf layers; the twins are the families' `log_prob`, `statistics`, `update`.

X is (B, variables), any number type; `known` (B, variables) is read only if MASKED. Slots of leaf
region r are slot_start[r] .. slot_start[r + 1] - 1; the flow of slot s is F[flow_of[s]], (B, K).
One program owns what it writes.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from fedcircuits.learners.einet.kernels.cp import matmul

LOG_2PI = tl.constexpr(1.8378770664093453)


@triton.jit
def gaussian_forward_kernel(
    X, known, mean, variance, V, slot_start, slot_variable, scale, B, D, K: tl.constexpr,
    MASKED: tl.constexpr, BB: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    region = tl.program_id(0)
    rows = tl.program_id(1) * BB + tl.arange(0, BB)
    ks = tl.program_id(2) * BK + tl.arange(0, BK)
    here = rows < B
    total = tl.zeros((BB, BK), dtype=tl.float32)
    for slot in range(tl.load(slot_start + region), tl.load(slot_start + region + 1)):
        variable = tl.load(slot_variable + slot)
        x = tl.load(X + rows * D + variable, mask=here, other=0).to(tl.float32) * scale
        mu = tl.load(mean + slot * K + ks, mask=ks < K, other=0.0)
        var = tl.load(variance + slot * K + ks, mask=ks < K, other=1.0)
        offset = -0.5 * (tl.log(var) + LOG_2PI)
        away = x[:, None] - mu[None, :]
        logs = offset[None, :] - away * away * (0.5 / var)[None, :]
        if MASKED:
            seen = tl.load(known + rows * D + variable, mask=here, other=0)
            logs = tl.where((seen != 0)[:, None], logs, 0.0)
        total += logs
    place = region.to(tl.int64) * B * K + rows[:, None] * K + ks[None, :]
    tl.store(V + place, total, mask=here[:, None] & (ks < K)[None, :])


@triton.jit
def gaussian_statistics_kernel(
    X, known, F, centre, n_out, first_out, second_out, flow_of, slot_variable, scale, B, D,
    K: tl.constexpr, MASKED: tl.constexpr, BB: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0)
    ks = tl.program_id(1) * BK + tl.arange(0, BK)
    source = tl.load(flow_of + slot).to(tl.int64)
    variable = tl.load(slot_variable + slot)
    middle = tl.load(centre + slot)
    n = tl.zeros((BK,), dtype=tl.float32)
    first = tl.zeros((BK,), dtype=tl.float32)
    second = tl.zeros((BK,), dtype=tl.float32)
    for b0 in range(0, B, BB):
        rows = b0 + tl.arange(0, BB)
        here = rows < B
        x = tl.load(X + rows * D + variable, mask=here, other=0).to(tl.float32) * scale - middle
        inside = here[:, None] & (ks < K)[None, :]
        flow = tl.load(F + source * B * K + rows[:, None] * K + ks[None, :], mask=inside, other=0.0)
        if MASKED:
            seen = tl.load(known + rows * D + variable, mask=here, other=0)
            flow = tl.where((seen != 0)[:, None], flow, 0.0)
        n += tl.sum(flow, axis=0)
        first += tl.sum(flow * x[:, None], axis=0)
        second += tl.sum(flow * (x * x)[:, None], axis=0)
    place = slot * K + ks
    tl.store(n_out + place, n, mask=ks < K)
    tl.store(first_out + place, first, mask=ks < K)
    tl.store(second_out + place, second, mask=ks < K)


@triton.jit
def categorical_forward_kernel(
    X, known, probs, V, slot_start, slot_variable, B, D, K: tl.constexpr, C: tl.constexpr,
    MASKED: tl.constexpr, BB: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    region = tl.program_id(0)
    rows = tl.program_id(1) * BB + tl.arange(0, BB)
    ks = tl.program_id(2) * BK + tl.arange(0, BK)
    here = rows < B
    inside = here[:, None] & (ks < K)[None, :]
    total = tl.zeros((BB, BK), dtype=tl.float32)
    for slot in range(tl.load(slot_start + region), tl.load(slot_start + region + 1)):
        variable = tl.load(slot_variable + slot)
        code = tl.load(X + rows * D + variable, mask=here, other=0).to(tl.int64)
        entry = (tl.cast(slot, tl.int64) * C + code) * K
        logs = tl.log(tl.load(probs + entry[:, None] + ks[None, :], mask=inside, other=1.0))
        if MASKED:
            seen = tl.load(known + rows * D + variable, mask=here, other=0)
            logs = tl.where((seen != 0)[:, None], logs, 0.0)
        total += logs
    place = region.to(tl.int64) * B * K + rows[:, None] * K + ks[None, :]
    tl.store(V + place, total, mask=inside)


@triton.jit
def categorical_update_kernel(
    X, known, F, probs, prior, mass, flow_of, slot_variable, step_at, pseudo_count,
    spread, n_rows, B, D, K: tl.constexpr, C: tl.constexpr,
    MASKED: tl.constexpr, BY_MASS: tl.constexpr, BLUR: tl.constexpr,
    BB: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Counts codes by a product with one-hot rows, then updates: probabilities read once.

    If BLUR, a code counts as its row of `spread` (C, C).
    """
    slot = tl.program_id(0)
    ks = tl.program_id(1) * BK + tl.arange(0, BK)
    codes = tl.arange(0, BC)
    source = tl.load(flow_of + slot).to(tl.int64)
    variable = tl.load(slot_variable + slot)
    counts = tl.zeros((BC, BK), dtype=tl.float32)
    n = tl.zeros((BK,), dtype=tl.float32)
    for b0 in range(0, B, BB):
        rows = b0 + tl.arange(0, BB)
        here = rows < B
        code = tl.load(X + rows * D + variable, mask=here, other=0).to(tl.int32)
        inside = here[:, None] & (ks < K)[None, :]
        flow = tl.load(F + source * B * K + rows[:, None] * K + ks[None, :], mask=inside, other=0.0)
        if MASKED:
            seen = tl.load(known + rows * D + variable, mask=here, other=0)
            flow = tl.where((seen != 0)[:, None], flow, 0.0)
        n += tl.sum(flow, axis=0)
        if BLUR:
            entry = spread + code[None, :] * C + codes[:, None]
            one_hot = tl.load(entry, mask=(codes < C)[:, None], other=0.0)
        else:
            one_hot = (codes[:, None] == code[None, :]).to(tl.float32)
        counts = matmul(one_hot, flow, counts, PRECISION)
    step = tl.load(step_at)
    if BY_MASS:
        old = tl.load(mass + slot * K + ks, mask=ks < K, other=0.0)
        share = step * n / n_rows
        new = old * (1 - step) + share
        tl.store(mass + slot * K + ks, new, mask=ks < K)
        rate = tl.where(new > 0, share / tl.where(new > 0, new, 1.0), 0.0)
        # Division is off by two units in the last place: beyond one, a probability could end
        # below zero, and every likelihood that reads it would be no number.
        rate = tl.minimum(rate, 1.0)
    else:
        rate = tl.zeros((BK,), dtype=tl.float32) + step
    rate = tl.where(n > 0, rate, 0.0)
    valid = (codes < C)[:, None] & (ks < K)[None, :]
    place = (slot.to(tl.int64) * C + codes[:, None]) * K + ks[None, :]
    p = tl.load(probs + place, mask=valid, other=0.0)
    base = tl.load(prior + slot * C + codes, mask=codes < C, other=0.0)
    # Counts in reduced precision add up to their own sum, not quite to n.
    total = tl.sum(counts, axis=0)
    total = tl.where(total > 0, total, 1.0) + pseudo_count
    target = (counts + pseudo_count * base[:, None]) / total[None, :]
    moved = (1 - rate)[None, :] * p + rate[None, :] * target
    moved = moved / tl.where(ks < K, tl.sum(moved, axis=0), 1.0)[None, :]
    # A step of size 0 leaves every bit as it was.
    tl.store(probs + place, tl.where(step > 0, moved, p), mask=valid)
