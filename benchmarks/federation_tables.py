"""The page of the federation benchmark, from finished runs: floors first, then every row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import tables
from federation_cases import GROWTH, GROWTH_LEARNERS, GROWTH_ROWS, TIME, load
from federation_rivals import EPOCHS, ROUNDS, fed_avg_bytes, split_nn_bytes, tabnet_of

Runs = list[dict[str, Any]]
FIGURES = ("accuracy", "macro-F1", "AUC", "log-mass")
# What was set out to be reached: accuracy, macro-F1, AUC, in this order, where named.
FLOORS: dict[tuple[str, str], dict[str, float]] = {}
for _case, _three in {
    "rows, 5 clients, iid": (0.871, 0.810, 0.924),
    "rows, 10 clients, iid": (0.870, 0.808, 0.922),
    "rows, 5 clients, dirichlet": (0.866, 0.803, 0.918),
    "rows, 5 clients, one class": (0.850, 0.790, 0.905),
    "columns, 2 clients, label shared": (0.868, 0.800, 0.921),
    "columns, 3 clients, label shared": (0.868, 0.800, 0.921),
    "both, 2 clients, label shared, auto": (0.85, 0.785, 0.90),
}.items():
    FLOORS["adult", _case] = dict(zip(FIGURES, _three, strict=False))
FLOORS["adult", "both, 2 clients, label on one, auto"] = {"accuracy": 0.835, "macro-F1": 0.765}
for _case, _auc in {
    "rows, 5 clients, iid": 0.858,
    "rows, 5 clients, dirichlet": 0.855,
    "columns, 2 clients, label shared": 0.856,
    "columns, 3 clients, label shared": 0.856,
    "both, 2 clients, label shared, auto": 0.84,
    "both, 2 clients, label on one, auto": 0.82,
}.items():
    FLOORS["credit", _case] = {"AUC": _auc}
for _case, _accuracy in {
    "rows, 5 clients, iid": 0.945,
    "columns, 2 clients, label shared": 0.955,
    "columns, 3 clients, label shared": 0.955,
    "columns, 2 clients, label on one, auto": 0.94,
    "both, 2 clients, label shared, auto": 0.95,
    "both, 2 clients, label on one, auto": 0.95,
}.items():
    FLOORS["cancer", _case] = {"accuracy": _accuracy}
OWNER, ON_ONE = "the label's owner of 2 (columns)", "columns, 2 clients, label on one, auto"
IID, NAIVE = "rows, 5 clients, iid", "columns, 2 clients, label on one, independent"


def of(runs: Runs, data: str, case: str) -> Runs:
    """The runs of one case."""
    return [r for r in runs if (r["data"], r["case"]) == (data, case)]


def mean(runs: Runs, data: str, case: str, figure: str) -> float:
    """Over seeds; nan where nothing was run."""
    found = [r[figure] for r in of(runs, data, case) if figure in r]
    return float(np.mean(found)) if found else float("nan")


def spread(values: Sequence[float], digits: int = 4) -> str:
    """Mean ± standard deviation."""
    if not len(values):
        return "-"
    more = f" ± {np.std(values):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{more}"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table."""
    return [
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]


def where(runs: Runs) -> list[str]:
    """A line that says which machines took these figures."""
    return ["On " + "; ".join(sorted({r["machine"] for r in runs})) + ".", ""]


def aims(runs: Runs) -> Iterator[tuple[str, str, str, float]]:
    """Data, case, figure and what is to be reached, where it can be said."""
    for (data, case), wanted in FLOORS.items():
        for figure, floor in wanted.items():
            yield data, case, figure, floor
    for data in ("adult", "credit"):
        for figure in ("accuracy", "AUC"):  # of the gap between owner and centralised
            owner, centre = (mean(runs, data, c, figure) for c in (OWNER, "centralised"))
            yield data, ON_ONE, figure, owner + 0.4 * (centre - owner)
        yield data, IID, "log-mass", mean(runs, data, "centralised", "log-mass") - 0.4
        low, high = (mean(runs, data, c, "log-mass") for c in (NAIVE, "centralised"))
        for rule, share in (("latent", 0.5), ("joint", 0.75)):
            case = f"columns, 2 clients, label on one, {rule}"
            yield data, case, "log-mass", low + share * (high - low)


def aims_table(runs: Runs) -> list[str]:
    """Every floor beside what was measured."""
    rows = []
    for data, case, figure, floor in aims(runs):
        found = [r[figure] for r in of(runs, data, case)]
        if not found or np.isnan(floor):
            continue
        centre = mean(runs, data, "centralised", figure)
        holds = "yes" if np.mean(found) >= floor else f"no, by {floor - np.mean(found):.4f}"
        rows.append([data, case, figure, f"{floor:.4f}", spread(found), f"{centre:.4f}", holds])
    columns = ["data", "case", "figure", "floor or aim", "measured", "centralised", "reached"]
    return ["## Floors and aims", "", *markdown(columns, rows)]


def joint_line(runs: Runs) -> list[str]:
    """How far `joint` over five clients is from the same schedule on all rows in one place."""
    apart = []
    for data in ("adult", "credit", "cancer"):
        cases = ("rows, 5 clients, iid, joint", "all rows at one client, joint")
        five, one = ({r["seed"]: r["log-mass"] for r in of(runs, data, c)} for c in cases)
        gaps = [abs(five[seed] - one[seed]) for seed in five if seed in one]
        if gaps:
            apart.append(f"{data} {max(gaps):.1e}")
    if not apart:
        return []
    what = "Rows split, `joint`, five clients against one with all rows: log-mass apart by at most"
    return [f"{what} {', '.join(apart)} (aim 1e-06).", ""]


def time_table(runs: Runs) -> list[str]:
    """Slowest client over centralised, and the server's share, each from one process."""
    found, rows = of(runs, "adult", TIME), []
    for name, limit in (("rows, 5 clients", 0.25), ("columns, 2 clients", 0.6)):
        ratio = [r[f"{name}: slowest client, CPU s"] / r["centralised, CPU s"] for r in found]
        server = [100 * r[f"{name}: server, CPU s"] / r[f"{name}: CPU s"] for r in found]
        seconds = spread([r["centralised, CPU s"] for r in found], 1)
        rows.append([name, seconds, spread(ratio, 3), f"{limit}", spread(server, 1), "5"])
    columns = [
        "Adult", "centralised, CPU s", "slowest client / centralised", "at most",
        "server's share, %", "below",
    ]  # fmt: skip
    return ["## Time", "", *where(found), *markdown(columns, rows)] if found else []


def growth_table(runs: Runs) -> list[str]:
    """CPU microseconds a row on made-up tables."""
    rows = []
    for learner in GROWTH_LEARNERS:
        for n in GROWTH_ROWS:
            for r in of(runs, "synthetic", f"{GROWTH} {n:,} rows, {learner}"):
                cells = [learner, f"{n:,}"]
                for name in ("rows, 5 clients", "columns, 2 clients"):
                    seconds = r[f"{name}: CPU s"]
                    cells += [f"{seconds:.1f}", f"{1e6 * seconds / n:.0f}"]
                rows.append(cells)
    columns = [
        "learner", "rows", "rows split, CPU s", "µs a row", "columns split, CPU s", "µs a row",
    ]  # fmt: skip
    grown = [r for r in runs if r["data"] == "synthetic"]
    return ["## Growth with rows", "", *where(grown), *markdown(columns, rows)] if rows else []


def bytes_table(runs: Runs) -> list[str]:
    """Measured bytes beside FedAvg and SplitNN of a TabNet, and bytes a row of `latent`."""
    split = load("adult", 0)
    network, rows = tabnet_of(split.train, split.label), []
    for case, name, rival in (
        (IID, f"FedAvg, {ROUNDS} rounds", fed_avg_bytes(network, 5)),
        (
            "columns, 2 clients, label shared",
            f"SplitNN, {EPOCHS} epochs",
            split_nn_bytes(network, 2, len(split.train)),
        ),
    ):
        for moved in [mean(runs, "adult", case, "bytes")]:
            if not np.isnan(moved):
                rows.append([case, f"{moved:,.0f}", name, f"{rival:,}", f"{rival / moved:.0f}"])
    columns = ["Adult", "bytes, all messages", "rival", "its bytes", "times ours"]
    lines = [
        "## Communication",
        "",
        f"TabNet for Adult: {network.n_parameters:,} parameters in float32, counted both ways.",
        "",
        *markdown(columns, rows),
    ]
    rows = []
    for data in ("adult", "credit"):
        for r in of(runs, data, "columns, 2 clients, label on one, latent")[:1]:
            phases, n = r["bytes by phase"], r["aligned rows"]
            models = phases["training, to server"]
            alignment = sum(v for k, v in phases.items() if k.startswith("alignment"))
            schema = sum(v for k, v in phases.items() if k.startswith("schema"))
            rest = r["bytes"] - models - alignment - schema
            numbers = (models, schema, alignment, rest)
            rows.append([data, f"{n:,}", *(f"{v:,}" for v in numbers), f"{rest / n:.2f}"])
    columns = [
        "`latent`, 2 clients", "aligned rows", "models", "schema and grids", "alignment",
        "everything after it", "of which bytes a row",
    ]  # fmt: skip
    return [*lines, *markdown(columns, rows)] if rows else lines


def every_row(runs: Runs) -> list[str]:
    """All cases, the losing ones too."""
    rows = []
    order = {"adult": 0, "credit": 1, "magic": 2, "cancer": 3}
    quality = [r for r in runs if r["data"] in order and r["case"] != TIME]
    cases = list(dict.fromkeys(r["case"] for r in sorted(quality, key=lambda r: r["case"])))
    for data in order:
        for case in cases:
            found = of(runs, data, case)
            if not found:
                continue
            rules = ", ".join(sorted({r["rule"] for r in found if "rule" in r})) or "-"
            cells = [data, case, rules, str(len(found))]
            cells += [spread([r[figure] for r in found]) for figure in FIGURES]
            for figure in ("CPU s", "slowest client, CPU s", "bytes"):
                values = [r[figure] for r in found if figure in r]
                digits = 0 if figure == "bytes" else 1
                cells.append(f"{np.mean(values):,.{digits}f}" if values else "-")
            rows.append(cells)
    columns = [
        "data", "case", "rule", "seeds", *FIGURES, "CPU s", "slowest client, CPU s", "bytes",
    ]  # fmt: skip
    return ["## Every case", "", *where(quality), *markdown(columns, rows)]


NOTES = (
    "Mean ± standard deviation over seeds: of the split over clients and of the learner, and of "
    "the test rows where they are drawn at random (Adult has the UCI split). All rows of all data "
    "sets; default learner; held-out test rows; choices are made on training rows alone.",
    "Log-mass: of (x, y) on one grid for all models of a data set, nats a row. That of the label's "
    "owner alone is over fewer columns and does not compare with the others.",
    "Label on one client: the aim is the owner alone plus 40 % of the gap to centralised. Density: "
    "within .4 nats of centralised where rows are split; where columns are, half (`latent`) and "
    "three quarters (`joint`) of the gap between the product of client models and centralised.",
    "CPU s: all clients and the server together, one thread. The slowest client's and the server's "
    "are over all messages, not the fits alone. Bytes: all messages, models included.",
    "Beside FedAvg and SplitNN stand the bytes of one full training, alignment included.",
)


def page(runs: Runs, command: str) -> str:
    """The whole page."""
    machines = "; ".join(sorted({r["machine"] for r in runs}))
    dates = sorted({r["date"] for r in runs})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    lines = [
        "# Federations beside centralised training and single clients",
        "",
        f"`{command}`, {when}, {machines}.",
        "",
        *aims_table(runs),
        *joint_line(runs),
        *time_table(runs),
        *growth_table(runs),
        *bytes_table(runs),
        *every_row(runs),
        "## Notes",
        "",
        *(f"- {note}" for note in NOTES),
    ]
    return "\n".join(lines) + "\n"


def write(runs: Runs, command: str) -> None:
    """Write the page and print it."""
    text = page(runs, command)
    (tables.FOLDER / "federation.md").write_text(tables.wrapped(text))
    print(text)
