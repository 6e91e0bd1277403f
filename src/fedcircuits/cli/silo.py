"""`fedcircuits silo`: run a client of a federation on its own data file and policy."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcircuits.api.client_spec import ClientSpec, as_table
from fedcircuits.cli.output import Output
from fedcircuits.engines.nvflare.kits import forget_jobs, write_json
from fedcircuits.engines.nvflare.site_file import PARTY_FILE, SITE_FILE
from fedcircuits.engines.replay import Keeper
from fedcircuits.errors import FederationError
from fedcircuits.federation.policy.guard import Guarded
from fedcircuits.federation.policy.policy import Policy
from fedcircuits.schema import read

log = logging.getLogger(__name__)
CLIENT = "fedcircuits.cli.silo:keeper"
IDENTITY_KEY = "identity.key"  # what mixes into the name that a site gives its data
SEALING = b"sealing key"  # what else follows from it


def run(
    out: Output,
    kit: Path,
    data: Path,
    policy: Path | None,
    id_secret_file: Path | None,
    audit: Path | None,
) -> None:
    """Check data and policy, write the site's settings into the kit, and run until stopped."""
    from fedcircuits.engines.nvflare import flare, launch

    del flare  # imported to say early, and in our words, that NVFlare is missing
    party_file = kit / "local" / PARTY_FILE
    if not party_file.is_file():
        raise FederationError(
            f"{kit} is no start-up kit of a party: the coordinator makes them with "
            "`fedcircuits provision`"
        )
    kit_facts = json.loads(party_file.read_text(encoding="utf-8"))
    party = str(kit_facts["party"])
    rules = Policy() if policy is None else Policy.from_toml(policy)
    frame = read(as_table(party, data))
    rules.apply(frame, client=party)
    secret = "" if id_secret_file is None else _secret(id_secret_file)
    key = kit / "local" / IDENTITY_KEY
    if not key.exists():
        key.touch(mode=0o600)
        key.write_text(secrets.token_hex(32), encoding="ascii")
    site = {
        "client": CLIENT,
        "party": party,
        "data": str(data.resolve()),
        "policy": None if policy is None else str(policy.resolve()),
        "id_secret": secret,
        "audit": str((audit or kit / "audit.jsonl").resolve()),
    }
    write_json(kit / "local" / SITE_FILE, site)
    forget_jobs(kit)
    offered = "all columns" if rules.columns is None else ", ".join(rules.columns)
    out.say(f"{party}: {len(frame)} rows of {data}; offered: {offered}")
    out.say(
        f"{party}: coordinator at {kit_facts['coordinator']}; messages are logged in the audit file"
    )
    out.say(f"{party}: waiting for work, see {kit / 'log.txt'}; Ctrl-C stops")
    out.result({"party": party, "rows": len(frame), "coordinator": kit_facts["coordinator"]})
    out.flush()
    launch.run(kit.resolve(), party)


def _secret(file: Path) -> str:
    try:
        found = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FederationError(f"cannot read the secret in {file}: {error}") from None
    if len(found) < 16:
        raise FederationError(
            f"the secret in {file} has {len(found)} characters; at least 16, drawn at random, keep "
            "ids from being guessed"
        )
    return found


def keeper(folder: Path, site: Mapping[str, Any], settings: Mapping[str, Any]) -> Keeper:
    """Return the client of a silo behind its policy; both are read when a job begins.

    Args:
        folder: the site's own.
        site: what `run` wrote there.
        settings: what the coordinator says about the run.
    """
    party, data = str(site["party"]), Path(str(site["data"]))
    policy = Policy() if site["policy"] is None else Policy.from_toml(site["policy"])
    name, id = str(settings["learner"]), settings["id"]
    kinds, missing = dict(settings["kinds"]), tuple(settings["missing_values"])

    def make() -> Guarded:
        try:
            return made()
        except Exception as error:
            if policy.errors == "sent":
                raise
            log.exception("the client of this silo cannot be made")  # the text may quote a cell
            kind = type(error).__name__
            raise FederationError(f"it cannot be made ({kind}); its own log says why") from None

    def made() -> Guarded:
        frame = policy.apply(
            read(as_table(party, data)), id=id, client=party, kinds=kinds, missing_values=missing
        )
        spec = ClientSpec(
            party,
            frame,
            name,
            id=id,
            kinds=kinds,
            missing_values=missing,
            id_secret=str(site["id_secret"]),
        )
        client = spec.make(hmac.digest(key, SEALING, "sha256"))
        return Guarded(client, policy, audit=Path(str(site["audit"])))

    # The coordinator can see whether data or policy changed, and cannot test a guess of either.
    key = (folder / IDENTITY_KEY).read_bytes()
    rules = b"" if site["policy"] is None else Path(str(site["policy"])).read_bytes()
    parts = [data.read_bytes(), rules, json.dumps(dict(settings), sort_keys=True).encode()]
    digests = b"".join(hashlib.sha256(part).digest() for part in parts)
    return Keeper(make, hmac.new(key, digests, "sha256").hexdigest())
