"""A commented federation file from the tables that are to be federated.

What cannot be known is guessed and said: the id is a column that files share and whose values are
all different in each of them, the label a column of few classes with a name such as "target" or at
the end of a table. Guesses are written with a comment, alternatives as comments to be swapped in.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedcircuits.errors import FedcircuitsWarning, FederationError, SchemaError, unknown_name
from fedcircuits.schema import Schema, Variable
from fedcircuits.schema.identifiers import identifiers
from fedcircuits.schema.reading.spellings import spells_missing

MOST_CLASSES = 20
LABEL_NAMES = (
    "label",
    "target",
    "y",
    "class",
    "outcome",
    "diagnosis",
    "default",
    "churn",
    "response",
)
ID_NAME = re.compile(r"(^|_|\b)(id|key|uuid|nr|no|number|code)($|_|\b)|id$", re.IGNORECASE)
SETTINGS = {
    (True, False): ("horizontal", "rows split: every file has the same columns"),
    (False, True): ("vertical", "columns split: the files share no column but the id"),
    (False, False): ("hybrid", "rows and columns split: the files share some of their columns"),
}


@dataclass(frozen=True)
class Draft:
    """A federation file as drafted, and what was found out for it.

    Attributes:
        text: the file.
        clients: name to data file.
        setting: "horizontal", "vertical" or "hybrid".
        why: what that means for these files.
        id: column that aligns rows; None where none was found.
        label: column to be predicted; None where none stands out.
        candidates: columns that could be the label, likeliest first.
        missing_values: texts that seem to mean a missing value.
        drop: columns that would name rows or hold nothing, with why.
        notes: what the user should look at.
    """

    text: str
    clients: dict[str, Path]
    setting: str
    why: str
    id: str | None
    label: str | None
    candidates: tuple[str, ...]
    missing_values: tuple[str, ...]
    drop: Mapping[str, str]
    notes: tuple[str, ...]


def draft(
    tables: Mapping[Path, pd.DataFrame],
    folder: Path,
    label: str | None = None,
    id: str | None = None,
    missing_values: Sequence[str] = (),
    output: str = "model.fc",
) -> Draft:
    """Return a federation file for some tables.

    Args:
        tables: by data file.
        folder: where the federation file goes; data files are named relative to it.
        label: column to be predicted, where the user has said.
        id: column that aligns rows, where the user has said.
        missing_values: texts that mean a missing value, where the user has said; else guessed.
        output: where the model goes.
    """
    clients = _client_names(tables)
    frames = {name: tables[path] for name, path in clients.items()}
    columns = list(dict.fromkeys(str(c) for frame in frames.values() for c in frame.columns))
    for what, name in (("label", label), ("id", id)):
        if name is not None and name not in columns:
            raise FederationError(f"--{what}: {unknown_name('column', name, columns)}")
    spellings = tuple(missing_values) or missing_spellings(frames)
    id = id or _find_id(frames)
    left = _left_out(frames, {n for n in (id, label) if n is not None}, spellings)
    columns = [name for name in columns if name != id and name not in left]
    variables, notes = _variables(frames, columns, spellings)
    shared = [c for c in columns if sum(c in f for f in frames.values()) > 1]
    own = [c for c in columns if not all(c in f for f in frames.values())]
    setting, why = SETTINGS[not own, not shared]
    candidates = _label_candidates(frames, variables)
    chosen = label or (candidates[0] if candidates and _stands_out(candidates[0], frames) else None)
    if setting != "horizontal" and id is None:
        notes.append(
            "no column has different values in every row of two files, so rows cannot be matched: "
            "write id = 'COLUMN' with the column that names the same row in each file; without "
            "one, rows of different files are taken for different ones"
        )
    if chosen is None:
        notes.append("no column stands out as the one to be predicted: write label = 'COLUMN'")
    found = Draft(
        "", clients, setting, why, id, chosen, tuple(c for c in candidates if c != chosen),
        spellings, left, tuple(notes),
    )  # fmt: skip
    text = _text(
        found, frames, variables, {n: _relative(p, folder) for n, p in clients.items()}, output
    )
    return Draft(**{**vars(found), "text": text})


def _client_names(tables: Mapping[Path, pd.DataFrame]) -> dict[str, Path]:
    """Return a name for each file: its stem, with its folder where two are alike."""
    stems = [path.stem for path in tables]
    names: dict[str, Path] = {}
    for path, stem in zip(tables, stems, strict=True):
        long = stems.count(stem) > 1
        name = re.sub(r"[^\w-]+", "-", f"{path.parent.name}-{stem}" if long else stem).strip("-")
        while not name or name in names:
            name = f"{name}-{len(names) + 1}".lstrip("-")
        names[name] = path
    return names


def missing_spellings(frames: Mapping[str, pd.DataFrame]) -> tuple[str, ...]:
    """Return texts that stand in columns of numbers and look like "unknown"."""
    found: dict[str, None] = {}
    for frame in frames.values():
        for name in frame.columns:
            texts = frame[name].dropna()
            if texts.dtype.kind in "iufbM" or len(texts) == 0:
                continue
            texts = texts.astype(str).str.strip()
            odd = texts[spells_missing(texts)].unique()
            rest = texts[~texts.isin(odd)]
            numbers = pd.to_numeric(rest.str.replace(",", ".", regex=False), errors="coerce")
            if len(odd) and len(rest) and numbers.notna().all():
                found |= dict.fromkeys(map(str, odd))
            elif "?" in odd:
                found["?"] = None
    return tuple(found)


def _find_id(frames: Mapping[str, pd.DataFrame]) -> str | None:
    """Return the column that names rows in two or more files, None where there is none."""
    best: tuple[float, str] | None = None
    names = dict.fromkeys(str(c) for frame in frames.values() for c in frame.columns)
    for name in names:
        held = [f[name].dropna() for f in frames.values() if name in f]
        if len(held) < 2 or any(column.dtype.kind in "fbM" for column in held):
            continue
        if any(len(column) == 0 or column.nunique() < len(column) for column in held):
            continue
        seen = [set(column.astype(str)) for column in held]
        overlap = max(
            len(a & b) / min(len(a), len(b)) for at, a in enumerate(seen) for b in seen[:at]
        )
        named = 2.0 if ID_NAME.search(name) else 0.0
        if overlap == 0 and not named:
            continue
        score = named + overlap + 0.1 * len(held)
        if best is None or score > best[0]:
            best = (score, name)
    return None if best is None else best[1]


def _variables(
    frames: Mapping[str, pd.DataFrame], columns: list[str], spellings: tuple[str, ...]
) -> tuple[dict[str, dict[str, Variable]], list[str]]:
    """Return the guessed variable of every column by column and client, and notes on trouble."""
    found: dict[str, dict[str, Variable]] = {}
    notes: dict[str, None] = {}
    for client, frame in frames.items():
        for name in (c for c in columns if c in frame and frame[c].notna().any()):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", FedcircuitsWarning)
                try:
                    schema = Schema.infer(frame[[name]], missing_values=spellings)
                    found.setdefault(name, {})[client] = schema[name]
                except SchemaError as error:
                    notes[f"{client}: {error}"] = None
            notes |= dict.fromkeys(f"{client}: {warning.message}" for warning in caught)
    return found, list(notes)


def _left_out(
    frames: Mapping[str, pd.DataFrame], kept: set[str], missing_values: tuple[str, ...]
) -> dict[str, str]:
    """Return columns that would not be learned unasked, each with why."""
    found: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedcircuitsWarning)  # doubtful ones are noted already
        for frame in frames.values():
            found |= identifiers(frame, kept, missing_values)
    for name in dict.fromkeys(str(c) for frame in frames.values() for c in frame.columns):
        if not any(name in f and f[name].notna().any() for f in frames.values()):
            found[name] = "no value in any row"
    return found


def _label_candidates(
    frames: Mapping[str, pd.DataFrame], variables: Mapping[str, Mapping[str, Variable]]
) -> list[str]:
    """Return columns of 2 to 20 classes, likeliest label first."""
    scored = []
    for at, (name, held) in enumerate(variables.items()):
        values = {v for client in held for v in frames[client][name].dropna().unique()}
        if not 2 <= len(values) <= MOST_CLASSES or any(v.time for v in held.values()):
            continue
        coded = any(v.is_coded for v in held.values())
        score = 4 * (name.lower() in LABEL_NAMES) + 2 * _is_last(name, frames) + coded
        score += len(values) == 2
        scored.append((-score, at, name))
    return [name for _, _, name in sorted(scored)]


def _is_last(name: str, frames: Mapping[str, pd.DataFrame]) -> bool:
    return any(str(frame.columns[-1]) == name for frame in frames.values())


def _stands_out(name: str, frames: Mapping[str, pd.DataFrame]) -> bool:
    return name.lower() in LABEL_NAMES or _is_last(name, frames)


# --- the text -------------------------------------------------------------------------------------


def _text(
    found: Draft,
    frames: Mapping[str, pd.DataFrame],
    variables: Mapping[str, Mapping[str, Variable]],
    paths: Mapping[str, str],
    output: str,
) -> str:
    """Return the federation file."""
    lines = [
        "# A federation file: `fedcircuits federate THIS_FILE` trains one model from these tables.",
        "# Lines that begin with # are comments. All settings: docs/federation-toml.md",
        f"# Found: {found.why}.",
        "",
    ]
    others = ", ".join(found.candidates[:5])
    if found.label is not None:
        also = f"; others that could be: {others}" if others else ""
        lines += [f"# The column to be predicted{also}", f"label = {_quoted(found.label)}"]
    else:
        also = f"; it could be: {others}" if others else ""
        first = found.candidates[0] if found.candidates else "COLUMN"
        lines += [f"# The column to be predicted{also}", f"# label = {_quoted(first)}"]
    names = "names rows" if found.setting == "horizontal" else "names the same row in every file"
    if found.id is not None:
        lines.append(f"# The column that {names}; it is never a variable of the model")
        lines.append(f"id = {_quoted(found.id)}")
    elif found.setting != "horizontal":
        lines += [f"# The column that {names}: none was found", '# id = "COLUMN"']
    lines += ["# Where the model goes", f"output = {_quoted(output)}"]
    if found.setting != "horizontal" and found.label is not None:
        lines += [
            "# Clients that do not hold the label are sent its classes, sealed; with 'used' they",
            "# send sealed codes to its owner instead, and its classes go nowhere",
            "# label_use = 'sent'",
        ]
    if found.missing_values:
        lines.append("# Texts that mean a missing value, in these files")
        lines.append(f"missing_values = [{', '.join(map(_quoted, found.missing_values))}]")
    if found.drop:
        lines.append("# Columns that are not learned; take out of the list what is to be learned")
        lines += [f"#   {name}: {why}" for name, why in found.drop.items()]
        lines.append(f"drop = [{', '.join(map(_quoted, found.drop))}]")
    lines += [
        '# How clients train ("hclt" is the default) and how their models become one',
        '# learner = "hclt"',
        '# agreement = "auto"',
        "# seed = 0",
        "",
        "[clients]",
    ]
    for name, path in paths.items():
        frame = frames[name]
        lines.append(
            f"{_key(name)} = {_quoted(path)}  # {len(frame)} rows, {len(frame.columns)} columns"
        )
    lines += [
        "",
        "# What each column was taken for. To change one, take the # away and write another kind:",
        "# continuous, count (whole numbers), categorical or binary.",
        "[kinds]",
    ]
    width = max((len(_kind_line(n, h)) for n, h in variables.items()), default=0)
    for name, held in variables.items():
        about = _about(name, held, frames, found.missing_values)
        lines.append(f"{_kind_line(name, held):{width}}  # {about}")
    return "\n".join(lines) + "\n"


def _kind_line(name: str, held: Mapping[str, Variable]) -> str:
    """Return the line of a column: active where clients' guesses differ, else a comment."""
    coded = {v.is_coded for v in held.values()}
    kind = "categorical" if len(coded) > 1 else next(iter(held.values())).kind
    return f"{'' if len(coded) > 1 else '# '}{_key(name)} = {_quoted(kind)}"


def _about(
    name: str,
    held: Mapping[str, Variable],
    frames: Mapping[str, pd.DataFrame],
    missing: tuple[str, ...],
) -> str:
    """Return a few words on a column's values and on who holds it."""
    cells = pd.concat([frames[client][name] for client in held])
    cells = cells.mask(cells.isin(missing))
    first = next(iter(held.values()))
    if first.is_coded:
        values = [str(v) for v in dict.fromkeys(cells.dropna())]
        about = ", ".join(values[:4]) + (f", ... ({len(values)} values)" if len(values) > 4 else "")
    elif first.time is not None:
        about = f"{first.time}, {cells.dropna().min()} to {cells.dropna().max()}"
    else:
        lows, highs = zip(*[v.domain or (0.0, 0.0) for v in held.values()], strict=True)
        about = f"{min(lows):g} to {max(highs):g}"
    share = float(cells.isna().mean())
    about += f"; {share:.1%} missing" if share >= 5e-4 else "; hardly any missing" if share else ""
    return about.replace("\n", " ") + (f"; in {', '.join(held)}" if len(held) < len(frames) else "")


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(text: Any) -> str:
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'
