"""A network and its parameters as a header and arrays, for files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedcircuits.learners.einet.leaves import FAMILIES
from fedcircuits.learners.einet.network.layout import Group, Layout
from fedcircuits.learners.einet.network.network import Network, Parameters, make_network

LAYOUT_ARRAYS = ("children", "owner", "root_children", "slot_variable", "slot_region")


def pack_network(
    network: Network, params: Parameters
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Header (plain values) and arrays of a network with its parameters."""
    layout = network.layout
    families = [
        {"name": block.family.name, "settings": block.family.settings()} for block in network.blocks
    ]
    of_variable = [0] * layout.n_variables
    for number, block in enumerate(network.blocks):
        for variable in block.variables:
            of_variable[int(variable)] = number
    header = {
        "layer": network.layer,
        "width": network.width,
        "n_classes": network.n_classes,
        "families": families,
        "family_of": of_variable,
        "layout": {
            "n_leaves": layout.n_leaves,
            "n_regions": layout.n_regions,
            "kind": layout.kind,
            "groups": [
                [*g.regions, *g.partitions, g.n_splits, g.arity, g.level] for g in layout.groups
            ],
        },
    }
    arrays = {f"layout.{name}": getattr(layout, name) for name in LAYOUT_ARRAYS}
    arrays |= {
        f"params.{name}": tensor.detach().cpu().numpy() for name, tensor in params.tensors().items()
    }
    return header, arrays


def unpack_network(
    header: Mapping[str, Any], arrays: Mapping[str, Any], n_variables: int
) -> tuple[Network, Parameters]:
    """The inverse of `pack_network`; raises ValueError or KeyError if something does not fit."""
    plan = header["layout"]
    layout = Layout(
        n_variables=n_variables,
        n_leaves=int(plan["n_leaves"]),
        n_regions=int(plan["n_regions"]),
        groups=tuple(
            Group((a, b), (c, d), n_splits, arity, level)
            for a, b, c, d, n_splits, arity, level in plan["groups"]
        ),
        kind=str(plan["kind"]),
        **{name: np.asarray(arrays[f"layout.{name}"], dtype=np.int64) for name in LAYOUT_ARRAYS},
    )
    made = [FAMILIES[f["name"]](**f["settings"]) for f in header["families"]]
    families = [made[int(number)] for number in header["family_of"]]
    network = make_network(
        layout, families, int(header["width"]), header["layer"], int(header["n_classes"])
    )
    params = Parameters.from_tensors(
        {
            name[7:]: torch.from_numpy(array if array.flags.writeable else array.copy())
            for name, array in arrays.items()
            if name.startswith("params.")
        }
    )
    edges = (network.width,) * (1 if network.layer == "cp" else 2)
    if tuple(params.weights.shape) != (layout.n_partitions, network.width, *edges):
        raise ValueError(f"weights have shape {tuple(params.weights.shape)}")
    if int(layout.children.max(initial=0)) > layout.n_regions or (layout.children < 0).any():
        raise ValueError("a child region does not exist")
    return network, params
