"""What a class of engines may offer beyond `Transport`: two optional protocols.

An engine class is called with the encoded specs of its clients by name, the name of the function
that makes a client of one ("module:function"), and its options as keywords; it returns a
`Transport` whose clients run. A plain function of that form will do.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class DeclaresOptions(Protocol):
    """An engine class that names its options, so that a misspelt one is an error at once."""

    OPTIONS: tuple[str, ...]


@runtime_checkable
class HasRowsThere(Protocol):
    """An engine class whose clients run on other machines, where rows may lie already.

    Rows for which `is_there` holds are passed to the class as the keyword `rows`, by client name;
    a path names a file of the client's machine.
    """

    def is_there(self, data: object) -> bool:
        """Whether rows lie where the clients run, and only the engine can reach them."""
        ...
