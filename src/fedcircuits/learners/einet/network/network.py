"""Network: an EiNet without its parameters, and the parameters as a separate value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcircuits.errors import LearningError
from fedcircuits.learners.einet.leaves import Family
from fedcircuits.learners.einet.leaves.base import uniform
from fedcircuits.learners.einet.network.layout import Layout

LayerKind = Literal["cp", "tucker"]


@dataclass(frozen=True, eq=False)
class LeafBlock:
    """Leaf slots of one family.

    Attributes:
        family: Their family.
        slots: Their slot numbers, (block's slots,).
        variables: Their variables, (block's slots,).
        regions: Their leaf regions, (block's slots,).
    """

    family: Family
    slots: NDArray[np.int64]
    variables: NDArray[np.int64]
    regions: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Network:
    """Structure, width, layer kind and leaf families; shared by all parameter values.

    Attributes:
        layout: The region graph in flat arrays.
        layer: "cp" (products element by element, dense sum) or "tucker" (all pairs).
        width: Nodes per region, K.
        n_classes: Roots.
        blocks: The leaf slots by family; together they cover every slot once.
    """

    layout: Layout
    layer: LayerKind
    width: int
    n_classes: int
    blocks: tuple[LeafBlock, ...]
    _placed: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def index(self, name: str, device: torch.device) -> Tensor:
        """An index array of the layout on a device; copied there once."""
        key = f"{name}@{device}"
        if key not in self._placed:
            if name.startswith("block"):
                number, _, what = name[5:].partition(".")
                array = getattr(self.blocks[int(number)], what)
            else:
                array = getattr(self.layout, name)
            self._placed[key] = torch.as_tensor(array, device=device)
        return self._placed[key]

    @property
    def edges(self) -> int:
        """Edges from one node into one partition."""
        return self.width if self.layer == "cp" else self.width**2

    @property
    def n_weights(self) -> int:
        """Weights of sums, the root's included."""
        inner = self.layout.n_partitions * self.width * self.edges
        return inner + len(self.layout.root_children) * self.n_classes * self.edges


@dataclass(frozen=True, eq=False)
class Parameters:
    """Every number an EiNet learns; all probabilities are linear, not logarithms.

    Attributes:
        weights: Inner sums: CP (partitions, K, K) as [p, output, k]; Tucker (partitions, K, K, K)
            as [p, output, left, right]. For each region and output they sum to one over the
            region's partitions and all inputs.
        root: Root sums, (root partitions, classes, K[, K]).
        prior: Class probabilities, (classes,).
        leaves: Parameters of every leaf block.
    """

    weights: Tensor
    root: Tensor
    prior: Tensor
    leaves: tuple[dict[str, Tensor], ...]

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, for saving and counting."""
        named = {"weights": self.weights, "root": self.root, "prior": self.prior}
        for number, block in enumerate(self.leaves):
            named |= {f"leaf{number}.{name}": tensor for name, tensor in block.items()}
        return named

    @staticmethod
    def from_tensors(named: dict[str, Tensor]) -> Parameters:
        """The inverse of `tensors`."""
        n_blocks = 1 + max(int(n[4:].partition(".")[0]) for n in named if n.startswith("leaf"))
        leaves = tuple(
            {
                name.partition(".")[2]: tensor
                for name, tensor in named.items()
                if name.startswith(f"leaf{number}.")
            }
            for number in range(n_blocks)
        )
        return Parameters(named["weights"], named["root"], named["prior"], leaves)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Parameters:
        """A copy on another device or in another precision."""
        return Parameters.from_tensors(
            {name: tensor.to(device, dtype) for name, tensor in self.tensors().items()}
        )

    def clone(self) -> Parameters:
        """A copy that can be updated in place."""
        return Parameters.from_tensors({n: t.clone() for n, t in self.tensors().items()})

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.weights.device


def make_network(
    layout: Layout,
    families: list[Family],
    width: int,
    layer: LayerKind = "cp",
    n_classes: int = 1,
) -> Network:
    """A network with one family per variable.

    Args:
        layout: The structure.
        families: Family of each variable; equal ones share a block.
        width: Nodes per region.
        layer: Layer kind.
        n_classes: Roots.

    Returns:
        The network.
    """
    if width < 1 or n_classes < 1:
        raise LearningError(f"EiNet: width {width} and {n_classes} classes; both must be >= 1")
    if layer not in ("cp", "tucker"):
        raise LearningError(f"EiNet: layer {layer!r}; expected 'cp' or 'tucker'")
    if layer == "tucker" and not layout.binary:
        raise LearningError(
            f"EiNet: a Tucker layer needs partitions into exactly two regions, which structure "
            f"{layout.kind!r} does not have here; use layer='cp'"
        )
    if len(families) != layout.n_variables:
        raise LearningError(f"EiNet: {len(families)} families for {layout.n_variables} variables")
    of_slot = [families[variable] for variable in layout.slot_variable]
    blocks = []
    for family in dict.fromkeys(of_slot):
        slots = np.array([s for s, other in enumerate(of_slot) if other == family], dtype=np.int64)
        blocks.append(
            LeafBlock(family, slots, layout.slot_variable[slots], layout.slot_region[slots])
        )
    return Network(layout, layer, width, n_classes, tuple(blocks))


def sum_partitions(layout: Layout, each: Tensor) -> Tensor:
    """Sums over the partitions of every inner region, (partitions, K) to (inner regions, K).

    Group by group, so that the result is the same bits every time on every device.
    """
    parts = [
        each[slice(*group.partitions)].view(-1, group.n_splits, each.shape[1]).sum(1)
        for group in layout.groups
    ]
    return torch.cat(parts)


def normalise_(network: Network, weights: Tensor, root: Tensor) -> None:
    """Makes every sum's weights add up to one, in place."""
    layout = network.layout
    if layout.n_partitions:
        owner = network.index("owner", weights.device) - layout.n_leaves
        per_partition = weights.flatten(2).sum(2)  # (P, O)
        totals = sum_partitions(layout, per_partition)
        # A node without any weight stays without: it is impossible, not undefined.
        totals = torch.where(totals > 0, totals, torch.ones_like(totals))
        shape = (*per_partition.shape, *([1] * (weights.dim() - 2)))
        weights.div_(totals[owner].view(shape))
    total = root.flatten(2).sum(2).sum(0)  # (C,)
    total = torch.where(total > 0, total, torch.ones_like(total))
    root.div_(total.view(1, -1, *([1] * (root.dim() - 2))))


def initial_parameters(
    network: Network,
    x: Tensor,
    observed: Tensor,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
) -> Parameters:
    """Leaves from data, weights at random near uniform (CP: leaning to the diagonal).

    Args:
        network: The network.
        x: A sample of rows, (rows, variables); any legal number where missing.
        observed: Where values are known, (rows, variables).
        generator: Source of randomness, on the CPU.
        dtype: Precision of the parameters.

    Returns:
        The parameters, on the device of x.
    """
    if not len(x):
        raise LearningError("EiNet: an empty batch of rows to start from")
    width, device = network.width, x.device
    shape = (width,) if network.layer == "cp" else (width, width)

    def random(*lead: int) -> Tensor:
        draws = uniform((*lead, *shape), generator, device, torch.float32)
        return draws.add_(0.5).to(dtype)

    weights = random(network.layout.n_partitions, width)
    root = random(len(network.layout.root_children), network.n_classes)
    # State k of a leaf starts at row k everywhere, so the circuit starts as a mixture of rows:
    # node o of a region leans to the products of its children's nodes o.
    diagonal = torch.eye(width, device=device, dtype=dtype)
    if network.layer == "cp":
        weights += width * diagonal
    else:
        cube = torch.zeros((width, width, width), device=device, dtype=dtype)
        number = torch.arange(width, device=device)
        cube[number, number, number] = 1.0
        weights += width**2 * cube
    normalise_(network, weights, root)
    prior = torch.full((network.n_classes,), 1.0 / network.n_classes, dtype=dtype, device=device)
    leaves = []
    for block in network.blocks:
        values = x[:, block.variables].T.contiguous()
        known = observed[:, block.variables].T.contiguous()
        made = block.family.initial(values, known, width, generator)
        leaves.append({name: tensor.to(dtype) for name, tensor in made.items()})
    return Parameters(weights, root, prior, tuple(leaves))


def with_own_sums(network: Network, params: Parameters) -> Parameters:
    """Return a start at which every class uses its own copy of the structure alone.

    The root's partitions are in the order of the classes (`structures/class_copies.py`). Smoothing
    lets a class use a little of the others' copies later.
    """
    n_classes = network.n_classes
    copy_of = torch.arange(len(params.root), device=params.device) * n_classes // len(params.root)
    mine = copy_of.unsqueeze(1) == torch.arange(n_classes, device=params.device)  # (R, classes)
    root = params.root * mine.view(*mine.shape, *([1] * (params.root.dim() - 2)))
    normalise_(network, params.weights, root)
    return Parameters(params.weights, root, params.prior, params.leaves)
