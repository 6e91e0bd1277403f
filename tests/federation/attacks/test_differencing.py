"""A server that subtracts: sums, models and runs with and without a client, or a row.

What is left within the declared levels is measured in docs/benchmarks/membership.md.
"""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedcircuits as fc
from contracts.federations import ID, LABEL, Breaking, split
from contracts.schemer import N, Schemer, clusters, silo
from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.engines import LocalEngine
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement import Joint
from fedcircuits.federation.agreement.base import described
from fedcircuits.federation.client.rounds import add_up
from fedcircuits.federation.policy.guard import Guarded
from fedcircuits.federation.policy.policy import Policy
from fedcircuits.federation.policy.run import earlier_runs
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import JobId, JobKind
from fedcircuits.federation.wire.steps import Facts, step

COLUMNS = ["height", "colour", LABEL]


def banks(policy: Policy | None, folder: Path) -> dict[str, Any]:
    """Three clients with rows of one table, ready for rounds of sums, and their schemer each."""
    found = {}
    joint = Joint()
    planned = m.PlannedRule(described(joint), joint.steps(Facts("horizontal", "all")))
    for name, frame in split("horizontal").items():
        spec = ClientSpec(name, frame[COLUMNS], "mixture", label=LABEL, policy=policy)
        found[name] = Schemer(spec.guarded(folder / f"{name}.jsonl"))  # type: ignore[arg-type]
    for server in found.values():
        server.label = LABEL
        if policy is not None:
            common = (step(m.DESCRIBE), step(m.PROPOSE), step(m.AGREE))
            consent = server.propose(label=LABEL, common=common, candidates=(planned,))
            assert isinstance(consent, m.Consent), consent
        told = server.agree()
        assert isinstance(told, m.Ready), told
    return found


def meet(servers: dict[str, Any]) -> None:
    told = {c: server.ask("public_key", m.AskKey(), m.PublicKey) for c, server in servers.items()}
    keys, nonces = ({c: getattr(k, f) for c, k in told.items()} for f in ("key", "nonce"))
    for server in servers.values():
        assert isinstance(server.ask("peers", m.Peers(keys, nonces), m.Ready), m.Ready)


def first_sums(servers: dict[str, Any], over: str, attempt: int) -> Any:
    """Sums of the first round, which depends on nothing but the rows, or the refusals."""
    job = JobId(JobKind.ALL_ROWS, attempt=attempt)
    ask = m.Round(job, COLUMNS, 0, False, list(over), "nonce", {})
    told = {c: servers[c].ask("round", ask, m.RoundDone) for c in over}
    if any(isinstance(each, str) for each in told.values()):
        return list(told.values())
    return add_up({c: each.sums for c, each in told.items()}, masked=True)


def test_sums_over_three_clients_less_those_over_two_show_no_client(tmp_path: Path) -> None:
    """A client that "was lost": without a policy the difference is that client's counts."""
    servers = banks(None, tmp_path)
    meet(servers)
    whole, rest = first_sums(servers, "abc", 0), first_sums(servers, "ab", 1)
    name = max(whole, key=lambda each: whole[each].size)
    assert np.abs(whole[name] - rest[name]).sum() > 0  # what the attack is after

    servers = banks(Policy(label="sent"), tmp_path)
    meet(servers)
    assert isinstance(first_sums(servers, "abc", 0), dict)
    for at, over in enumerate(("ab", "bc", "ac")):
        for refusal in first_sums(servers, over, at + 1):
            assert "would show the sums of single clients" in refusal
    assert isinstance(first_sums(servers, "abc", 9), dict)  # the same clients, begun again


def test_a_client_that_leaves_before_the_next_run_is_not_shown(tmp_path: Path) -> None:
    """A run of three, then one of two of them: the audit file knows whom sums were over."""
    frames = split("horizontal")
    policy = Policy(label="sent")

    def run(over: str, **more: Any) -> Any:
        members = {
            c: ClientSpec(c, frames[c].drop(columns=ID), "mixture", label=LABEL, policy=policy)
            .guarded(tmp_path / f"{c}.jsonl") for c in over
        }  # fmt: skip
        return fc.federate(engine=LocalEngine(members), label=LABEL, agreement="joint", **more)

    assert run("abc").clients == ("a", "b", "c")
    with pytest.raises(FederationError, match="would show the sums of single clients"):
        run("ab", seed=1)
    assert run("abc", seed=2).clients == ("a", "b", "c")
    assert {
        each for s in earlier_runs(tmp_path / "a.jsonl", "a").values() for each in s.masked_with
    } == {("a", "b", "c")}


def test_a_run_that_loses_a_client_under_policies_ends_in_words(tmp_path: Path) -> None:
    frames, seen = split("horizontal"), []

    def spoil(verb: str, client: str, reply: bytes) -> bytes | Exception:
        seen.append((verb, client))
        late = verb == "round" and client == "b" and seen.count(("round", "b")) > 2
        return RuntimeError("power cut") if late else reply

    members = {
        c: ClientSpec(c, frame.drop(columns=ID), "mixture", label=LABEL, policy=Policy())
        .guarded(tmp_path / f"{c}.jsonl") for c, frame in frames.items()
    }  # fmt: skip
    engine = Breaking(LocalEngine(members), spoil)
    with pytest.raises(FederationError, match=r"power cut|single clients") as caught:
        fc.federate(engine=engine, label=LABEL, agreement="joint")
    assert "client 'b'" in str(caught.value)


# --- budgets of one client that runs twice at a time ----------------------------------------------


def test_two_processes_of_a_silo_have_one_budget(tmp_path: Path) -> None:
    """Both were started before either was asked: jobs that a coordinator submits together."""
    audit = tmp_path / "audit.jsonl"
    policy = Policy(columns=("salary", "age", "diag"), id="pid", runs=3)
    first, second = silo(policy, audit), silo(policy, audit)
    allowed = [
        isinstance(server.propose(seed=seed), m.Consent)
        for seed, server in enumerate((first, second, first, second, first))
    ]
    assert allowed == [True, True, True, False, False]
    assert len(earlier_runs(audit, "bank")) == 3


def test_two_processes_at_one_plan_have_its_bits_once(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    both = [silo(Policy(columns=("salary", "age", "diag"), id="pid"), audit) for _ in range(2)]
    for server in both:
        assert isinstance(server.propose(), m.Consent)
        server.agree()
        server.ask("align", m.Align(np.arange(N)), m.Ready)
    told = [
        clusters(both[at % 2], ["salary", "age", "diag"], k)
        for at, k in enumerate((16, 15, 14, 13, 12, 11))
    ]
    assert sum(isinstance(each, m.Clustered) for each in told) == 3
    (spent,) = earlier_runs(audit, "bank").values()
    assert 11 < spent.bits <= 12


def _propose(audit: Path, seeds: range) -> None:
    server = silo(Policy(columns=("salary", "age", "diag"), id="pid", runs=5), audit)
    for seed in seeds:
        server.propose(seed=seed)


def test_runs_are_counted_once_whoever_counts(tmp_path: Path) -> None:
    """Three processes at the same time: a line is read or written, never both."""
    audit = tmp_path / "audit.jsonl"
    context = multiprocessing.get_context("fork")
    parts = [range(at, 30, 3) for at in range(3)]
    started = [context.Process(target=_propose, args=(audit, part)) for part in parts]
    for each in started:
        each.start()
    for each in started:
        each.join(100)
        assert each.exitcode == 0
    assert len(earlier_runs(audit, "bank")) == 5
    assert isinstance(silo(audit=audit).member, Guarded)
