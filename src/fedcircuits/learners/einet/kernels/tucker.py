"""Triton kernels of Tucker layers; twins are `tucker_forward` and `tucker_flows` in `inner`.

Every region keeps its row maximum M (regions, B) and E = exp(value - M), (regions, B, K): the
outer product of two such rows has a maximum of one, so it can be formed tile by tile in registers
and never reaches memory. W is (partitions, K, K * K) as [p, output, left * K + right].
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from fedcircuits.learners.einet.kernels.cp import matmul


@triton.jit
def scale_kernel(V, E, M, B, K: tl.constexpr, BB: tl.constexpr, BK: tl.constexpr):
    """Row maximum and scaled values of log-values."""
    region = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * BB + tl.arange(0, BB)
    ks = tl.arange(0, BK)
    inside = (rows < B)[:, None] & (ks < K)[None, :]
    place = region * B * K + rows[:, None] * K + ks[None, :]
    logs = tl.load(V + place, mask=inside, other=float("-inf"))
    top = tl.max(logs, axis=1)
    guard = tl.where(top == float("-inf"), 0.0, top)
    tl.store(E + place, tl.exp(logs - guard[:, None]), mask=inside)
    tl.store(M + region * B + rows, top, mask=rows < B)


@triton.jit(do_not_specialize=["partition0"])
def tucker_forward_kernel(
    E, W, T, children, partition0, B, K: tl.constexpr, BB: tl.constexpr, BK: tl.constexpr,
    SHARES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """T[p, share] (B, K) = sum over left i, right j of W times the scaled outer product.

    For every i one product (rows x j) (j x outputs) whose left factor does not change, weighted by
    the left child's column i as it is added: the outer product is never formed. A narrow level's
    partitions are shared out, each program taking some of the i.
    """
    local = tl.program_id(1)
    share = tl.program_id(2)
    p = (partition0 + local).to(tl.int64)
    rows = tl.program_id(0) * BB + tl.arange(0, BB)
    here = rows < B
    outs = tl.arange(0, BK)
    js = tl.arange(0, BK)
    left = tl.load(children + 2 * p).to(tl.int64) * B * K
    right = tl.load(children + 2 * p + 1).to(tl.int64) * B * K
    inside = here[:, None] & (js < K)[None, :]
    r = tl.load(E + right + rows[:, None] * K + js[None, :], mask=inside, other=0.0)
    square = (js < K)[:, None] & (outs < K)[None, :]
    tile = W + p * K * K * K + outs[None, :] * (K * K) + js[:, None]
    acc = tl.zeros((BB, BK), dtype=tl.float32)
    per_share: tl.constexpr = (K + SHARES - 1) // SHARES
    for i in range(share * per_share, tl.minimum(K, (share + 1) * per_share)):
        w = tl.load(tile + i * K, mask=square, other=0.0)  # (j, outputs)
        column = tl.load(E + left + rows * K + i, mask=here, other=0.0)
        part = tl.zeros((BB, BK), dtype=tl.float32)
        part = matmul(r, w, part, PRECISION)
        acc += part * column[:, None]
    place = (local * SHARES + share).to(tl.int64) * B * K + rows[:, None] * K + outs[None, :]
    tl.store(T + place, acc, mask=here[:, None] & (outs < K)[None, :])


@triton.jit(do_not_specialize=["region0", "partition0"])
def tucker_combine_kernel(
    T, E, M, children, first_partition, region0, partition0, B, K: tl.constexpr,
    BB: tl.constexpr, BK: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """Sums a region's partitions in their common scale; writes E and M of the region."""
    region = (region0 + tl.program_id(0)).to(tl.int64)
    rows = tl.program_id(1) * BB + tl.arange(0, BB)
    here = rows < B
    ks = tl.arange(0, BK)
    inside = here[:, None] & (ks < K)[None, :]
    start = tl.load(first_partition + region)
    stop = tl.load(first_partition + region + 1)
    best = tl.full((BB,), float("-inf"), dtype=tl.float32)
    for p in tl.range(start, stop, num_stages=1):
        left = tl.load(children + 2 * p).to(tl.int64)
        right = tl.load(children + 2 * p + 1).to(tl.int64)
        scale = tl.load(M + left * B + rows, mask=here, other=0.0)
        scale += tl.load(M + right * B + rows, mask=here, other=0.0)
        best = tl.maximum(best, scale)
    guard = tl.where(best == float("-inf"), 0.0, best)
    out = tl.zeros((BB, BK), dtype=tl.float32)
    for p in tl.range(start, stop, num_stages=1):
        left = tl.load(children + 2 * p).to(tl.int64)
        right = tl.load(children + 2 * p + 1).to(tl.int64)
        scale = tl.load(M + left * B + rows, mask=here, other=0.0)
        scale += tl.load(M + right * B + rows, mask=here, other=0.0)
        place = tl.cast(p - partition0, tl.int64) * SHARES * B * K + rows[:, None] * K + ks[None, :]
        part = tl.load(T + place, mask=inside, other=0.0)
        for share in tl.static_range(1, SHARES):
            part += tl.load(T + place + share * B * K, mask=inside, other=0.0)
        out += part * tl.exp(scale - guard)[:, None]
    top = tl.max(out, axis=1)
    safe = tl.where(top > 0, top, 1.0)
    place = region * B * K + rows[:, None] * K + ks[None, :]
    tl.store(E + place, out / safe[:, None], mask=inside)
    tl.store(M + region * B + rows, tl.where(top > 0, guard + tl.log(safe), float("-inf")), here)


@triton.jit
def _relative_scale(M, left, right, region, rows, B):
    """exp(M_left + M_right - M_region), 0 where the region is impossible."""
    here = rows < B
    own = tl.load(M + region * B + rows, mask=here, other=float("-inf"))
    both = tl.load(M + left * B + rows, mask=here, other=0.0)
    both += tl.load(M + right * B + rows, mask=here, other=0.0)
    possible = own > float("-inf")
    return tl.where(possible, tl.exp(both - tl.where(possible, own, 0.0)), 0.0)


@triton.jit(do_not_specialize=["partition0", "right0", "n_leaves"])
def tucker_product_flow_kernel(
    E, M, W, G, FP, children, owner, partition0, right0, B, n_leaves,
    K: tl.constexpr, BB: tl.constexpr, BK: tl.constexpr, SHARES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Flows to the left and right child of one partition.

    The left child's are slot p of FP (slots, B, K); the right child's are in one slot for each
    share of the i, from `right0` on.
    """
    local = tl.program_id(1)
    share = tl.program_id(2)
    p = (partition0 + local).to(tl.int64)
    rows = tl.program_id(0) * BB + tl.arange(0, BB)
    here = rows < B
    outs = tl.arange(0, BK)
    js = tl.arange(0, BK)
    region = tl.load(owner + p).to(tl.int64)
    left = tl.load(children + 2 * p).to(tl.int64)
    right = tl.load(children + 2 * p + 1).to(tl.int64)
    scale = _relative_scale(M, left, right, region, rows, B)
    inside = here[:, None] & (js < K)[None, :]
    tile = rows[:, None] * K + js[None, :]
    g = tl.load(G + (region - n_leaves) * B * K + tile, mask=inside, other=0.0)
    g = g * scale[:, None]  # (rows, outputs)
    r = tl.load(E + right * B * K + tile, mask=inside, other=0.0)  # (rows, j)
    to_right = tl.zeros((BB, BK), dtype=tl.float32)
    square = (outs < K)[:, None] & (js < K)[None, :]
    weights = W + p * K * K * K + outs[:, None] * (K * K) + js[None, :]
    per_share: tl.constexpr = (K + SHARES - 1) // SHARES
    for i in range(share * per_share, tl.minimum(K, (share + 1) * per_share)):
        w = tl.load(weights + i * K, mask=square, other=0.0)  # (outputs, j)
        column = tl.load(E + left * B * K + rows * K + i, mask=here, other=0.0)
        pulled = tl.zeros((BB, BK), dtype=tl.float32)
        pulled = matmul(g, w, pulled, PRECISION)
        to_right += pulled * column[:, None]
        to_left = tl.sum(pulled * r, axis=1) * column
        tl.store(FP + p * B * K + rows * K + i, to_left, mask=here)
    slot = (right0 + local * SHARES + share).to(tl.int64)
    tl.store(FP + slot * B * K + tile, to_right * r, mask=inside)


@triton.jit(do_not_specialize=["n_leaves"])
def tucker_update_kernel(
    E, M, W, low, G, keep, gain, extra, children, owner, B, n_leaves,
    K: tl.constexpr, BB: tl.constexpr, BK: tl.constexpr, BI: tl.constexpr,
    PRECISION: tl.constexpr, ONE_TILE: tl.constexpr, LOW: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Edge flows of BI slices of a partition's weights over the whole batch, and their update.

    If LOW, a bf16 copy of the new weights goes to `low`, for the other two kernels to read.
    """
    p = tl.program_id(1).to(tl.int64)
    outs = tl.arange(0, BK)
    js = tl.arange(0, BK)
    region = tl.load(owner + p).to(tl.int64)
    left = tl.load(children + 2 * p).to(tl.int64)
    right = tl.load(children + 2 * p + 1).to(tl.int64)
    node = (region - n_leaves) * K + outs
    a = tl.load(keep + node, mask=outs < K, other=0.0)
    c = tl.load(gain + node, mask=outs < K, other=0.0)
    d = tl.load(extra + node, mask=outs < K, other=0.0)
    square = (js < K)[:, None] & (outs < K)[None, :]
    rows = tl.arange(0, BB)
    here = rows < B
    by_row = here[None, :] & (js < K)[:, None]
    if ONE_TILE:
        scale = _relative_scale(M, left, right, region, rows, B)
        g = tl.load(
            G + (region - n_leaves) * B * K + rows[:, None] * K + outs[None, :],
            mask=here[:, None] & (outs < K)[None, :],
            other=0.0,
        )
        g = g * scale[:, None]  # (rows, outputs)
        r = tl.load(E + right * B * K + rows[None, :] * K + js[:, None], mask=by_row, other=0.0)
    for number in tl.range(0, BI, num_stages=STAGES):
        i = tl.program_id(0) * BI + number
        edge = tl.zeros((BK, BK), dtype=tl.float32)  # (j, outputs)
        if ONE_TILE:
            column = tl.load(E + left * B * K + rows * K + i, mask=here & (i < K), other=0.0)
            edge = matmul(r * column[None, :], g, edge, PRECISION)
        else:
            for b0 in range(0, B, BB):
                now = b0 + tl.arange(0, BB)
                legal = now < B
                scale = _relative_scale(M, left, right, region, now, B)
                g = tl.load(
                    G + (region - n_leaves) * B * K + now[:, None] * K + outs[None, :],
                    mask=legal[:, None] & (outs < K)[None, :],
                    other=0.0,
                )
                r = tl.load(
                    E + right * B * K + now[None, :] * K + js[:, None],
                    mask=legal[None, :] & (js < K)[:, None],
                    other=0.0,
                )
                column = tl.load(E + left * B * K + now * K + i, mask=legal & (i < K), other=0.0)
                edge = matmul(r * column[None, :], g * scale[:, None], edge, PRECISION)
        place = p * K * K * K + outs[None, :] * (K * K) + i * K + js[:, None]
        valid = square & (i < K)
        w = tl.load(W + place, mask=valid, other=0.0)
        w = w * (a[None, :] + c[None, :] * edge) + d[None, :]
        tl.store(W + place, w, mask=valid)
        if LOW:
            tl.store(low + place, w.to(tl.bfloat16), mask=valid)
