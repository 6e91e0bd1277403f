"""Hidden Chow-Liu trees (HCLT): one hidden state per variable, linked as the Chow-Liu tree says.

The tree's edges come from pairwise mutual information of the data; each variable i gets a hidden
variable of K states, the observed value hanging below it. As a region graph: region "message i"
is the subtree below variable i, split once into the leaf {i} and the messages of i's children.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import breadth_first_order

from fedcircuits.errors import StructureError
from fedcircuits.learners.einet.structures.regions import GraphBuilder, RegionGraph
from fedcircuits.learners.spanning_tree import maximum_spanning_tree


def mutual_information(
    codes: NDArray[np.integer],
    n_codes: int,
    pseudo_count: float = 0.1,
    device: str = "cpu",
    block: int = 64,
) -> NDArray[np.float64]:
    """Pairwise mutual information in nats.

    Args:
        codes: Values 0 .. n_codes - 1 (or -1 for missing, which counts in no pair),
            shape (n, variables).
        n_codes: Number of codes.
        pseudo_count: Rows added to every pair, spread evenly over its cells.
        device: Where to count; 3072 variables want a GPU.
        block: Variables counted against all others at a time; bounds the memory.

    Returns:
        Symmetric matrix (variables, variables); the diagonal holds entropies.
    """
    n, d = codes.shape
    given = torch.as_tensor(np.ascontiguousarray(codes, dtype=np.int64), device=device)
    # Counts are exact in float32 up to 16.7M rows, and 0/1 inputs are exact in tf32.
    one_hot = torch.zeros((n, d, n_codes), dtype=torch.float32, device=device)
    one_hot.scatter_(2, given.clamp(min=0).unsqueeze(2), (given >= 0).float().unsqueeze(2))
    flat = one_hot.view(n, d * n_codes)
    information = torch.empty((d, d), dtype=torch.float32, device=device)
    for start in range(0, d, block):
        stop = min(start + block, d)
        part = flat[:, start * n_codes : stop * n_codes]
        joint = (part.T @ flat).view(stop - start, n_codes, d, n_codes)
        joint += pseudo_count / n_codes**2
        joint /= joint.sum(dim=(1, 3), keepdim=True)
        own = torch.special.xlogy(joint, joint).sum(dim=(1, 3))
        left, right = joint.sum(dim=3), joint.sum(dim=1)
        entropy = torch.special.xlogy(left, left).sum(1) + torch.special.xlogy(right, right).sum(2)
        information[start:stop] = own - entropy
    result = information.cpu().numpy().astype(np.float64)
    return np.asarray(np.maximum((result + result.T) / 2, 0.0))


def chow_liu_parents(information: NDArray[np.float64]) -> NDArray[np.int64]:
    """Maximum spanning tree of a mutual-information matrix, rooted at its centre.

    The centre keeps the tree shallow, and a level is one step on the device.

    Returns:
        Parent of every variable, -1 at the root, shape (variables,).
    """
    d = information.shape[0]
    if d == 1:
        return np.array([-1])
    # Constant pixels tie with everything at zero: a breath of fixed noise spreads them over the
    # tree instead of hanging them all on one variable.
    noise = np.random.default_rng(0).random((d, d)) * 1e-7
    information = information + noise + noise.T
    starts, ends = np.array(maximum_spanning_tree(information)).T
    tree = coo_matrix((np.ones(d - 1), (ends, starts)), shape=(d, d))
    far = int(breadth_first_order(tree, 0, directed=False)[0][-1])
    order, before = breadth_first_order(tree, far, directed=False)
    path = [int(order[-1])]
    while before[path[-1]] >= 0:
        path.append(int(before[path[-1]]))
    centre = path[len(path) // 2]
    _, parents = breadth_first_order(tree, centre, directed=False)
    return np.where(parents < 0, -1, parents).astype(np.int64)


def hidden_tree(parents: NDArray[np.int64]) -> RegionGraph:
    """The region graph of a hidden tree with these parents (-1 at the one root)."""
    d = len(parents)
    roots = np.flatnonzero(parents < 0)
    if len(roots) != 1:
        raise StructureError([f"hidden tree: expected one root, found {len(roots)}"])
    children: list[list[int]] = [[] for _ in range(d)]
    for variable, parent in enumerate(parents):
        if parent >= 0:
            children[int(parent)].append(variable)
    order = [int(roots[0])]
    for variable in order:
        order.extend(children[variable])
    if len(order) != d:
        raise StructureError(["hidden tree: the parents contain a cycle"])
    builder = GraphBuilder(d)
    for variable in range(d):
        builder.region(("leaf", variable), (variable,))
    below: dict[int, list[int]] = {}
    for variable in reversed(order):
        scope = [variable]
        for child in children[variable]:
            scope.extend(below[child])
        below[variable] = scope
        message = builder.region(("message", variable), scope)
        parts = [builder.region(("leaf", variable), (variable,))]
        parts += [builder.region(("message", child), ()) for child in children[variable]]
        builder.split(message, parts)
    root = builder.region(("message", order[0]), ())
    return builder.finish(root, "hclt")


def coarse_codes(values: NDArray[np.generic], n_codes: int) -> NDArray[np.int64]:
    """Equal-width codes of each column's range, for mutual information only.

    Args:
        values: Numbers, NaN for missing, shape (n, variables).
        n_codes: Number of codes.

    Returns:
        Codes, -1 where missing, shape (n, variables).
    """
    numbers = np.asarray(values, dtype=np.float64)
    missing = np.isnan(numbers)
    low = np.min(np.where(missing, np.inf, numbers), axis=0)
    high = np.max(np.where(missing, -np.inf, numbers), axis=0)
    low = np.where(missing.all(axis=0), 0.0, low)  # a column without any value has no range
    span = np.where(high > low, high - low, 1.0)
    scaled = (np.where(missing, low, numbers) - low) / span
    codes = np.minimum((scaled * n_codes).astype(np.int64), n_codes - 1)
    return np.where(missing, -1, codes)


def hidden_chow_liu_tree(
    values: NDArray[np.generic],
    n_codes: int = 8,
    max_rows: int = 10_000,
    device: str = "cpu",
) -> RegionGraph:
    """The hidden Chow-Liu tree of data.

    Args:
        values: Numbers, NaN for missing, shape (n, variables).
        n_codes: Levels each column is coarsened to for its mutual information.
        max_rows: Rows looked at, evenly spaced.
        device: Where the pairs are counted.

    Returns:
        The region graph.
    """
    step = max(1, len(values) // max_rows)
    codes = coarse_codes(values[::step][:max_rows], n_codes)
    return hidden_tree(chow_liu_parents(mutual_information(codes, n_codes, device=device)))
