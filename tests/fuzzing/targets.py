"""What is fuzzed: a case is made from a number; its outcome is right, refused, or a find.

A target makes a case (bytes) from a generator, and checks one. `check` returns normally where the
outcome is right; a `FedcircuitsError` is a refusal; any other exception is a find.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import tomllib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

import fedcircuits as fc
from contracts.bad_lines import plain_line
from contracts.engine import table
from contracts.federations import ID, LABEL
from contracts.messages import example
from contracts.mutations import (
    mutate_bytes,
    mutate_outer,
    mutate_record,
    mutate_text,
)
from contracts.runs import run, specs_of
from fedcircuits import encoding
from fedcircuits.api.client_spec import client_from_spec
from fedcircuits.api.load import from_file_bytes
from fedcircuits.cli.federation_file.read import read_federation
from fedcircuits.engines.replay import Keeper
from fedcircuits.errors import FedcircuitsError, StorageError
from fedcircuits.federation.policy.policy import Policy
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.envelope import unwrap, wrap
from fedcircuits.schema import Schema, read
from fuzzing.basis import ROWS, Rng, WrongError, pick
from fuzzing.service import Http
from recorder import Recorded, Recorder

RENEWED = 200  # cases after which a client that was asked odd things is made anew


def changed_record(data: bytes, rng: Rng) -> bytes:
    """A record with something changed in it and a right digest."""
    record = encoding.unpack(data)
    header = json.loads(json.dumps(record.header))
    changed = encoding.Record(record.kind, header, dict(record.arrays))
    try:
        mutate_record(changed, rng)
        return encoding.pack(changed)
    except (ValueError, TypeError, OverflowError):  # what cannot be written, NaN in a header say
        return mutate_bytes(data, rng)


def mutated(data: bytes, rng: Rng) -> bytes:
    """A packed record, changed in one of three ways."""
    how = rng.integers(4)
    if how == 0:
        return mutate_bytes(data, rng)
    return mutate_outer(data, rng) if how == 1 else changed_record(data, rng)


class Messages:
    """Requests to a client that has been in a run, and parcels to a keeper."""

    name = "messages"
    CASES: ClassVar[tuple[str, ...]] = (
        "rows, joint",
        "columns, latent",
        "columns, joint",
        "both, anchors",
        "columns, product",
    )

    def __init__(self) -> None:
        self._asked = 0
        self._clients: dict[str, Any] = {}

    @cached_property
    def recorded(self) -> list[tuple[str, Recorded]]:
        """Requests of some runs with the case they are from, and one of every kind besides."""
        found = []
        for case in self.CASES:
            engine = Recorder(plain_line(specs_of(case)))
            run(case, engine)
            asked = [x for x in engine.messages if x.to_client and x.client == "a"]
            found += [(case, x) for x in asked]
        seen = {x.verb for _, x in found}
        for name, verb in m.VERBS.items():
            if name not in seen:
                data = example(verb.request).to_bytes()
                found.append((self.CASES[0], Recorded(name, "a", True, data)))
        return found

    def client(self, case: str) -> Any:
        """A client that was asked all that it was asked in the run."""
        self._asked += 1
        if self._asked % RENEWED == 0:
            self._clients.clear()
        if case not in self._clients:
            made = client_from_spec(specs_of(case)["a"])
            for of, message in self.recorded:
                if of == case:
                    made.handle(message.verb, message.data)
            self._clients[case] = made
        return self._clients[case]

    def make(self, rng: Rng) -> bytes:
        """A request with something wrong, and whom it is for."""
        case, message = pick(self.recorded, rng)
        head = {"case": case, "verb": message.verb, "parcel": bool(rng.random() < 0.1)}
        return wrap(head, mutated(message.data, rng))

    def check(self, data: bytes) -> None:
        """A client replies to whatever it is sent, and lives on."""
        head, (payload,) = unwrap(data)
        verb = head["verb"]
        if head["parcel"]:
            keeper = Keeper(lambda: client_from_spec(specs_of(head["case"])["a"]), "a")
            unwrap(keeper.answer(payload))
            return
        reply = encoding.unpack(self.client(head["case"]).handle(verb, payload))
        if reply.kind not in ("Failed", m.VERBS[verb].reply.__name__):
            raise WrongError(f"{verb!r} is answered with {reply.kind!r}")


class Replies:
    """Replies that a server reads: whole ones alone are taken."""

    name = "replies"

    @cached_property
    def recorded(self) -> list[Recorded]:
        """Replies of some runs."""
        found = []
        for case in Messages.CASES:
            engine = Recorder(plain_line(specs_of(case)))
            run(case, engine)
            found += [x for x in engine.messages if not x.to_client]
        return found

    def make(self, rng: Rng) -> bytes:
        """A reply with some bytes changed."""
        message = pick(self.recorded, rng)
        return wrap({"verb": message.verb}, mutated(message.data, rng))

    def check(self, data: bytes) -> None:
        """Read the reply, and models in it."""
        head, (payload,) = unwrap(data)
        reply = m.VERBS[head["verb"]].reply.from_bytes(payload)
        for each in getattr(reply, "models", ()):
            from_file_bytes(m.model_bytes(each.model), "a model")


class Files:
    """Files of models of every kind."""

    name = "files"

    @cached_property
    def saved(self) -> list[bytes]:
        """Bytes of small models."""
        rows, parts = ROWS.head(80), {"a": ROWS.iloc[:60], "b": ROWS.iloc[60:]}
        learned = {"learner": "factorised", "label": LABEL}
        made = [
            fc.learn(rows, **learned),
            fc.learn(rows, learner="hclt", label=LABEL),
            fc.learn(rows, learner="mixture", label=LABEL),
            fc.learn(rows, **learned).condition({"colour": "red"}),
            fc.federate(parts, agreement="product", **learned),
            fc.federate(parts, operation="vote", **learned),
        ]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.fc"
            found = []
            for model in made:
                model.save(path)
                found.append(path.read_bytes())
        return found

    def make(self, rng: Rng) -> bytes:
        """A file with something wrong."""
        return mutated(pick(self.saved, rng), rng)

    def check(self, data: bytes) -> None:
        """A file that loads is a distribution: nothing observed has probability one."""
        model: Any = from_file_bytes(data, "x.fc")
        if isinstance(model, fc.Density):
            nothing = model.log_prob(pd.DataFrame(index=[0])).iloc[0]
            if not abs(nothing) < 1e-6:
                raise WrongError(f"a model whose mass is exp({nothing})")


WORDS = (
    "",
    "=",
    "[",
    "]",
    '"',
    "'",
    "\\",
    "\n",
    "-1",
    "1e400",
    "nan",
    "inf",
    "true",
    "[[x]]",
    "0x",
    "\ud83d\ude00",
    "\x00",
    "9" * 30,
    "id",
    "label",
    "kinds",
    "clients",
    "1979-05-27",
    "[clients]",
    "{}",
    "{a={b={c=1}}}",
    "min_rows",
    "é",
    "\u2028",
    "''' '''",
    "a.b.c = 1",
    "seed = -1",
)
FEDERATION = """label = "bought"
id = "customer"
agreement = "latent"
learner = "factorised"
seed = 3
min_rows = 5
timeout = 20.5
allow_missing = true
missing_values = ["?", "n/a", -1]

[kinds]
colour = "categorical"

[options]
n_clusters = 3

[clients]
a = "a.csv"
b = "b.csv"
"""
POLICY = """columns = ["height", "colour", "bought"]
label = "used"
min_rows = 10
placement = "gathered"
rare_categories = "hidden"
rounds = "masked"
queries = ["log_prob", "predict_proba"]
rows_by_id = false
max_message_bytes = 100000
"""


class Toml:
    """Federation files and policies."""

    name = "toml"

    @cached_property
    def folder(self) -> Path:
        """A folder with the tables that the federation names."""
        self._held = tempfile.TemporaryDirectory()
        folder = Path(self._held.name)
        table(n=40)[[ID, "height", "colour", LABEL]].to_csv(folder / "a.csv", index=False)
        table(n=40)[[ID, "visits"]].to_csv(folder / "b.csv", index=False)
        return folder

    def make(self, rng: Rng) -> bytes:
        """A file with something wrong."""
        text = pick((FEDERATION, POLICY), rng)
        for _ in range(int(rng.integers(1, 4))):
            text = mutate_text(text, rng, WORDS)
        data = text.encode("utf-8", "surrogatepass")
        return mutate_bytes(data, rng) if rng.random() < 0.1 and len(data) > 3000 else data

    def check(self, data: bytes) -> None:
        """Read it both ways; settings are checked as `federate` would."""
        path = self.folder / "x.toml"
        path.write_bytes(data)
        for reads in (Policy.from_toml, read_federation):
            with contextlib.suppress(FedcircuitsError):
                reads(path)
        with contextlib.suppress(tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
            found = tomllib.loads(data.decode())
            found.pop("clients", None)
            with contextlib.suppress(FedcircuitsError):
                Policy(**{k: v for k, v in found.items() if k in Policy.__dataclass_fields__})


CELLS = (
    "",
    ",",
    ";",
    "\t",
    '"',
    '""',
    "\n",
    "\r\n",
    "NaN",
    "inf",
    "-inf",
    "1e308",
    "1e-320",
    "-0",
    "9" * 25,
    "0x1F",
    "true",
    "2024-02-30",
    "2024-02-29 10:00",
    "1,5",
    "é",
    "\x00",
    "\ufeff",
    "?",
    "a" * 300,
    "1_000",
    "None",
    "+5",
    "..",
    "١٢",
)


class Csv:
    """Tables as text: read, described, learned, asked."""

    name = "csv"

    @cached_property
    def texts(self) -> list[str]:
        """Tables as people export them."""
        rows = table(n=24)
        return [
            rows.to_csv(index=False),
            rows.to_csv(index=False, sep=";", decimal=","),
            rows.assign(when=pd.date_range("2024-01-01", periods=24).astype(str)).to_csv(),
        ]

    def make(self, rng: Rng) -> bytes:
        """A table with something odd."""
        text = pick(self.texts, rng)
        for _ in range(int(rng.integers(1, 6))):
            text = mutate_text(text, rng, CELLS)
        data = text.encode(pick(("utf-8", "utf-8", "latin-1", "utf-16"), rng), "replace")
        if rng.random() < 0.2:
            at = int(rng.integers(len(data)))
            data = data[:at] + rng.bytes(3) + data[at + int(rng.integers(5)) :]
        return data

    def check(self, data: bytes) -> None:
        """Whatever is learned gives its own rows a finite density and sums to one."""
        with tempfile.NamedTemporaryFile(suffix=".csv") as file:
            file.write(data)
            file.flush()
            frame = read(file.name)
        schema = Schema.infer(frame)
        model = fc.learn(frame, learner="factorised")
        if not np.isfinite(model.log_prob(frame.head(5))).all():
            raise WrongError("a row that was learned from is impossible")
        if set(model.schema.names) - set(schema.names):
            raise WrongError("a variable that was not inferred")


TARGETS: dict[str, Callable[[], Any]] = {
    kind.name: kind for kind in (Messages, Replies, Files, Toml, Csv, Http)
}
REFUSALS = (FedcircuitsError, StorageError)
