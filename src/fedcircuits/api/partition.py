"""Split one table over clients, for experiments: together the shares are the table.

Every function returns a mapping from client names ("client-1", ...) to tables. Rows split: each row
is at one client. Columns split: each column is at one client, and an id column aligns the rows.
Both: columns and rows overlap as asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fedcircuits.arrays import IntArray
from fedcircuits.errors import SchemaError

ID = "row_id"
Shares = dict[str, pd.DataFrame]


def client_names(n_clients: int) -> list[str]:
    """Return the names of so many clients: "client-1", "client-2", ..."""
    whole = isinstance(n_clients, int | np.integer) and not isinstance(n_clients, bool)
    if not whole or n_clients < 1:
        raise SchemaError(f"a split needs at least one client, a whole number; found {n_clients!r}")
    width = len(str(n_clients))
    return [f"client-{at + 1:0{width}d}" for at in range(n_clients)]


def _rows(frame: pd.DataFrame, owner: IntArray, n_clients: int) -> Shares:
    """Return the rows of each client, in the order of the table."""
    return {
        name: frame.iloc[np.flatnonzero(owner == at)].reset_index(drop=True)
        for at, name in enumerate(client_names(n_clients))
    }


# --- rows split -----------------------------------------------------------------------------------


def iid(frame: pd.DataFrame, n_clients: int, seed: int = 0) -> Shares:
    """Split rows at random into shares of equal size (to one row)."""
    rng = np.random.default_rng(seed)
    owner = rng.permutation(np.arange(len(frame)) % len(client_names(n_clients)))
    return _rows(frame, owner, n_clients)


def unequal(frame: pd.DataFrame, sizes: Sequence[float], seed: int = 0) -> Shares:
    """Split rows at random into shares in proportion to sizes."""
    share = np.asarray(sizes, dtype=float)
    if share.ndim != 1 or not share.size or (share < 0).any() or share.sum() <= 0:
        raise SchemaError(f"sizes must be numbers >= 0, not all 0; found {list(sizes)}")
    ends = np.round(np.cumsum(share) / share.sum() * len(frame)).astype(int)
    owner = np.searchsorted(ends, np.arange(len(frame)), side="right")
    return _rows(frame, np.random.default_rng(seed).permutation(owner), share.size)


def by_class(
    frame: pd.DataFrame, label: str, n_clients: int, classes_per_client: int = 1, seed: int = 0
) -> Shares:
    """Split rows so that each client has some classes of the label, evenly shared by its holders.

    Classes are dealt out in turn, so that each is seen by somebody and rows are covered.
    """
    codes, classes = _codes(frame, label)
    if not 1 <= classes_per_client <= len(classes):
        raise SchemaError(
            f"{label!r} has {len(classes)} classes, so a client sees 1 to {len(classes)} of them; "
            f"found {classes_per_client}"
        )
    if n_clients * classes_per_client < len(classes):
        raise SchemaError(
            f"{n_clients} clients with {classes_per_client} classes each cannot cover "
            f"{len(classes)} classes of {label!r}"
        )
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(classes))
    seen_by: list[list[int]] = [[] for _ in classes]
    for deal in range(n_clients * classes_per_client):
        seen_by[order[deal % len(classes)]].append(deal // classes_per_client)
    owner = np.zeros(len(frame), dtype=np.int64)
    for code, clients in enumerate(seen_by):
        mine = rng.permutation(np.flatnonzero(codes == code))
        owner[mine] = np.resize(sorted(set(clients)), mine.size)
    return _rows(frame, owner, n_clients)


def dirichlet(
    frame: pd.DataFrame, label: str, n_clients: int, concentration: float, seed: int = 0
) -> Shares:
    """Split the rows of each class by shares drawn from a Dirichlet distribution."""
    if concentration <= 0:
        raise SchemaError(f"the concentration must be > 0, found {concentration}")
    codes, classes = _codes(frame, label)
    rng = np.random.default_rng(seed)
    owner = np.zeros(len(frame), dtype=np.int64)
    for code in range(len(classes)):
        mine = rng.permutation(np.flatnonzero(codes == code))
        share = rng.dirichlet(np.full(n_clients, concentration))
        ends = np.round(np.cumsum(share) * mine.size).astype(int)
        ends[-1] = mine.size
        owner[mine] = np.searchsorted(ends, np.arange(mine.size), side="right")
    return _rows(frame, owner, n_clients)


def _codes(frame: pd.DataFrame, label: str) -> tuple[IntArray, list[object]]:
    if label not in frame.columns:
        raise SchemaError(f"no column {label!r} to split by")
    codes, classes = pd.factorize(frame[label], use_na_sentinel=False, sort=False)
    return codes.astype(np.int64), list(classes)


# --- columns split --------------------------------------------------------------------------------


def columns(
    frame: pd.DataFrame,
    groups: Mapping[str, Sequence[str]],
    *,
    label: str | None = None,
    share_label: bool = False,
    id: str = ID,
) -> Shares:
    """Split columns as named; every row is at every client.

    Args:
        frame: the table.
        groups: names of the columns of each client; together all but the label, none twice.
        label: at the first client alone, unless it is in a group.
        share_label: at every client.
        id: name of the column that is added to align rows.
    """
    named = [name for group in groups.values() for name in group]
    placed = {*named, *([label] if label is not None else [])}
    if len(set(named)) < len(named) or placed != set(frame.columns):
        raise SchemaError(
            "the groups must name every column once; twice or not at all: "
            f"{sorted({n for n in named if named.count(n) > 1} | (placed ^ set(frame.columns)))}"
        )
    if id in frame.columns:
        raise SchemaError(f"the table has a column {id!r} already: name another id")
    made: Shares = {}
    for at, (client, group) in enumerate(groups.items()):
        own = list(group)
        if (
            label is not None
            and label not in own
            and (share_label or (at == 0 and label not in named))
        ):
            own.append(label)
        made[client] = frame[own].assign(**{id: np.arange(len(frame))}).reset_index(drop=True)
    return made


def random_columns(
    frame: pd.DataFrame,
    n_clients: int,
    *,
    label: str | None = None,
    share_label: bool = False,
    id: str = ID,
    seed: int = 0,
) -> Shares:
    """Split columns at random into groups of equal size; see `columns` for the label."""
    names = [name for name in frame.columns if name != label]
    if n_clients > len(names):
        raise SchemaError(f"{len(names)} columns cannot be split over {n_clients} clients")
    order = np.random.default_rng(seed).permutation(len(names))
    groups = {
        client: [names[i] for i in sorted(order[at::n_clients])]
        for at, client in enumerate(client_names(n_clients))
    }
    return columns(frame, groups, label=label, share_label=share_label, id=id)


def image_patches(
    height: int, width: int, rows: int, columns: int, *, channels: int = 1, overlap: int = 0
) -> dict[str, list[str]]:
    """Return the pixel names (`pixel_RRR_CCC`) of each patch of a grid, for `columns`.

    Args:
        height: of the images.
        width: of the images.
        rows: patches from top to bottom.
        columns: patches from left to right.
        channels: 1, or 3 for red, green and blue.
        overlap: pixels by which a patch reaches into its neighbours.
    """
    if not (1 <= rows <= height and 1 <= columns <= width):
        raise SchemaError(f"{rows} x {columns} patches do not fit {height} x {width} pixels")
    ends = [""] if channels == 1 else ["_R", "_G", "_B"]
    down = np.linspace(0, height, rows + 1).round().astype(int)
    across = np.linspace(0, width, columns + 1).round().astype(int)
    patches: dict[str, list[str]] = {}
    for at, client in enumerate(client_names(rows * columns)):
        i, j = divmod(at, columns)
        top, bottom = max(down[i] - overlap, 0), min(down[i + 1] + overlap, height)
        left, right = max(across[j] - overlap, 0), min(across[j + 1] + overlap, width)
        patches[client] = [
            f"pixel_{r:03d}_{c:03d}{end}"
            for r in range(top, bottom)
            for c in range(left, right)
            for end in ends
        ]
    return patches


# --- both -----------------------------------------------------------------------------------------


def hybrid(
    frame: pd.DataFrame,
    n_clients: int = 2,
    *,
    shared_columns: float = 0.3,
    aligned_rows: float = 0.4,
    label: str | None = None,
    share_label: bool = True,
    id: str = ID,
    seed: int = 0,
) -> Shares:
    """Split columns and rows with overlap: some are at every client, the others at one.

    Args:
        frame: the table.
        n_clients: how many.
        shared_columns: share of the columns, the label set aside, that all clients hold.
        aligned_rows: share of the rows that all clients hold.
        label: set aside.
        share_label: whether all clients hold it, or the first alone.
        id: name of the column that is added to align rows.
        seed: of the choice.
    """
    for share, what in ((shared_columns, "columns"), (aligned_rows, "rows")):
        if not 0 <= share <= 1:
            raise SchemaError(f"the share of common {what} lies in 0..1, found {share}")
    if id in frame.columns:
        raise SchemaError(f"the table has a column {id!r} already: name another id")
    rng = np.random.default_rng(seed)
    names = [name for name in frame.columns if name != label]
    order = [names[i] for i in rng.permutation(len(names))]
    n_shared = round(shared_columns * len(names))
    common = set(order[:n_shared])
    if len(names) - n_shared < n_clients and n_shared < len(names):
        raise SchemaError(f"too few columns are left to give each of {n_clients} clients its own")
    numbers = rng.permutation(len(frame))
    n_common = round(aligned_rows * len(frame))
    made: Shares = {}
    for at, client in enumerate(client_names(n_clients)):
        held = common | set(order[n_shared:][at::n_clients])
        own = [name for name in names if name in held]
        if label is not None and (share_label or at == 0):
            own.append(label)
        mine = np.sort(np.concatenate([numbers[:n_common], numbers[n_common:][at::n_clients]]))
        made[client] = frame[own].iloc[mine].assign(**{id: mine}).reset_index(drop=True)
    return made


def hybrid_patches(
    frame: pd.DataFrame,
    patches: Mapping[str, Sequence[str]],
    *,
    aligned_rows: float = 1.0,
    id: str = ID,
    seed: int = 0,
) -> Shares:
    """Split columns as named, with overlap; a share of the rows is at every client."""
    covered = {name for group in patches.values() for name in group}
    if covered != set(frame.columns):
        raise SchemaError(
            f"the patches must cover the columns: {sorted(covered ^ set(frame.columns))[:5]}"
        )
    rng = np.random.default_rng(seed)
    numbers = rng.permutation(len(frame))
    n_common = round(aligned_rows * len(frame))
    made: Shares = {}
    for at, (client, group) in enumerate(patches.items()):
        rest = numbers[n_common:][at :: len(patches)]
        mine = np.sort(np.concatenate([numbers[:n_common], rest]))
        made[client] = frame[list(group)].iloc[mine].assign(**{id: mine}).reset_index(drop=True)
    return made
