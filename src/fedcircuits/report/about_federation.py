"""The part of a report about a federation: who holds what, who adds what, what was sent, why."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import pandas as pd

from fedcircuits.errors import FederationError
from fedcircuits.report import figures, networks
from fedcircuits.report.meanings import explained
from fedcircuits.report.scores import label_scores
from fedcircuits.report.section import Section

SERVER = "server"  # owner of the nodes that hold the label's classes

COLUMNS_SHOWN = 60
LEAST_GAIN = 1e-6  # below it there is nothing to draw


class Federation(Protocol):
    """What a report asks of a federated model beyond a density."""

    clients: Any
    owners: Any
    parts: Any
    structure: Any
    setting: Any
    rule: Any
    ledger: Any
    reveals: Any
    dropped: Any
    n_rows: Any

    def contributions(self, rows: Any, label: str | None = None) -> pd.DataFrame:
        """Returns the change of each score when a client leaves."""
        ...


def is_federation(model: object) -> bool:
    """Whether a model says which client each of its parts came from."""
    return bool(getattr(model, "owners", ())) and getattr(model, "rule", None) is not None


def holdings(fed: Federation) -> str:
    """A drawing of which client holds which column, shaded by its number of rows."""
    clients = list(fed.clients)
    held: dict[str, set[str]] = {client: set() for client in clients}
    for part, owner in zip(fed.parts, fed.owners, strict=True):
        if owner in held:
            held[owner] |= set(part.schema.names)
    learned = set().union(*held.values())  # of the label some rules have nothing but its classes
    names = fed.schema.names  # type: ignore[attr-defined]
    columns = [name for name in names if name in learned][:COLUMNS_SHOWN]
    cells = np.array(
        [[fed.n_rows.get(c, 1) if name in held[c] else 0 for name in columns] for c in clients],
        dtype=float,
    )
    return figures.holdings(clients, columns, cells, "which client holds which column")


def network(fed: Any) -> list[networks.Node]:
    """Algorithm 1's network for a drawing; models of one client and columns are one leaf."""
    label = getattr(getattr(fed, "fitted", None), "label", None)
    colours = networks.owner_colours(fed.owners, SERVER)
    leaves = []
    for part, owner in zip(fed.parts, fed.owners, strict=True):
        text = f"classes of\n{label}" if owner == SERVER else ""
        leaves.append((text or networks.leaf_text(owner, part.schema.names), colours[owner]))
    return networks.network(fed.structure, leaves, merge=True)


def facts(fed: Federation) -> list[tuple[str, str]]:
    """Names and values that describe a federation in a table."""
    found = [
        ("split", f"{fed.setting}: {_SETTINGS.get(fed.setting, '')}"),
        ("agreement rule", str(fed.rule.name)),
        ("clients", ", ".join(f"{c} ({fed.n_rows.get(c, '?')} rows)" for c in fed.clients)),
        ("bytes sent in all", f"{fed.ledger.n_bytes:,}"),
    ]
    return found + [(f"left out: {name}", why) for name, why in fed.dropped.items()]


_SETTINGS = {
    "horizontal": "every client holds the same columns of its own rows (sum nodes)",
    "vertical": "every client holds its own columns of the same rows (product nodes)",
    "hybrid": "clients differ in rows and in columns (sum and product nodes)",
}


def who_learns_what(lines: Iterable[str]) -> list[tuple[str, str]]:
    """What a rule reveals: recipient and level, and of what; the server first.

    Args:
        lines: of a rule, as it words them: "CASE: to RECIPIENT, LEVEL: WHAT".
    """
    return [
        (
            who,
            "; ".join(
                f"{case}: {'; '.join(what)}" if case else "; ".join(what) for case, what in by
            ),
        )
        for who, by in items_learned(lines)
    ]


def items_learned(lines: Iterable[str]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """What a rule reveals as `who_learns_what`: by recipient, by case, each thing on its own."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for line in lines:
        match = _REVEALED.fullmatch(str(line).replace("`", ""))
        case, who, level, what = ("", "a client", "", line) if match is None else match.groups()
        found.setdefault((who, level), {}).setdefault(case or "", []).append(what)
    first = sorted(found, key=lambda key: (RECIPIENTS.find(key[0]), "aggregates" not in key[1]))
    return [(", ".join(filter(None, key)), _by_case(found[key])) for key in first]


def _by_case(found: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    """Texts by case, each once, those of every case first."""
    return [
        (case, list(dict.fromkeys(each for text in texts for each in text.split("; "))))
        for case, texts in sorted(found.items())
    ]


_REVEALED = re.compile(r"(?:([^:]*): )?to ([^,:]+), ([^:]+): (.*)")
RECIPIENTS = "the server, other clients, whoever gets the model"
LEVELS = {
    "aggregates": "sums, tables and models of many rows",
    "bounded codes": "a few bits about single rows, as many as are named",
    "row evidence": "numbers from which single rows can be worked out",
}


def sent(fed: Federation) -> pd.DataFrame:
    """Bytes by phase, and bits a row that the server learned: a row for each client."""
    table = fed.ledger.table(["client", "phase"])
    wide = table.pivot(index="client", columns="phase", values="bytes").fillna(0).astype(int)
    phases = [phase for phase in PHASES if phase in wide.columns]
    wide = wide[[*phases, *(name for name in wide.columns if name not in phases)]]
    wide["all bytes"] = wide.sum(axis=1)
    revealed = fed.ledger.table(["client"]).set_index("client")
    wide["bits a row"] = revealed["bits a row"]
    wide["most that is revealed of a row"] = revealed["level"]
    answer: pd.DataFrame = wide.reset_index()
    return answer


PHASES = ("schema", "alignment", "agreement", "training", "validation", "query")  # in their order
DONE_IN = {
    "schema": "columns, categories and sketches of numbers are agreed",
    "alignment": "rows of one id are matched",
    "agreement": "groups of rows are agreed",
    "training": "clients fit models of their own rows",
    "validation": "candidates are scored on held-out rows",
    "query": "the finished model is asked",
}


def timeline(fed: Federation) -> pd.DataFrame:
    """The phases of the run in their order, with messages, bytes and, in the run itself, times."""
    table = fed.ledger.table(["phase"]).set_index("phase")
    found = [phase for phase in PHASES if phase in table.index]
    answer = pd.DataFrame(
        {
            "phase": found,
            "what happens": [DONE_IN[phase] for phase in found],
            "messages": [int(table.loc[phase, "messages"]) for phase in found],
            "bytes": [int(table.loc[phase, "bytes"]) for phase in found],
        }
    )
    if steps := fed.ledger.steps():
        spans = [[(a, b) for phase, _, a, b in steps if phase == each] for each in found]
        answer["begins (s)"] = [round(span[0][0], 2) for span in spans]
        answer["ends (s)"] = [round(span[-1][1], 2) for span in spans]
        answer["seconds in it"] = [round(sum(b - a for a, b in span), 2) for span in spans]
    return answer


def _timeline(model: Any) -> Section:
    """The section with times where the run is still in memory."""
    words, pictures = "What happened, in this order.", []
    if steps := model.ledger.steps():
        words += " Seconds count from the first message and include the clients' work."
        title = "messages and clients' work over time"
        rows = [phase for phase in PHASES if any(step[0] == phase for step in steps)]
        spans = [[(a, b) for phase, _, a, b in steps if phase == row] for row in rows]
        pictures.append((title, figures.spans(rows, spans, title)))
    else:
        words += " Model files hold no times: a report written by the run itself shows them."
    if seconds := dict(getattr(model.fitted, "seconds", {})):
        title = "CPU seconds of each client's fits"
        names = sorted(seconds)
        values = np.array([seconds[name] for name in names])
        pictures.append((title, figures.ranking(names, values, title, "seconds")))
    return Section("Timeline", words, table=timeline(model), pictures=pictures)


def sections(model: Any, rows: pd.DataFrame | None, label: str | None) -> Iterable[Section]:
    """Yields the sections of a federation."""
    nodes = network(model)
    words = f"the network of Algorithm 1: {networks.SYMBOLS}"
    drawing = figures.drawn(
        networks.network_size(nodes), words, lambda axes: networks.paint_network(axes, nodes)
    )
    yield Section(
        "Who holds what",
        "Who holds which columns and rows, and how the clients' models become one: sums and "
        "products are put together by the server.",
        facts(model),
        pictures=[
            (words, drawing),
            ("columns of each client's models; darker: more rows", holdings(model)),
        ],
    )
    if rows is not None and len(model.clients) > 1:
        yield from _clients(model, rows, label)
    yield from _why(model)
    yield Section(
        "What left the clients",
        "Bytes of every message, and the bits that the server learned of each row at most, "
        "trials of other rules among it.",
        table=sent(model),
    )
    levels = [f"{level}: {words}" for level, words in LEVELS.items() if level in str(model.reveals)]
    yield Section(
        "Who learned what",
        f"What the messages of the rule {model.rule.name!r} tell whom, besides names of columns, "
        "categories and sketches of single columns.",
        who_learns_what(model.reveals),
        lines=levels,
    )
    yield _timeline(model)


def fits(model: Any) -> tuple[list[tuple[str, str]], list[str]]:
    """What learners said of the clients' fits: facts, and warnings by client."""
    facts, warned = [], []
    for client, jobs in sorted(dict(getattr(model.fitted, "reports", {})).items()):
        found = [report for reports in jobs.values() for report in reports]
        learners = ", ".join(sorted({report.learner for report in found}))
        facts.append((client, f"{len(found)} fit{'s'[: len(found) != 1]} by {learners}"))
        said = dict.fromkeys(str(line) for report in found for line in report.warnings)
        warned += [f"{client}: {explained(line)}" for line in said]
    return facts, warned


SHAPLEY = (
    " Shapley value: the mean gain when the client joins some of the others, over all orders in "
    "which clients may join."
)


def _moves(values: pd.Series[Any]) -> bool:
    return bool((values.astype(float).abs() > LEAST_GAIN).any())


def _clients(model: Any, rows: pd.DataFrame, label: str | None) -> Iterable[Section]:
    """What each client adds, and how good it is alone."""
    try:
        table = model.contributions(rows, label)
    except FederationError as error:  # a rule under which nobody can leave
        yield Section("What each client adds", f"Not known: {error}")
        return
    clients = list(table["client"])
    same = [name for name in table if name.startswith("gain") and not _moves(table[name])]
    table = table.drop(columns=same)
    pictures = []
    if label is not None and "AUC alone" in table:
        given = rows[rows[label].notna()]
        proba = model.predict_proba(given.drop(columns=label), label, unknown="missing")
        together = label_scores(proba, given[label]).auc
        title = "AUC of each client alone, and of all together"
        alone = table["AUC alone"].to_numpy(float)
        pictures.append((title, figures.compared(clients, alone, together, title, "AUC")))
    for name in table.columns:
        if name.startswith("gain in"):
            title = f"{name} with the client"
            values = table[name].to_numpy(float)
            pictures.append((title, figures.ranking(clients, values, title, name)))
    yield Section(
        "What each client adds",
        "Scores of the held-out rows when one client leaves (exact, nothing trained again) and "
        "of each client alone. Positive gains: the federation is better with the client (a gain in "
        "log-loss is how much lower it is)."
        + (SHAPLEY if any("Shapley" in name for name in table) else "")
        + (f" Not shown, as it is zero for all: {', '.join(same)}." if same else ""),
        table=table,
        pictures=pictures,
    )


def _why(model: Any) -> Iterable[Section]:
    """Which rules were considered, and why this one was taken."""
    why = getattr(model, "why", None)
    if why is None:
        return
    table = why.table().drop(columns="reveals").dropna(axis=1, how="all")
    text = f"{why.rule!r} was taken: {why.reason}."
    if why.n_rows:
        text += f" Scores are means over {why.n_rows} held-out rows of the clients, in nats."
    yield Section("Which rule, and why", text, table=table)
