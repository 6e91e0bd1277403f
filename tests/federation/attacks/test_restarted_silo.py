"""A server that has a silo started again in a run: what was answered before still counts.

A silo's process begins anew with every job of the engine, and a plan that is proposed again, byte
for byte, is the same run and costs nothing. What protects rows by what came before must therefore
outlive the process: masks, parts of rows, cells of k-means.
"""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from contracts.federations import LABEL, split
from contracts.schemer import N, Schemer, silo
from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.api.load import from_file_bytes
from fedcircuits.federation.agreement import Joint
from fedcircuits.federation.agreement.base import described
from fedcircuits.federation.client.rounds import add_up
from fedcircuits.federation.policy.policy import Policy
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.masking import CHECK, REST, UNIT
from fedcircuits.federation.wire.names import Grouping, GroupingKind, Job, JobId, JobKind
from fedcircuits.federation.wire.sealing import SealingKey
from fedcircuits.federation.wire.steps import Facts, step

KEY, OTHER = "5a" * 32, SealingKey(b"o" * 32)
COLUMNS = ["height", "colour", LABEL]
JOB = JobId(JobKind.ALL_ROWS)
SPECS = {
    name: ClientSpec(name, frame[COLUMNS], "hclt", label=LABEL, policy=Policy(label="sent"))
    for name, frame in split("horizontal").items()
}


def started(folder: Path) -> dict[str, Schemer]:
    """Three silos, as their processes begin: the same plan, the same schema, the same peers."""
    servers = begun_with(folder)
    told = {c: server.ask("public_key", m.AskKey(), m.PublicKey) for c, server in servers.items()}
    for server in servers.values():
        assert isinstance(server.ask("peers", peers_of(told), m.Ready), m.Ready)
    return servers


def begun_with(folder: Path, **changes: Any) -> dict[str, Schemer]:
    joint = Joint()
    planned = m.PlannedRule(described(joint), joint.steps(Facts("horizontal", "all")))
    servers = {}
    for name, spec in SPECS.items():
        spec = ClientSpec(**{**vars(spec), **changes})
        servers[name] = Schemer(spec.guarded(folder / f"{name}.jsonl"))  # type: ignore[arg-type]
    for server in servers.values():
        server.label = LABEL
        common = (step(m.DESCRIBE), step(m.PROPOSE), step(m.AGREE))
        assert isinstance(
            server.propose(label=LABEL, common=common, candidates=(planned,)), m.Consent
        )
        assert isinstance(server.agree(), m.Ready)
    return servers


def peers_of(told: Any) -> m.Peers:
    return m.Peers({c: k.key for c, k in told.items()}, {c: k.nonce for c, k in told.items()})


def asked(servers: dict[str, Schemer], number: int, sums: Any) -> Any:
    """Replies to one round, and their sum."""
    ask = m.Round(JOB, COLUMNS, number, False, list(servers), "nonce", sums)
    told = {c: server.ask("round", ask, m.RoundDone) for c, server in servers.items()}
    assert all(isinstance(each, m.RoundDone) for each in told.values()), told
    return told, add_up({c: each.sums for c, each in told.items()}, masked=True)


def in_clear(one: Any, other: Any) -> dict[str, Any]:
    """What two answers of one client differ by, where both were masked alike: small numbers."""
    found = {}
    for name in one.sums:
        if name.endswith(REST) or name == CHECK or one.sums[name].shape != other.sums[name].shape:
            continue
        apart = (one.sums[name] - other.sums[name]).astype(float) * UNIT
        if np.abs(apart).max() < 1e4:
            found[name] = apart
    return found


def test_masks_do_not_serve_two_histories(tmp_path: Path) -> None:
    """The same request after other rounds: the two answers differ by counts in clear."""
    servers = started(tmp_path)
    _, first = asked(servers, 0, {})
    other = {name: sums[..., ::-1].copy() + 1.0 for name, sums in first.items()}
    _, second = asked(servers, 1, first)
    before, _ = asked(servers, 2, second)

    servers = started(tmp_path)
    asked(servers, 0, {})
    asked(servers, 1, other)
    after, _ = asked(servers, 2, second)
    for name in servers:
        assert not in_clear(before[name], after[name])


def test_masks_do_not_serve_two_learners(tmp_path: Path) -> None:
    """The coordinator names the learner of a job: another one makes other terms of a round."""
    servers = started(tmp_path)
    before, _ = asked(servers, 0, {})
    again, _ = asked(started(tmp_path), 0, {})
    assert {c: each.sums[CHECK].tolist() for c, each in before.items()} == {
        c: each.sums[CHECK].tolist() for c, each in again.items()
    }
    other = begun_with(tmp_path, learner="mixture")
    told = {c: server.ask("public_key", m.AskKey(), m.PublicKey) for c, server in other.items()}
    for server in other.values():  # in this run the silo had other masks with these keys
        assert "most in a run" in str(server.ask("peers", peers_of(told), m.Ready))


def centres_of(bank: Schemer, at: float) -> m.CentreSums | str:
    centres = np.array([[0, 0.2, 0.2], [0, at, at]])
    group = Grouping(GroupingKind.ANCHORS, 0)
    ask = m.AskCentres(group, ["salary", "age"], centres, False, ["bank", "other"], "nonce")
    return bank.ask("centres", ask, m.CentreSums)


def begun(folder: Path) -> Schemer:
    """A silo with its schema, its rows and the key of another client, which is the server's."""
    bank, peers = before_keys(folder)
    assert isinstance(bank.ask("peers", peers, m.Ready), m.Ready)
    return bank


def before_keys(folder: Path) -> tuple[Schemer, m.Peers]:
    bank = silo(Policy(columns=("salary", "age", "diag"), id="pid"), folder / "log", key=KEY)
    assert isinstance(bank.propose(), m.Consent)
    assert isinstance(bank.agree(), m.Ready)
    assert isinstance(bank.ask("align", m.Align(np.arange(N)), m.Ready), m.Ready)
    told = bank.ask("public_key", m.AskKey(), m.PublicKey)
    assert isinstance(told, m.PublicKey)
    keys = {"bank": told.key, "other": OTHER.public}
    return bank, m.Peers(keys, {"bank": told.nonce, "other": "n"})


def test_keys_are_those_of_the_plans_clients_and_passed_on_once(tmp_path: Path) -> None:
    bank, peers = before_keys(tmp_path)
    for extra in ("zoe", "server"):
        keys = replace(
            peers, keys={**peers.keys, extra: OTHER.public}, nonces={**peers.nonces, extra: "n"}
        )
        assert f"{extra!r}, who is no client of the plan" in str(bank.ask("peers", keys, m.Ready))
    assert isinstance(bank.ask("peers", peers, m.Ready), m.Ready)
    another = replace(peers, nonces={**peers.nonces, "other": "another"})
    assert "most in a run" in str(bank.ask("peers", another, m.Ready))


def test_a_mask_is_not_used_again_after_a_restart(tmp_path: Path) -> None:
    """Sums around the same centres, where rows had moved in between."""
    bank = begun(tmp_path)
    first = centres_of(bank, 0.8)
    assert isinstance(first, m.CentreSums)
    bank = begun(tmp_path)
    for at in (0.5, 0.4, 0.3):
        centres_of(bank, at)
    second = centres_of(bank, 0.8)
    if isinstance(second, m.CentreSums):
        assert second.to_bytes() == first.to_bytes()
    else:
        assert "client 'bank'" in second


def share_ill(bank: Schemer, at: int, rows: list[int]) -> tuple[float, float]:
    """Rows behind the model of a fit on some rows, and its share of those who are ill."""
    chosen = np.zeros(N, dtype=bool)
    chosen[rows] = True
    named = bank.ask("name_rows", m.NameRows(f"rows {at}", np.packbits(chosen)), m.Ready)
    assert isinstance(named, m.Ready)
    assert isinstance(bank.ask("use_rows", m.UseRows(f"rows {at}", 0.0), m.Ready), m.Ready)
    job = Job(JobId(JobKind.SUBSPACE, at), ("diag",))
    found = bank.ask("fit", m.Fit((job,), False), m.Fitted)
    assert isinstance(found, m.Fitted)
    model = from_file_bytes(m.model_bytes(found.models[0].model), "a model")
    share = model.log_prob(pd.DataFrame({"diag": ["ill"]})).iloc[0]
    return found.models[0].rows, float(np.exp(share))


def test_a_restart_between_two_groups_does_not_tell_the_row_they_differ_in(tmp_path: Path) -> None:
    base = list(range(100, 120))
    for row in range(6):
        shares = []
        for at, rows in enumerate((base, [*base, row])):
            bank = begun(tmp_path)
            shares.append(share_ill(bank, 2 * row + at, rows))
        assert shares[0] == shares[1]


def test_two_processes_of_a_silo_know_each_others_groups(tmp_path: Path) -> None:
    one, other = begun(tmp_path), begun(tmp_path)
    base = list(range(100, 120))
    assert share_ill(one, 0, base) == share_ill(other, 1, [*base, 3])


def test_a_silo_that_begins_anew_takes_the_same_groups_again(tmp_path: Path) -> None:
    """What was asked is answered as before, after whatever was asked since."""

    def replayed() -> list[tuple[float, float]]:
        bank = begun(tmp_path)
        groups = (range(100, 120), range(90, 125), range(7, 200, 3))
        return [share_ill(bank, at, list(rows)) for at, rows in enumerate(groups)]

    first = replayed()
    bank = begun(tmp_path)
    for at in range(8):
        share_ill(bank, 10 + at, list(range(at, 300, 2 + at)))
    assert replayed() == first


def test_a_sum_that_was_not_answered_binds_nobody(tmp_path: Path) -> None:
    """A server that asks for sums over clients that are not there spoils no later run."""
    servers = started(tmp_path)
    ask = m.Round(JOB, COLUMNS, 0, False, ["a", "nobody"], "nonce", {})
    for server in servers.values():
        assert isinstance(server.ask("round", ask, m.RoundDone), str)
    _, total = asked(servers, 0, {})
    assert total


def test_what_a_silo_remembers_is_its_own(tmp_path: Path) -> None:
    bank = begun(tmp_path)
    share_ill(bank, 0, list(range(100, 120)))
    folder = tmp_path / "log.memory"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
        if path.name != "lock":
            path.write_bytes(path.read_bytes()[:-9])
    broken = silo(Policy(columns=("salary", "age", "diag"), id="pid"), tmp_path / "log", key=KEY)
    broken.propose()
    broken.agree()
    broken.ask("align", m.Align(np.arange(N)), m.Ready)
    told = broken.ask("name_rows", m.NameRows("rows", np.zeros(0, dtype=np.uint8)), m.Ready)
    assert isinstance(told, str)  # what cannot be read is not forgotten


def test_what_cannot_be_remembered_is_not_answered(tmp_path: Path) -> None:
    bank = begun(tmp_path)
    (tmp_path / "log.memory").write_text("no folder")
    told = bank.ask("name_rows", m.NameRows("rows", np.zeros(0, dtype=np.uint8)), m.Ready)
    assert isinstance(told, str)
    assert isinstance(centres_of(bank, 0.8), str)
    (tmp_path / "log.memory").unlink()
    assert isinstance(centres_of(bank, 0.8), m.CentreSums)
