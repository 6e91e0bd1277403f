"""`fedcircuits provision`: make start-up kits with certificates for the clients of a federation."""

from __future__ import annotations

from pathlib import Path

from fedcircuits.cli.federation_file import read_parties
from fedcircuits.cli.output import Output


def run(out: Output, file: Path, kits: Path | None) -> None:
    """Make kits for the clients that have none yet."""
    from fedcircuits.engines.nvflare.kits import provision

    federation = read_parties(file, kits)
    had = {party for party in federation.names if (federation.kits / party).exists()}
    made = provision(federation.kits, federation.host, federation.port, federation.names)
    new = [party for party in federation.names if party not in had]
    for party in new:
        out.say(f"{party}: send {made.site(party)} to this client over a channel you trust")
    for party in sorted(had):
        out.say(f"{party}: has its kit already")
    out.say(
        f"coordinator: {made.server.parent} stays here; open port {federation.port} of "
        f"{federation.host} to the clients"
    )
    out.result(
        {
            "kits": {party: str(made.site(party)) for party in federation.names},
            "new": new,
            "coordinator": str(made.server.parent),
            "host": federation.host,
            "port": federation.port,
        }
    )
