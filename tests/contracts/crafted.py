"""A client that follows the protocol in form and not in content: replies whose numbers are made up.

Digest and name of a crafted reply are right, so that nothing but a look at its content can tell.
What a client seals is crafted before it is sealed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcircuits import encoding
from fedcircuits.api.client_spec import client_from_spec
from fedcircuits.federation.client.client import Client
from fedcircuits.federation.wire import requests as m

Reply = bytes | Exception
Change = Callable[[Any], Any]


def entry(value: float) -> Change:
    """Put a value in the first place of an array."""

    def change(array: Any) -> Any:
        changed = np.array(array)
        with np.errstate(all="ignore"):
            changed.reshape(-1)[:1] = np.asarray(value).astype(changed.dtype)
        return changed

    return change


def every(value: float) -> Change:
    """Put a value in all places of an array."""

    def change(array: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.full_like(array, np.asarray(value).astype(array.dtype))

    return change


FLOATS: dict[str, Change] = {
    "not a number": entry(np.nan),
    "all not a number": every(np.nan),
    "infinite": entry(np.inf),
    "minus infinite": entry(-np.inf),
    "negative": entry(-7.0),
    "enormous": every(1e300),
    "nothing but zeros": every(0.0),
}
INTEGERS: dict[str, Change] = {
    "negative": entry(-1),
    "highest": every(2**63 - 1),
    "high": entry(100_000),
    "nothing but zeros": every(0),
}
SHAPES: dict[str, Change] = {
    "empty": lambda array: array[:0],
    "one more": lambda array: np.concatenate([array, array[:1]]),
    "one dimension more": lambda array: array[None],
    "floats": lambda array: array.astype(float),
}
NUMBERS: tuple[Any, ...] = (-1, 0, 2**62, 1e308, -0.5)
WORDS: tuple[Any, ...] = ("", "\u202e../../x\x00", "variable")


@dataclass(frozen=True)
class Craft:
    """One change of one reply.

    Attributes:
        client: whose.
        verb: that it replies to.
        occurrence: of the verb at the client.
        place: name of the array, or keys down the header; empty for what is sealed.
        what: name of the change of an array.
        value: what stands in the header instead.
    """

    client: str
    verb: str
    occurrence: int
    place: tuple[Any, ...]
    what: str = ""
    value: Any = None

    def of_array(self, array: Any) -> Any:
        """The array as it is sent instead."""
        kinds = FLOATS if array.dtype.kind == "f" else INTEGERS
        return ({**kinds, **SHAPES})[self.what](array)

    def made(self, answer: bytes, name: str) -> bytes:
        """The reply with that change, its digest and name right."""
        record = encoding.unpack(answer)
        header, arrays = json.loads(json.dumps(record.header)), dict(record.arrays)
        if self.what:
            arrays[self.place[0]] = np.ascontiguousarray(self.of_array(arrays[self.place[0]]))
        else:
            within = header
            for key in self.place[:-1]:
                within = within[key]
            within[self.place[-1]] = self.value
        return encoding.pack(encoding.Record(record.kind, header, arrays), name)


def crafts_of(client: str, verb: str, occurrence: int, answer: bytes) -> Iterator[Craft]:
    """Every change of a reply."""
    record = encoding.unpack(answer)
    for name, array in record.arrays.items():
        if name in ("seconds", "values") or name.endswith("/values"):
            continue  # CPU time, ciphertext
        kinds = FLOATS if np.asarray(array).dtype.kind == "f" else INTEGERS
        for what in {**kinds, **SHAPES}:
            if np.asarray(array).ndim or what not in SHAPES:
                yield Craft(client, verb, occurrence, (name,), what)
    for place, value in _leaves(record.header):
        others: tuple[Any, ...] = WORDS if isinstance(value, str) else NUMBERS
        for other in ([], {}) if isinstance(value, (list, dict)) else others:
            yield Craft(client, verb, occurrence, place, value=other)


def _leaves(tree: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    for key in keys:
        value = tree[key]
        if isinstance(value, (dict, list)):
            yield from _leaves(value, (*place, key))
        if value is not None and not isinstance(value, bool):
            yield (*place, key), value


class CraftedLine:
    """Clients of this process, of whose replies one is crafted.

    Attributes:
        replies: (client, verb, occurrence) to the reply, uncrafted.
        sealed: (client, verb, occurrence) of replies for which something was sealed.

    Args:
        specs: of the clients.
        craft: None for honest clients.
    """

    def __init__(self, specs: Mapping[str, bytes], craft: Craft | None = None) -> None:
        self._clients: dict[str, Client] = {n: client_from_spec(s) for n, s in specs.items()}
        self._craft = craft
        self._asked: dict[tuple[str, str], int] = {}
        self._now = ("", "", 0)
        self.replies: dict[tuple[str, str, int], bytes] = {}
        self.sealed: dict[tuple[str, str, int], Any] = {}
        for client in self._clients.values():
            self._watch(client)

    def _watch(self, client: Client) -> None:
        key = client._mail.key  # type: ignore[attr-defined]
        plain = key.seal

        def seal(values: Any, *rest: Any) -> Any:
            self.sealed.setdefault(self._now, np.asarray(values))
            craft = self._craft
            if (
                craft
                and not craft.place
                and (craft.client, craft.verb, craft.occurrence) == (self._now)
            ):
                values = craft.of_array(np.asarray(values))
            return plain(values, *rest)

        object.__setattr__(key, "seal", seal)

    def members(self) -> list[str]:
        """Names of the clients."""
        return sorted(self._clients)

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, Reply]:
        """Carry one message to each client."""
        del timeout
        return {name: self._answer(name, verb, payloads[name]) for name in sorted(payloads)}

    def _answer(self, name: str, verb: str, data: bytes) -> Reply:
        n = self._asked[name, verb] = self._asked.get((name, verb), 0) + 1
        self._now = (name, verb, n)
        try:
            answer = self._clients[name].handle(verb, data)
        except Exception as error:  # as an engine hands it on
            return error
        self.replies[self._now] = answer
        craft = self._craft
        if craft and craft.place and (craft.client, craft.verb, craft.occurrence) == self._now:
            if encoding.unpack(answer).kind == "Failed":
                return answer
            return craft.made(answer, m.request_name(name, verb, data))
        return answer

    def close(self) -> None:
        """Nothing is held."""


def every_craft(line: CraftedLine) -> list[Craft]:
    """Every change of every reply, and of everything sealed, in a run of honest clients."""
    found = [
        craft
        for (client, verb, n), answer in line.replies.items()
        for craft in crafts_of(client, verb, n, answer)
    ]
    for (client, verb, n), values in line.sealed.items():
        kinds = FLOATS if values.dtype.kind == "f" else INTEGERS
        shapes = [what for what in SHAPES if what != "floats"]
        found += [Craft(client, verb, n, (), what) for what in (*kinds, *shapes)]
    return found
