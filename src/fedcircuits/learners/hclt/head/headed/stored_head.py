"""A headed circuit read from a record, checked part by part."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedcircuits.density.fit_report import FitReport
from fedcircuits.encoding import Record
from fedcircuits.errors import StorageError
from fedcircuits.learners.hclt.head.pool import Pool
from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees
from fedcircuits.learners.hclt.head.trees.number_trees import NumberTrees
from fedcircuits.learners.hclt.tree.class_tree import ClassTree
from fedcircuits.learners.prepare import n_states
from fedcircuits.schema import Schema


def parts_of(
    record: Record,
) -> tuple[ClassTree, Schema, str, BoostedTrees | NumberTrees, Pool, FitReport | None]:
    """The arguments of a `HeadedCircuit`; what is not as it should be is a `StorageError`."""
    header = record.header
    schema, label = Schema.from_json(header["schema"]), header["label"]
    columns = [v for v in schema if v.name != label]
    if any(not v.is_coded and v.grid is None for v in schema):
        raise StorageError("a number in the file has no grid")
    n_classes = n_states(schema[label])
    tree = ClassTree.from_arrays(_under("tree.", record), [n_states(v) for v in columns], n_classes)
    classes = record.arrays["pool.classes"].astype(np.int64)
    if (
        classes.size < 2
        or (np.diff(classes) <= 0).any()
        or classes[0] < 0
        or classes[-1] >= n_classes
    ):
        raise StorageError("the classes of the head in the file are not those of its label")
    n_outputs = 1 if classes.size == 2 else classes.size
    trees: BoostedTrees | NumberTrees
    if schema[label].is_coded:
        trees = BoostedTrees.from_arrays(_under("trees.", record), len(columns), n_outputs)
    else:
        trees = NumberTrees.from_arrays(_under("trees.", record), len(columns), classes.size)
    shift = record.arrays["pool.shift"].astype(float)
    tilt, of_trees, limit = (float(header["pool"][name]) for name in ("tilt", "trees", "limit"))
    if (
        shift.shape != classes.shape
        or not np.isfinite([*shift, tilt, of_trees, limit]).all()
        or min(tilt, of_trees, limit) < 0
    ):
        raise StorageError("the weights of the head in the file are not numbers, one a class")
    report = header["fit_report"]
    return (
        tree,
        schema,
        label,
        trees,
        Pool(tilt, of_trees, shift, classes, limit),
        None if report is None else FitReport.from_json(report),
    )


def _under(prefix: str, record: Record) -> dict[str, Any]:
    start = len(prefix)
    return {k[start:]: array for k, array in record.arrays.items() if k.startswith(prefix)}
