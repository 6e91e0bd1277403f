"""Triton kernels of CP layers; the PyTorch twins are `cp_forward` and `cp_flows` in `inner`.

One launch covers a whole level. Every program owns its outputs, no atomics: results are the same
bits from run to run. Shapes: V (regions + 1, B, K) log-values, M (regions, B) the maximum that was
subtracted, W (partitions, K, K) as [p, output, k], G (inner regions, B, K) the ratio flow / value
in the scale of M, FP (slots, B, K) flows of the products, one slot a partition.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

# Values below this share of a region's largest count as this: ratios stay finite.
SMALLEST = tl.constexpr(1e-30)

# Offsets are not specialised: Triton would compile a variant for each kind of number they happen
# to be, and levels differ in nothing else.


@triton.jit
def matmul(a, b, acc, PRECISION: tl.constexpr):
    """acc + a @ b with float32 accumulation; PRECISION 0 float32, 1 tf32, 2 bf16 inputs."""
    if PRECISION == 2:
        acc = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    elif PRECISION == 1:
        acc = tl.dot(a, b, acc, input_precision="tf32")
    else:
        acc = tl.dot(a, b, acc, input_precision="ieee")
    return acc


@triton.jit
def log_products(
    V, children, n_children, stride, p, rows, ks, inside, B, K: tl.constexpr,
    ARITY: tl.constexpr,
):  # fmt: skip
    """Sum of the children's log-values for one partition, a (rows, ks) tile; -inf outside.

    ARITY is the number of children if all partitions have the same, else 0. Rows of `children`
    are `stride` long.
    """
    total = tl.zeros((rows.shape[0], ks.shape[0]), dtype=tl.float32)
    offsets = rows[:, None] * K + ks[None, :]
    if ARITY > 0:
        for a in tl.static_range(ARITY):
            child = tl.load(children + p * stride + a).to(tl.int64)
            total += tl.load(V + child * B * K + offsets, mask=inside, other=float("-inf"))
    else:
        for a in range(tl.load(n_children + p)):
            child = tl.load(children + p * stride + a).to(tl.int64)
            total += tl.load(V + child * B * K + offsets, mask=inside, other=float("-inf"))
    return tl.where(inside, total, float("-inf"))


@triton.jit
def weighted_sums(
    V, M, W, children, n_children, stride, start, stop, region, rows, outs, first, B,
    K: tl.constexpr, ARITY: tl.constexpr,
    BB: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Writes one region's (rows, outs) tile of V, and of M if `first`, from its partitions."""
    top = tl.full((BB,), float("-inf"), dtype=tl.float32)
    acc = tl.zeros((BB, BO), dtype=tl.float32)
    for p in range(start, stop):
        for k0 in range(0, K, BK):
            ks = k0 + tl.arange(0, BK)
            inside = (rows < B)[:, None] & (ks < K)[None, :]
            logs = log_products(V, children, n_children, stride, p, rows, ks, inside, B, K, ARITY)
            new = tl.maximum(top, tl.max(logs, axis=1))
            guard = tl.where(new == float("-inf"), 0.0, new)
            scaled = tl.exp(logs - guard[:, None])
            acc = acc * tl.exp(top - guard)[:, None]
            top = new
            w = tl.load(
                W + tl.cast(p, tl.int64) * K * K + outs[None, :] * K + ks[:, None],
                mask=(outs < K)[None, :] & (ks < K)[:, None],
                other=0.0,
            )  # (BK, BO)
            acc = matmul(scaled, w, acc, PRECISION)
    guard = tl.where(top == float("-inf"), 0.0, top)
    here = rows < B
    place = region.to(tl.int64) * B * K + rows[:, None] * K + outs[None, :]
    tl.store(V + place, tl.log(acc) + guard[:, None], mask=here[:, None] & (outs < K)[None, :])
    if first:
        tl.store(M + region.to(tl.int64) * B + rows, guard, mask=here)


@triton.jit(do_not_specialize=["region0", "stride"])
def cp_forward_kernel(
    V, M, W, children, n_children, stride, first_partition, region0, B,
    K: tl.constexpr, ARITY: tl.constexpr,
    BB: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    region = region0 + tl.program_id(0)
    weighted_sums(
        V, M, W, children, n_children, stride, tl.load(first_partition + region),
        tl.load(first_partition + region + 1), region,
        tl.program_id(1) * BB + tl.arange(0, BB), tl.program_id(2) * BO + tl.arange(0, BO),
        tl.program_id(2) == 0, B, K, ARITY, BB, BO, BK, PRECISION,
    )  # fmt: skip


@triton.jit(do_not_specialize=["region0", "skip", "n_tiles"])
def gather_flow_kernel(
    FP, V, M, G, N, parent_start, parent_slot, region0, skip, B, K: tl.constexpr, n_tiles,
    MODE: tl.constexpr, BB: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Adds up the flows a region gets from its parents.

    MODE 0 (leaves) writes the flow; 1 (CP) the ratio to the log-value V; 2 (Tucker) the ratio to
    the scaled value V. N (regions, tiles, K) gets the flow summed over the tile's rows.
    Region `skip` is the first of G.
    """
    region = region0 + tl.program_id(0)
    tile = tl.program_id(1)
    rows = tile * BB + tl.arange(0, BB)
    ks = tl.program_id(2) * BK + tl.arange(0, BK)
    inside = (rows < B)[:, None] & (ks < K)[None, :]
    offsets = rows[:, None] * K + ks[None, :]
    flow = tl.zeros((BB, BK), dtype=tl.float32)
    start = tl.load(parent_start + region)
    stop = tl.load(parent_start + region + 1)
    for number in tl.range(start, stop, num_stages=1):
        slot = tl.load(parent_slot + number)
        flow += tl.load(FP + slot.to(tl.int64) * B * K + offsets, mask=inside, other=0.0)
    tl.store(N + (region.to(tl.int64) * n_tiles + tile) * K + ks, tl.sum(flow, axis=0), mask=ks < K)
    place = region.to(tl.int64) * B * K + offsets
    if MODE == 0:
        result = flow
    else:
        value = tl.load(V + place, mask=inside, other=1.0)
        if MODE == 1:
            top = tl.load(M + region.to(tl.int64) * B + rows, mask=rows < B, other=0.0)
            value = tl.exp(value - top[:, None])
        result = flow / tl.maximum(value, SMALLEST)
    tl.store(G + (region - skip).to(tl.int64) * B * K + offsets, result, mask=inside)


@triton.jit(do_not_specialize=["partition0", "stride", "n_leaves"])
def cp_product_flow_kernel(
    V, M, W, G, FP, children, n_children, stride, owner, partition0, B, n_leaves,
    K: tl.constexpr, ARITY: tl.constexpr,
    BB: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Flows of one partition's products."""
    p = (partition0 + tl.program_id(0)).to(tl.int64)
    rows = tl.program_id(1) * BB + tl.arange(0, BB)
    ks = tl.program_id(2) * BK + tl.arange(0, BK)
    region = tl.load(owner + p).to(tl.int64)
    here = rows < B
    inside = here[:, None] & (ks < K)[None, :]
    acc = tl.zeros((BB, BK), dtype=tl.float32)
    for o0 in range(0, K, BO):
        outs = o0 + tl.arange(0, BO)
        g = tl.load(
            G + (region - n_leaves) * B * K + rows[:, None] * K + outs[None, :],
            mask=here[:, None] & (outs < K)[None, :],
            other=0.0,
        )
        w = tl.load(
            W + p * K * K + outs[:, None] * K + ks[None, :],
            mask=(outs < K)[:, None] & (ks < K)[None, :],
            other=0.0,
        )
        acc = matmul(g, w, acc, PRECISION)
    top = tl.load(M + region * B + rows, mask=here, other=0.0)
    logs = log_products(V, children, n_children, stride, p, rows, ks, inside, B, K, ARITY)
    flow = tl.where(inside, acc * tl.exp(logs - top[:, None]), 0.0)
    tl.store(FP + p * B * K + rows[:, None] * K + ks[None, :], flow, mask=inside)


@triton.jit(do_not_specialize=["stride", "n_leaves"])
def cp_update_kernel(
    V, M, W, G, keep, gain, extra, children, n_children, stride, owner, B,
    n_leaves, K: tl.constexpr, ARITY: tl.constexpr,
    BB: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Edge flows of one weight tile over the whole batch, and the update in the same program.

    W <- W * (keep + gain * edge ratio) + extra with keep, gain, extra (inner regions, K).
    """
    p = tl.program_id(0).to(tl.int64)
    outs = tl.program_id(1) * BO + tl.arange(0, BO)
    ks = tl.program_id(2) * BK + tl.arange(0, BK)
    region = tl.load(owner + p).to(tl.int64)
    acc = tl.zeros((BO, BK), dtype=tl.float32)
    for b0 in range(0, B, BB):
        rows = b0 + tl.arange(0, BB)
        here = rows < B
        g = tl.load(
            G + (region - n_leaves) * B * K + rows[None, :] * K + outs[:, None],
            mask=here[None, :] & (outs < K)[:, None],
            other=0.0,
        )  # (BO, BB)
        top = tl.load(M + region * B + rows, mask=here, other=0.0)
        inside = here[:, None] & (ks < K)[None, :]
        logs = log_products(V, children, n_children, stride, p, rows, ks, inside, B, K, ARITY)
        acc = matmul(g, tl.exp(logs - top[:, None]), acc, PRECISION)
    valid = (outs < K)[:, None] & (ks < K)[None, :]
    place = p * K * K + outs[:, None] * K + ks[None, :]
    w = tl.load(W + place, mask=valid, other=0.0)
    node = (region - n_leaves) * K + outs
    a = tl.load(keep + node, mask=outs < K, other=0.0)
    c = tl.load(gain + node, mask=outs < K, other=0.0)
    d = tl.load(extra + node, mask=outs < K, other=0.0)
    tl.store(W + place, w * (a[:, None] + c[:, None] * acc) + d[:, None], mask=valid)
