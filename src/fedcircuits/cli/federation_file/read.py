"""Reading federation files: TOML with the clients and the settings of a run.

Every setting of `RunSettings` may stand at the top of the file under its own name; mappings (kinds,
options, engine_options) are tables. Types are those of the dataclass, so a setting that is added
there is read here.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fedcircuits.cli.federation_file.lines import place
from fedcircuits.errors import FedcircuitsError, FederationError, unknown_name

PORT = 8002
# Options of engines that are files or folders: relative to the federation file, as clients are.
PATHS = ("token", "tls", "folder")
FINGERPRINT = re.compile(r"[0-9a-f]{4}(-[0-9a-f]{4}){7}")
WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text",
         list: "a list", dict: "a table"}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A federation file's text and values, for errors that name line and key.

    Attributes:
        file: where it is.
        text: as written.
        values: as TOML reads it.
    """

    file: Path
    text: str
    values: dict[str, Any]

    @staticmethod
    def read(file: Path) -> Source:
        """Return the file as read; an error where there is none or it is not TOML."""
        try:
            text = file.read_text(encoding="utf-8")
            return Source(file, text, tomllib.loads(text))
        except OSError as error:
            raise FederationError(f"cannot read {file}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise FederationError(
                f"{file} is not a TOML file: {error}{_hint(file, error)}"
            ) from None

    def error(self, path: tuple[str, ...], message: str) -> FederationError:
        """Return an error that begins with the file and the line of a key."""
        return FederationError(f"{self.file}{place(self.text, path)}: {message}")

    @contextmanager
    def naming_lines(self) -> Iterator[None]:
        """Add file and line to an error whose text names a key or a client of the file."""
        try:
            yield
        except FedcircuitsError as error:
            path = self._named_in(str(error))
            if path is not None:
                error.args = (f"{self.file}{place(self.text, path)}: {error}", *error.args[1:])
            raise

    def _named_in(self, message: str) -> tuple[str, ...] | None:
        """Return the first key, option or (in quotes) client that a message names."""
        clients = self.values.get("clients", {})
        names: dict[tuple[str, ...], str] = {("clients", name): repr(name) for name in clients}
        names |= {(name,): rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in self.values}
        for table in ("options", "engine_options", "kinds"):
            inner = self.values.get(table)
            if isinstance(inner, dict):
                names |= {(table, name): repr(name) for name in inner}
        found = [
            (path[0] != "kinds" or len(path) == 1, at.start(), path)  # a kind before its client
            for path, pattern in names.items()
            for at in [re.search(pattern, message)]
            if at is not None and path != ("clients",)
        ]
        return min(found)[-1] if found else None


def _hint(file: Path, error: ValueError) -> str:
    """What to do about text that is no TOML."""
    if file.suffix in (".csv", ".parquet"):
        return f"; `fedcircuits init {file} OTHER` writes a federation file for tables"
    if "Invalid value" in str(error):
        return "; text stands in quotes"
    return "; a name stands there twice" if "overwrite" in str(error) else ""


@dataclass(frozen=True)
class FederationFile:
    """A federation file as it was read.

    Attributes:
        file: where it is.
        clients: name to data file; None where the client has its data on its own machine.
        settings: keyword arguments of `federate`, options of the rule among them.
        output: where the model goes; None where the file does not say.
        host: name or address under which clients reach the coordinator.
        port: the one that is open there.
        kits: folder of start-up kits.
        fingerprints: of the clients' keys, by name, where the file lists them.
        source: text and values of the file, for errors that name a line.
    """

    file: Path
    clients: dict[str, Any]
    settings: dict[str, Any]
    output: Path | None
    host: str
    port: int
    kits: Path
    fingerprints: dict[str, str]
    source: Source = field(repr=False, compare=False)

    @property
    def names(self) -> list[str]:
        """Names of the clients, sorted."""
        return sorted(self.clients)

    def client_settings(self) -> dict[str, dict[str, Any]]:
        """Return what each client is sent about the run before the first message, by name."""
        from fedcircuits.api.settings import RunSettings

        run = RunSettings.from_keywords(**self.settings)
        return {
            name: {
                "learner": run.learner_of(name),
                "id": run.id,
                "label": run.label,
            }
            for name in self.names
        }


@dataclass(frozen=True)
class Coordinator:
    """The table [coordinator] of a federation file."""

    host: str = "localhost"
    port: int = PORT
    kits: str = "kits"


def read_federation(file: Path, needs_data: bool = True) -> FederationFile:
    """Return what a federation file says, paths made relative to its folder.

    Args:
        file: in TOML.
        needs_data: whether every client must have a data file; the clients of a federation over
            several machines read their own.
    """
    from fedcircuits.api.settings import RunSettings

    source = Source.read(file)
    found = dict(source.values)
    clients = found.pop("clients", None)
    there = Coordinator(
        **_checked(source, found.pop("coordinator", {}), Coordinator, ("coordinator",))
    )
    output = found.pop("output", None)
    if not isinstance(output, str | None):
        raise source.error(("output",), f"output is the name of a file, found {output!r}")
    settings = _checked(source, found, RunSettings, also=("clients", "coordinator", "output"))
    if not isinstance(clients, dict) or not clients:
        raise source.error(("clients",), "name the clients: [clients] with NAME = 'file.csv'")
    settings |= settings.pop("options", {})
    if "engine_options" in settings:
        settings["engine_options"] = {
            name: str(file.parent / value) if name in PATHS else value
            for name, value in settings["engine_options"].items()
        }
    rows, learners = _clients(source, clients, needs_data)
    if learners:
        default = settings.get("learner", RunSettings.learner)
        settings["learner"] = {name: learners.get(name, default) for name in rows}
    with source.naming_lines():
        RunSettings.from_keywords(**settings)
    return FederationFile(
        file,
        rows,
        settings,
        None if output is None else file.parent / output,
        there.host,
        there.port,
        file.parent / there.kits,
        _fingerprints(source, clients),
        source,
    )


def _clients(
    source: Source, clients: dict[str, Any], needs_data: bool
) -> tuple[dict[str, Path | None], dict[str, str]]:
    """Return data file and learner by client, each where the table [clients] names one."""
    rows: dict[str, Path | None] = {}
    learners = {}
    for name, entry in clients.items():
        path = ("clients", name)
        entry = {"data": entry} if isinstance(entry, str) else entry
        if not isinstance(entry, dict) or not isinstance(
            entry.get("data", None if needs_data else ""), str
        ):
            raise source.error(path, f"client {name!r} needs data = 'file.csv', found {entry!r}")
        for key in entry:
            known = ("data", "learner", "fingerprint")
            if key not in known:
                raise source.error(path, unknown_name("setting", key, known, f"client {name!r}"))
        rows[name] = source.file.parent / entry["data"] if "data" in entry else None
        if "learner" in entry:
            learners[name] = str(entry["learner"])
    return rows, learners


def _fingerprints(source: Source, clients: dict[str, Any]) -> dict[str, str]:
    """Return the fingerprints in the table [clients], as `silo --fingerprint` prints them."""
    found = {}
    for name, entry in clients.items():
        if isinstance(entry, dict) and "fingerprint" in entry:
            given = entry["fingerprint"]
            if not isinstance(given, str) or FINGERPRINT.fullmatch(given) is None:
                path = ("clients", name)
                raise source.error(
                    path, f"client {name!r}: fingerprint is what `fedcircuits silo --fingerprint` "
                    f"prints at that client, found {given!r}",
                )  # fmt: skip
            found[name] = given
    return found


def read_parties(file: Path, kits: Path | None = None) -> FederationFile:
    """Return the federation file of a coordinator, whose clients read their own data.

    Args:
        file: in TOML, without data files.
        kits: folder of the start-up kits; by default the one that the file names.
    """
    found = read_federation(file, needs_data=False)
    if "id_secret" in found.settings:
        raise FederationError(
            f"{file}: id_secret is for the parties alone, who give it to `fedcircuits silo` in a "
            "file (--id-secret-file): take it out of the coordinator's file"
        )
    if "drop" in found.settings:
        raise found.source.error(
            ("drop",),
            "each party chooses its own columns: `columns` in its policy (docs/policy.md)",
        )
    settings = {name: value for name, value in found.settings.items() if name != "engine"}
    return replace(found, settings=settings, kits=kits or found.kits)


def _checked(
    source: Source,
    found: Any,
    kind: type[Any],
    table: tuple[str, ...] = (),
    also: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the entries of a table of the file whose names and types are those of a dataclass."""
    title = f"[{'.'.join(table)}]" if table else ""
    if not isinstance(found, dict):
        raise source.error(table, f"{title} is a table, found {found!r}")
    types = {name: _toml_types(hint) for name, hint in get_type_hints(kind).items()}
    known = {name: accepted for name, accepted in types.items() if accepted}
    for name, value in found.items():
        if name not in known:
            unknown = unknown_name("setting", name, sorted([*known, *also]), title)
            raise source.error((*table, name), unknown)
        # bool is an int to Python, and not to whoever writes the file
        if not isinstance(value, known[name]) or (
            isinstance(value, bool) and bool not in known[name]
        ):
            expected = " or ".join(WORDS[one] for one in known[name] if one in WORDS)
            raise source.error(
                (*table, name),
                f"{name}{f' of {title}' if title else ''} has a value of the wrong type: "
                f"expected {expected}, found {value!r}",
            )
    return dict(found)


def _toml_types(hint: Any) -> tuple[type, ...]:
    """Return the TOML types that a setting's type accepts; none where a file cannot say it."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        found = [one for part in get_args(hint) for one in _toml_types(part)]
        return tuple(dict.fromkeys(found))
    if origin is Literal:
        return tuple(dict.fromkeys(type(value) for value in get_args(hint)))
    if origin is not None and issubclass(origin, Mapping):
        return (dict,)
    if origin is not None and issubclass(origin, Sequence):
        return (list,)
    if hint is float:
        return (float, int)
    return (hint,) if hint in (bool, int, str) else ()
