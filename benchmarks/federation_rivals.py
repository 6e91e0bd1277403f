"""Bytes that FedAvg and SplitNN of a TabNet would move, from the sizes of its tensors.

The sizes are those published for Adult (n_d = n_a = 16, five steps, two shared and two own blocks a
step, categories embedded in two numbers each); float32, as trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import pandas as pd

FLOAT32 = 4
ROUNDS = EPOCHS = 50


@dataclass(frozen=True)
class TabNet:
    """Sizes of the attentive tabular network of Arik and Pfister.

    Attributes:
        cards: categories of each categorical column.
        n_numbers: numeric columns.
        n_classes: of the label.
        n_d: width of what a step says of the label.
        n_a: width of what a step hands to the next one's attention.
        n_steps: decision steps.
        n_shared: blocks that all steps share.
        n_own: blocks of each step.
        embedding: numbers a category becomes.
    """

    cards: tuple[int, ...]
    n_numbers: int
    n_classes: int = 2
    n_d: int = 16
    n_a: int = 16
    n_steps: int = 5
    n_shared: int = 2
    n_own: int = 2
    embedding: int = 2

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of every trained tensor."""
        width = self.n_d + self.n_a
        n_inputs = self.n_numbers + self.embedding * len(self.cards)
        for at, card in enumerate(self.cards):
            yield f"embedding {at}", (card, self.embedding)
        yield "input norm", (2, n_inputs)
        for block in range(self.n_shared):
            yield f"shared {block}", (n_inputs if block == 0 else width, 2 * width)
        for step in range(self.n_steps + 1):  # one more before the first step
            for block in range(self.n_shared):
                yield f"step {step}, norm of shared {block}", (2, 2 * width)
            for block in range(self.n_own):
                yield f"step {step}, own {block}", (width, 2 * width)
                yield f"step {step}, norm of own {block}", (2, 2 * width)
        for step in range(self.n_steps):
            yield f"attention {step}", (self.n_a, n_inputs)
            yield f"attention {step}, norm", (2, n_inputs)
        yield "output", (self.n_d, self.n_classes)

    @property
    def n_parameters(self) -> int:
        """Numbers in all tensors."""
        return sum(prod(shape) for _, shape in self.tensors())


def tabnet_of(frame: pd.DataFrame, label: str) -> TabNet:
    """The network for a table: text columns are embedded, numbers go in as they are."""
    features = frame.drop(columns=label)
    text = [c for c in features.columns if not pd.api.types.is_numeric_dtype(features[c])]
    cards = tuple(int(features[c].nunique()) for c in text)
    return TabNet(cards, features.shape[1] - len(text), int(frame[label].nunique()))


def fed_avg_bytes(network: TabNet, n_clients: int) -> int:
    """Every round every client is sent the network and sends it back."""
    return 2 * FLOAT32 * network.n_parameters * n_clients * ROUNDS


def split_nn_bytes(network: TabNet, n_clients: int, n_rows: int) -> int:
    """Every epoch every client sends n_d numbers a row and is sent their gradients."""
    return 2 * FLOAT32 * network.n_d * n_rows * n_clients * EPOCHS
