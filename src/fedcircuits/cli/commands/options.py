"""Options that several commands have, and the names that help texts list."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Write one JSON document to standard output.")]
Sep = Annotated[
    str | None, typer.Option(help="Separator of CSV files ('tab' for a tab), if a guess is wrong.")
]
MissingValue = Annotated[
    list[str] | None,
    typer.Option(
        help="A text that means a missing value; may be repeated. By default: '?' and such."
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of random numbers; the same seed, the same result.")]

# What a user may name, with a few words on each; tests compare the names with those that exist.
LEARNERS = {
    "hclt": "a hidden tree fitted for the label too; the default",
    "mixture": "a mixture of independent columns",
    "learnspn": "rows clustered, columns split by independence tests",
    "einet": "tensorised circuit for images and large tables; extra [einet]",
    "gaussian-mixture": "Gaussians, for numbers alone",
    "factorised": "all columns independent: the baseline",
    "auto": "tries several, keeps the best on held-out rows",
}
RULES = {
    "auto": "the default: by split and, where rules compete, by held-out rows",
    "product": "clients' models given the class, multiplied",
    "independent": "mixture where rows are split, product where columns are",
    "latent": "clusters of the common rows (Algorithm 1 of the paper)",
    "anchors": "as latent where no row is held by all clients",
    "em": "shared clusters refitted together in rounds",
    "joint": "one model fitted together in rounds",
}
ENGINES = {
    "local": "all clients in this process; the default",
    "processes": "one process a client",
    "ray": "a cluster; extra [ray]",
    "nvflare": "organisations with certificates; extra [nvflare]",
}


def listing(title: str, names: dict[str, str]) -> str:
    """Return a block of help text that lists names with their words, as it is to be shown."""
    width = max(map(len, names))
    lines = [f"  {name:{width}}  {words}" for name, words in names.items()]
    return "\n".join(["\b", f"{title}:", *lines])
