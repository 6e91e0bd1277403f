"""`fedcircuits silo`: run a client of a federation on its own data file and policy."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from fedcircuits.api.client_spec import ClientSpec, as_table
from fedcircuits.cli.federation_file import read_parties
from fedcircuits.cli.output import Output
from fedcircuits.engines.nvflare.kits import forget_jobs, write_json
from fedcircuits.engines.nvflare.site_file import PARTY_FILE, SITE_FILE
from fedcircuits.engines.replay import Keeper
from fedcircuits.errors import FederationError
from fedcircuits.federation.client.client import Client
from fedcircuits.federation.policy.guard import Guarded
from fedcircuits.federation.policy.policy import Policy
from fedcircuits.federation.policy.run import Spent, earlier_runs, proposed
from fedcircuits.federation.wire.sealing import SealingKey, key_fingerprint
from fedcircuits.schema import read

log = logging.getLogger(__name__)
CLIENT = "fedcircuits.cli.silo:keeper"
IDENTITY_KEY = "identity.key"  # what mixes into the name that a site gives its data
SEALING_KEY = "sealing.key"  # private half of the silo's key, made here and never sent
AUDIT = "audit.jsonl"


def run(
    out: Output,
    kit: Path,
    data: Path | None,
    policy: Path | None,
    id_secret_file: Path | None,
    audit: Path | None,
    federation: Path | None,
) -> None:
    """Check data and policy, write the site's settings into the kit, and run until stopped."""
    from fedcircuits.engines.nvflare import flare, launch

    del flare  # imported to say early, and in our words, that NVFlare is missing
    kit_facts = _facts(kit)
    party = str(kit_facts["party"])
    if data is None:
        raise FederationError("a silo needs its table: --data FILE")
    rules = Policy() if policy is None else Policy.from_toml(policy)
    frame = read(as_table(party, data))
    rules.apply(frame, client=party)
    pins = None if federation is None else _pins(federation, party)
    secret = "" if id_secret_file is None else _secret(id_secret_file)
    _own_key(kit, IDENTITY_KEY)
    key = SealingKey(bytes.fromhex(_own_key(kit, SEALING_KEY)))
    site = {
        "client": CLIENT,
        "party": party,
        "data": str(data.resolve()),
        "policy": None if policy is None else str(policy.resolve()),
        "id_secret": secret,
        "audit": str((audit or kit / AUDIT).resolve()),
        "pins": pins,
    }
    write_json(kit / "local" / SITE_FILE, site)
    forget_jobs(kit)
    offered = "all columns" if rules.columns is None else ", ".join(rules.columns)
    out.say(f"{party}: {len(frame)} rows of {data}; offered: {offered}")
    out.say(
        f"{party}: coordinator at {kit_facts['coordinator']}; messages are logged in the audit file"
    )
    out.say(f"{party}: fingerprint of its key {key_fingerprint(key.public)}")
    if pins is None:
        out.say(
            f"{party}: keys of the others are not pinned; the coordinator could pass off its own "
            "as theirs: list fingerprints in the federation file and pass --federation"
        )
    out.say(f"{party}: waiting for work, see {kit / 'log.txt'}; Ctrl-C stops")
    out.result({"party": party, "rows": len(frame), "coordinator": kit_facts["coordinator"]})
    out.flush()
    launch.run(kit.resolve(), party)


def show_fingerprint(out: Output, kit: Path) -> None:
    """Print the fingerprint of a silo's key, which is made on the first call."""
    party = str(_facts(kit)["party"])
    key = SealingKey(bytes.fromhex(_own_key(kit, SEALING_KEY)))
    found = key_fingerprint(key.public)
    out.say(f'{party} = {{ fingerprint = "{found}" }}')
    out.result({"party": party, "fingerprint": found})


def review(out: Output, kit: Path, policy: Path | None, audit: Path | None) -> None:
    """Print what the policy says, the plans that were proposed, and what their runs have cost."""
    party = str(_facts(kit)["party"])
    rules = Policy() if policy is None else Policy.from_toml(policy)
    file = audit or kit / AUDIT
    runs = earlier_runs(file, party)
    out.say(f"policy of {party}:")
    for entry in fields(rules):
        out.say(f"  {entry.name} = {getattr(rules, entry.name)!r}")
    out.say(f"runs: {len(runs)} of {rules.runs}; bits a row in a run: at most {rules.bits:g}")
    plans = proposed(file, party)
    for plan in plans:
        spent = runs.get(plan.run, Spent())
        state = "accepted" if plan.refusal is None else f"REFUSED: {plan.refusal}"
        out.say(_on_one_line(f"plan {plan.run} of {plan.time}: {state}"))
        out.say(f"  cost so far: {spent.bits:.1f} bits a row, epsilon {spent.epsilon:g}")
        for line in plan.words:
            out.say(_on_one_line(f"  {line}"))
    out.result(
        {
            "party": party,
            "runs": {name: {"bits": s.bits, "epsilon": s.epsilon} for name, s in runs.items()},
            "plans": [asdict(plan) for plan in plans],
        }
    )


def _on_one_line(text: str) -> str:
    """Names in a plan are the coordinator's: what would break a line or move on the screen is
    escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _facts(kit: Path) -> dict[str, Any]:
    """What the kit says of its party."""
    file = kit / "local" / PARTY_FILE
    if not file.is_file():
        raise FederationError(
            f"{kit} is no start-up kit of a party: the coordinator makes them with "
            "`fedcircuits provision`"
        )
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _own_key(kit: Path, name: str) -> str:
    """A key in the kit, made on first use, that only the silo's user can read."""
    path = kit / "local" / name
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32), encoding="ascii")
    return path.read_text(encoding="ascii")


def _pins(file: Path, party: str) -> dict[str, str]:
    """Fingerprints of the other parties' keys, all of which must be listed."""
    found = read_parties(file)
    missing = [name for name in found.names if name not in (party, *found.fingerprints)]
    if missing:
        raise FederationError(
            f"{file}: no fingerprint of {', '.join(map(repr, missing))}; each party prints its own "
            "with `fedcircuits silo KIT --fingerprint`"
        )
    return {name: each for name, each in found.fingerprints.items() if name != party}


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
    spec = ClientSpec(
        party,
        data,
        str(settings["learner"]),
        id=settings["id"],
        id_secret=str(site["id_secret"]),
        label=settings["label"],
        policy=policy,
        key=(folder / SEALING_KEY).read_text(encoding="ascii"),
        pins=site["pins"],
    )

    def make() -> Client | Guarded:
        try:
            return spec.guarded(Path(str(site["audit"])))
        except Exception as error:
            if policy.errors == "sent":
                raise
            log.exception("the client of this silo cannot be made")  # the text may quote a cell
            kind = type(error).__name__
            raise FederationError(f"it cannot be made ({kind}); its own log says why") from None

    # The coordinator can see whether data or policy changed, and cannot test a guess of either.
    key = (folder / IDENTITY_KEY).read_bytes()
    rules = b"" if site["policy"] is None else Path(str(site["policy"])).read_bytes()
    parts = [data.read_bytes(), rules, json.dumps(dict(settings), sort_keys=True).encode()]
    digests = b"".join(hashlib.sha256(part).digest() for part in parts)
    return Keeper(make, hmac.new(key, digests, "sha256").hexdigest())
