"""Class-conditional structures: the inner regions of a graph once for every class."""

from __future__ import annotations

from fedcircuits.learners.einet.structures.regions import GraphBuilder, RegionGraph


def class_copies(graph: RegionGraph, n_classes: int) -> RegionGraph:
    """Return the graph whose root splits into one copy of itself for every class.

    Leaf regions are shared: classes have sums of their own over leaves that all rows train. Which
    copy belongs to which class is a matter of the root's weights: its partitions are made class by
    class (`network.with_own_sums`).
    """
    builder = GraphBuilder(graph.n_variables)
    leaves = set(graph.leaf_regions)
    root = builder.region("root", range(graph.n_variables))

    def copy_of(region: int, number: int) -> int:
        key = region if region in leaves else (region, number)
        return builder.region(key, graph.scopes[region])

    for number in range(n_classes):
        for partition in graph.partitions:
            children = [copy_of(child, number) for child in partition.children]
            if partition.region == graph.root:
                builder.split(root, children)
            else:
                builder.split(copy_of(partition.region, number), children)
    return builder.finish(root, graph.kind)
