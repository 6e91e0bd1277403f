"""EiNet: the learner that turns a table, images among them, into an `EiNetDensity`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from fedcircuits.density.fit_report import FitReport
from fedcircuits.errors import LearningError
from fedcircuits.learners.einet.density.columns import Column, column_of, encode, is_level
from fedcircuits.learners.einet.density.einet_density import EiNetDensity
from fedcircuits.learners.einet.head.classified_einet import ClassifiedEiNet
from fedcircuits.learners.einet.head.fit_head import with_head
from fedcircuits.learners.einet.leaves import (
    Bernoulli,
    Binomial,
    Categorical,
    DiscretisedGaussian,
    Family,
    Gaussian,
)
from fedcircuits.learners.einet.network.layout import lay_out
from fedcircuits.learners.einet.network.network import (
    LayerKind,
    initial_parameters,
    make_network,
    with_own_sums,
)
from fedcircuits.learners.einet.structures.class_copies import class_copies
from fedcircuits.learners.einet.structures.hidden_tree import hidden_chow_liu_tree
from fedcircuits.learners.einet.structures.poon_domingos import poon_domingos
from fedcircuits.learners.einet.structures.random_trees import random_trees
from fedcircuits.learners.einet.structures.regions import Partition, RegionGraph
from fedcircuits.learners.einet.training.checkpoint import State
from fedcircuits.learners.einet.training.fine_tune import FineTuning, fine_tuned
from fedcircuits.learners.einet.training.rows import Rows
from fedcircuits.learners.einet.training.train import Method, Schedule, out_of_memory, train
from fedcircuits.schema import Table
from fedcircuits.schema.images import Colour, pixel_places, table_in_colour

Structure = Literal["hclt", "poon-domingos", "random-trees"]
Leaf = Literal["categorical", "discretised-gaussian", "binomial", "gaussian"]
Precision = Literal["float32", "tf32", "bf16", "float64"]
ClassSums = Literal["own", "shared"]
# Rows the start is taken from; more would not change it.
START_ROWS = 2048
# Share of the rows that choose the epochs of fine-tuning, and how few say nothing.
HELD_OUT, LEAST_HELD_OUT = 0.1, 30


@dataclass(frozen=True)
class EiNet:
    """Tensorised circuits trained by EM, on the CPU or a GPU.

    Attributes:
        structure: "hclt" (a hidden tree learned from data), "poon-domingos" (rectangles of an
            image) or "random-trees".
        layer: "cp" or "tucker".
        width: Nodes per region; None chooses 32 on a CPU and 128 on a GPU, and where every class
            has sums of its own that over the square root of the number of classes, at least 8.
        leaf: Leaves of pixels: "categorical", "discretised-gaussian" or "binomial"; "gaussian"
            also gives continuous columns Gaussian leaves instead of histograms.
        label: Variable whose outcomes get a root each.
        class_sums: Where there is a label: "own" gives every class sums of its own, over leaves
            that all classes share; "shared" gives it a root of its own alone.
        fine_tune: Most epochs of ascent on log p(label | rest) after EM, of which those are kept
            that help a tenth of the rows, held out for it (see `training/fine_tune.py`); 0 for
            none.
        head: Whether a convolutional network may predict the label of images, where held-out
            images say that it pays (see `head/`); answers about the label of images with missing
            pixels are then estimates. False is exact throughout.
        colour: "ycocg" learns red, green and blue pixels as Y, Co and Cg (reversible, so that a
            log-mass means the same); "rgb" as they are.
        pieces: Cells per side of a Poon-Domingos grid.
        depth: Halvings of a random tree.
        repetitions: Random trees.
        epochs: Passes over the rows.
        batch: Rows per batch.
        step: First step size of online EM; it falls to `last_step`.
        last_step: Last step size.
        frequency: Batches between updates; 0 is full-batch EM.
        by_mass: Stepwise EM on averaged counts (see `passes/m_step.py`).
        method: "em", or "adam" for gradient ascent (see `training/ascent.py`).
        learning_rate: First learning rate of "adam"; it falls as the step size of EM does.
        pseudo_count: Rows' worth of uniform flow added to every sum.
        leaf_count: Rows' worth of the column's marginal added to every discrete leaf.
        blur: Levels over which counts of categorical pixels are shared (`leaves/blurring.py`); 0
            for plain EM. About 2 suits many photographs, 8 scans and drawings.
        min_variance: Lower bound of Gaussian variances (pixels: on the scale 0..1; columns: of
            the standardised value).
        max_variance: Upper bound, for pixels; columns have 100.
        device: "auto", "cpu", "cuda", ...
        precision: Inputs of matrix products on CUDA: "float32", "tf32", "bf16"; "float64" keeps
            everything in double precision and uses no kernels.
        checkpoint: File to write after every epoch, and to go on from if it exists.
        agreed_schema: Whether the schema was agreed with other clients and stays as it is.
        progress: Called with the fraction done and a few words.
    """

    structure: Structure = "hclt"
    layer: LayerKind = "cp"
    width: int | None = None
    leaf: Leaf = "categorical"
    label: str | None = None
    class_sums: ClassSums = "own"
    fine_tune: int = 0
    head: bool = True
    colour: Colour = "rgb"
    pieces: int | tuple[int, int] = 8
    depth: int = 4
    repetitions: int = 10
    epochs: int = 8
    batch: int = 200
    step: float = 0.3
    last_step: float = 0.02
    frequency: int = 1
    by_mass: bool = True
    method: Method = "em"
    learning_rate: float = 0.2
    pseudo_count: float = 1.0
    leaf_count: float = 1.0
    blur: float = 4.0
    min_variance: float = 1e-3
    max_variance: float = 0.25
    device: str = "auto"
    precision: Precision = "tf32"
    checkpoint: Path | None = None
    agreed_schema: bool = False
    progress: Callable[[float, str], None] | None = None

    def __post_init__(self) -> None:
        for name, kind in (
            ("structure", Structure), ("layer", LayerKind), ("leaf", Leaf), ("method", Method),
            ("precision", Precision), ("colour", Colour), ("class_sums", ClassSums),
        ):  # fmt: skip
            value, known = getattr(self, name), get_args(kind)
            if value not in known:
                raise LearningError(
                    f"EiNet: {name} {value!r}; expected one of {', '.join(map(repr, known))}"
                )
        sides = self.pieces if isinstance(self.pieces, tuple) else (self.pieces,)
        whole = {"width": self.width, "depth": self.depth, "repetitions": self.repetitions}
        whole |= {f"pieces ({at + 1} of {len(sides)})": side for at, side in enumerate(sides)}
        for name, number in whole.items():
            least = 0 if name == "depth" else 1
            if number is not None and (not isinstance(number, int | np.integer) or number < least):
                raise LearningError(
                    f"EiNet: {name} is {number!r}; expected a whole number of at least {least}"
                )
        if len(sides) > 2:
            raise LearningError(f"EiNet: pieces {self.pieces}; expected (rows, columns)")
        for name in ("pseudo_count", "leaf_count", "blur"):
            if not getattr(self, name) >= 0:
                raise LearningError(f"EiNet: {name} {getattr(self, name)!r}; expected at least 0")
        if not 0 < self.min_variance <= self.max_variance:
            raise LearningError(
                f"EiNet: variances from {self.min_variance} to {self.max_variance}; expected "
                "0 < min_variance <= max_variance"
            )

    @property
    def takes_levels(self) -> bool:
        """True: pixels are learned as levels, without a grid."""
        return True

    def for_agreed_schema(self) -> Self:
        """Return the learner that leaves columns, categories and grids as they were agreed."""
        return replace(self, agreed_schema=True)

    def fit(self, table: Table, rng: np.random.Generator) -> EiNetDensity | ClassifiedEiNet:
        """Learns a density of the table's variables.

        Args:
            table: Rows; cells that are not observed are marginalised.
            rng: Source of all randomness.

        Returns:
            The density, on the device it was learned on.
        """
        began = time.perf_counter()
        if not len(table):
            raise LearningError("EiNet: cannot learn from a table without rows")
        device = torch.device(self._device())
        if not self.agreed_schema:  # clients change the colour before they agree on a schema
            table = table_in_colour(table, self.colour)
        table = replace(table, schema=self._with_grids(table))
        names = [name for name in table.schema.names if name != self.label]
        if not names:
            raise LearningError(f"EiNet: there is no column besides the label {self.label!r}")
        inner = table.columns(names)
        columns = tuple(
            column_of(variable, inner.values[inner.observed[:, at], at], self.leaf == "gaussian")
            for at, variable in enumerate(inner.schema)
        )
        x, observed, gain = encode(inner.schema, columns, inner)
        if not np.isfinite(gain).all():
            raise LearningError("EiNet: a value lies outside every state of its variable's grid")
        labels, n_classes = self._labels(table)
        everything = bool(observed.all())
        seed = int(rng.integers(2**31))
        graph = self._graph(inner, x, observed, rng, device)
        families = [self._family(column) for column in columns]
        own = n_classes > 1 and self.class_sums == "own" and bool(graph.partitions)
        width = self._width(device, n_classes if own else 1)
        graph = class_copies(graph, n_classes) if own else graph
        network = make_network(lay_out(graph), families, width, self.layer, n_classes)
        dtype = torch.float64 if self.precision == "float64" else torch.float32
        some = np.sort(rng.permutation(len(x))[:START_ROWS])
        try:
            start = initial_parameters(
                network,
                torch.as_tensor(x[some], device=device),
                torch.as_tensor(observed[some], device=device),
                torch.Generator().manual_seed(seed),
                dtype,
            )
        except torch.OutOfMemoryError as error:
            raise out_of_memory(network, self.batch, error) from error
        if own:
            start = with_own_sums(network, start)
        weights = None if table.weights is None else np.asarray(table.weights, dtype=np.float64)
        rows = Rows(x, None if everything else observed, labels, weights)
        schedule = self._schedule("tf32" if dtype == torch.float64 else self.precision)
        rows, held_out = self._held_out(rows, rng)
        state = train(network, start, rows, schedule, seed, self.checkpoint, self._report)
        params = state.params
        losses: list[float] = []
        if held_out is not None:
            how = FineTuning(self.fine_tune, self.batch, pseudo_count=self.pseudo_count)
            params, losses = fine_tuned(network, params, rows, held_out, how, seed)
        report = FitReport(
            "einet",
            time.perf_counter() - began,
            {"width": width, "structure": self.structure, "layer": self.layer, "leaf": self.leaf,
             "regions": len(graph.scopes), "device": device.type, **asdict(schedule)},
            state.history,
            _fine_tuning(losses),
        )  # fmt: skip
        found = EiNetDensity(
            table.schema, network, params, columns, self.label, report, max(64, self.batch)
        )
        return with_head(found, table, rng, device) if self.label and self.head else found

    def _width(self, device: torch.device, n_copies: int) -> int:
        """Return the nodes per region; copies for classes are narrower, so that the cost is not."""
        if self.width is not None:
            return self.width
        width = 32 if device.type == "cpu" else 128
        return width if n_copies == 1 else max(8, round(width / np.sqrt(n_copies)))

    def _held_out(self, rows: Rows, rng: np.random.Generator) -> tuple[Rows, Rows | None]:
        """Return the rows to train on, and those on which fine-tuning is judged, if there is."""
        if self.fine_tune == 0 or rows.labels is None:
            return rows, None
        known = rng.permutation(np.flatnonzero(rows.labels >= 0))
        held = np.sort(known[: round(HELD_OUT * known.size)])
        if held.size < LEAST_HELD_OUT:
            return rows, None
        return rows.chosen(np.setdiff1d(np.arange(len(rows)), held)), rows.chosen(held)

    def _schedule(self, precision: str) -> Schedule:
        step, last = self.step, self.last_step
        if self.method == "adam":
            step, last = self.learning_rate, self.learning_rate * self.last_step / self.step
        return Schedule(
            self.epochs, self.batch, step, last, self.frequency, self.pseudo_count, self.by_mass,
            precision, self.method,
        )  # fmt: skip

    def _report(self, state: State) -> None:
        if self.progress is not None:
            self.progress(
                state.epoch / self.epochs,
                f"epoch {state.epoch}: {state.history[-1]:.3f} nats per row",
            )

    def _device(self) -> str:
        if self.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise LearningError(
                f"EiNet: device {self.device!r} cannot be used here ({error}); expected 'auto', "
                "'cpu' or a device PyTorch sees"
            ) from None
        return self.device

    def _with_grids(self, table: Table) -> Any:
        """The schema with grids for the columns whose leaves need one."""
        needed = [
            v.name
            for v in table.schema
            if not v.is_coded
            and not is_level(v)
            and not (self.leaf == "gaussian" and v.kind == "continuous" and not v.missing_state)
        ]
        if not needed or self.agreed_schema:
            return table.schema
        made = table.columns(needed)
        return table.schema.with_variables(list(made.schema.with_grids(made)))

    def _labels(self, table: Table) -> tuple[NDArray[np.int64] | None, int]:
        if self.label is None:
            return None, 1
        at = table.schema.position(self.label)
        variable = table.schema.variables[at]
        if not variable.is_coded:
            raise LearningError(
                f"the label {self.label!r} must be categorical or binary, found {variable.kind}"
            )
        codes = np.where(table.observed[:, at], table.values[:, at], -1)
        return codes.astype(np.int64), variable.n_codes

    def _family(self, column: Column) -> Family:
        if column.kind == "scaled":
            return Gaussian(self.min_variance, 100.0)
        if column.kind == "level" and self.leaf == "discretised-gaussian":
            return DiscretisedGaussian(
                self.min_variance, self.max_variance, n_levels=column.n_values
            )
        if column.kind == "level" and self.leaf == "binomial":
            return Binomial(column.n_values - 1, self.leaf_count)
        if column.kind == "code" and column.n_values == 2:
            return Bernoulli(pseudo_count=self.leaf_count)
        blur = self.blur if column.kind == "level" else 0.0
        return Categorical(column.n_values, self.leaf_count, blur)

    def _graph(
        self,
        inner: Table,
        x: NDArray[np.generic],
        observed: NDArray[np.bool_],
        rng: np.random.Generator,
        device: torch.device,
    ) -> RegionGraph:
        if self.structure == "random-trees":
            return random_trees(len(inner.schema), self.depth, self.repetitions, rng)
        if self.structure == "poon-domingos":
            return self._rectangles(inner)
        numbers = np.where(observed, x, np.nan).astype(np.float32)
        return hidden_chow_liu_tree(numbers, device=str(device))

    def _rectangles(self, inner: Table) -> RegionGraph:
        """The Poon-Domingos structure of the pixels, wherever in the table they stand."""
        places = pixel_places(inner.schema)
        if places is None:
            raise LearningError(
                "EiNet: 'poon-domingos' needs images, variables named pixel_ROW_COLUMN[_CHANNEL]"
            )
        rows = {row: at for at, row in enumerate(sorted({p[0] for p in places}))}
        columns = {column: at for at, column in enumerate(sorted({p[1] for p in places}))}
        channels = {name: at for at, name in enumerate(sorted({p[2] for p in places}))}
        if len(places) != len(rows) * len(columns) * len(channels):
            raise LearningError(
                f"EiNet: {len(places)} pixels do not fill a rectangle of {len(rows)} x "
                f"{len(columns)} x {len(channels)}; use structure='hclt'"
            )
        tall, wide = (self.pieces, self.pieces) if isinstance(self.pieces, int) else self.pieces
        graph = poon_domingos(
            len(rows), len(columns), (min(tall, len(rows)), min(wide, len(columns))), len(channels)
        )
        of_grid = {
            (rows[r] * len(columns) + columns[c]) * len(channels) + channels[k]: at
            for at, (r, c, k) in enumerate(places)
        }
        scopes = tuple(tuple(sorted(of_grid[v] for v in scope)) for scope in graph.scopes)
        partitions = tuple(Partition(p.region, p.children) for p in graph.partitions)
        return RegionGraph(graph.n_variables, scopes, partitions, graph.root, graph.kind)


def _fine_tuning(losses: list[float]) -> dict[str, Any]:
    """Return what the report says of fine-tuning: epochs kept, held-out -log p(label | rest)."""
    if not losses:
        return {}
    epochs = int(np.argmin(losses))
    gain = losses[0] - losses[epochs]
    return {"fine-tuning for the label": {"epochs": epochs, "gain": gain, "losses": losses}}
