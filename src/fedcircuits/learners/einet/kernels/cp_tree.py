"""Triton kernels of CP layers whose inner regions have one parent and one partition: trees.

Where a tree is narrow, one program walks up or down a whole subtree for its rows, since rows do
not depend on each other: two launches take the place of three a level. A region's flow is that of
its parent's product, and region r has partition r - leaves. Shapes as in `cp`.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from fedcircuits.learners.einet.kernels.cp import SMALLEST, log_products, matmul, weighted_sums


@triton.jit(do_not_specialize=["stride", "n_leaves"])
def tree_up_kernel(
    V, M, W, children, n_children, stride, order, starts, n_leaves, B,
    K: tl.constexpr, ARITY: tl.constexpr,
    BB: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Log-values of whole subtrees: regions order[starts[t]] .. order[starts[t + 1] - 1]."""
    rows = tl.program_id(1) * BB + tl.arange(0, BB)
    start = tl.load(starts + tl.program_id(0))
    stop = tl.load(starts + tl.program_id(0) + 1)
    for number in tl.range(start, stop, num_stages=1):
        region = tl.load(order + number)
        p = region - n_leaves
        for o0 in range(0, K, BO):
            weighted_sums(
                V, M, W, children, n_children, stride, p, p + 1, region, rows,
                o0 + tl.arange(0, BO), o0 == 0, B, K, ARITY, BB, BO, BK, PRECISION,
            )  # fmt: skip
        tl.debug_barrier()  # the next region reads what all threads of this one wrote


@triton.jit
def product_flows(
    V, M, W, G, FP, N, children, n_children, stride, parent, region, n_leaves, rows, ks, first,
    tile, n_tiles, B, K: tl.constexpr, ARITY: tl.constexpr,
    BB: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Flows of one region's products from its parent's; G and N are written if `first`."""
    p = (region - n_leaves).to(tl.int64)
    slot = tl.load(parent + region).to(tl.int64)
    here = rows < B
    top = tl.load(M + region.to(tl.int64) * B + rows, mask=here, other=0.0)
    acc = tl.zeros((BB, BK), dtype=tl.float32)
    for o0 in range(0, K, BO):
        outs = o0 + tl.arange(0, BO)
        mask = here[:, None] & (outs < K)[None, :]
        offsets = rows[:, None] * K + outs[None, :]
        flow = tl.load(FP + slot * B * K + offsets, mask=mask, other=0.0)
        value = tl.load(V + region.to(tl.int64) * B * K + offsets, mask=mask, other=0.0)
        value = tl.exp(value - top[:, None])
        ratio = tl.where(mask, flow / tl.maximum(value, SMALLEST), 0.0)
        if first:
            tl.store(G + p * B * K + offsets, ratio, mask=mask)
            total = tl.sum(flow, axis=0)
            place = (region.to(tl.int64) * n_tiles + tile) * K + outs
            tl.store(N + place, total, mask=outs < K)
        w = tl.load(
            W + p * K * K + outs[:, None] * K + ks[None, :],
            mask=(outs < K)[:, None] & (ks < K)[None, :],
            other=0.0,
        )
        acc = matmul(ratio, w, acc, PRECISION)
    inside = here[:, None] & (ks < K)[None, :]
    logs = log_products(V, children, n_children, stride, p, rows, ks, inside, B, K, ARITY)
    flow = tl.where(inside, acc * tl.exp(logs - top[:, None]), 0.0)
    tl.store(FP + p * B * K + rows[:, None] * K + ks[None, :], flow, mask=inside)


@triton.jit(do_not_specialize=["stride", "n_leaves", "n_tiles"])
def tree_down_kernel(
    V, M, W, G, FP, N, children, n_children, stride, parent, order, starts, n_leaves, n_tiles, B,
    K: tl.constexpr, ARITY: tl.constexpr,
    BB: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Flows of the products of whole subtrees, from their tops down."""
    rows = tl.program_id(1) * BB + tl.arange(0, BB)
    start = tl.load(starts + tl.program_id(0))
    stop = tl.load(starts + tl.program_id(0) + 1)
    for number in tl.range(start, stop, num_stages=1):
        region = tl.load(order + (start + stop - 1 - number))
        for k0 in range(0, K, BK):
            product_flows(
                V, M, W, G, FP, N, children, n_children, stride, parent, region, n_leaves, rows,
                k0 + tl.arange(0, BK), k0 == 0, tl.program_id(1), n_tiles, B, K, ARITY,
                BB, BO, BK, PRECISION,
            )  # fmt: skip
        tl.debug_barrier()  # the next region reads what all threads of this one wrote
