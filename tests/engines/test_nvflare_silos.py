"""Three silos as processes of their own, with their files, policies and certificates.

All tests use one federation, with the commands as parties and coordinator type them. What a test
has ended, stopped or changed is put right before the next, so that one failure stays one.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest

import fedcircuits as fc
from contracts.defaults import SPLITS
from contracts.engine import table
from contracts.federations import ID, LABEL
from contracts.held import is_held, let_go
from contracts.loopback import own_network
from contracts.schemer import GREEDY
from contracts.silos import (
    NAMES,
    POLICY,
    Place,
    coordinate,
    family,
    fedcircuits,
    federated_here,
    same_bits,
    silo,
    told,
)
from fedcircuits.cli.federation_file import read_parties
from fedcircuits.errors import ClientError
from fedcircuits.federation.agreement import Em
from fedcircuits.federation.policy.run import earlier_runs
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import CLUSTERS, JobId, JobKind, ModelName
from fedcircuits.federation.wire.sealing import SealingKey
from fedcircuits.federation.wire.steps import Facts, step

pytest.importorskip("nvflare", reason="the extra [nvflare] is not installed")
from fedcircuits.engines.nvflare.engine import Parties, free_port
from fedcircuits.engines.nvflare.kits import Kits

pytestmark = pytest.mark.engine
NEVER_KEPT = {"describe", "public_key", "group_secret", "digests"}
VERTICAL: dict[str, Any] = {"agreement": "latent", "n_clusters": 3, "label_use": "used"}


@pytest.fixture(scope="module", autouse=True)
def network() -> Iterator[None]:
    with own_network():
        yield


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The federation on disk; `place` is the same with all its silos running."""
    place = Place(tmp_path_factory.mktemp("federation"), free_port())
    (place.folder / "policy.toml").write_text(POLICY)
    place.write("vertical", **VERTICAL)
    made = subprocess.run(
        fedcircuits("provision", place.file, "--json"), capture_output=True, text=True, check=True
    )
    assert sorted(json.loads(made.stdout)["new"]) == list(NAMES)
    try:
        yield place
    finally:
        place.end()


@pytest.fixture
def place(founded: Place) -> Place:
    founded.mend()
    return founded


def test_coordinator_killed_in_a_run_goes_on_where_it_was(place: Place) -> None:
    options = place.write("vertical", **VERTICAL)
    place.hold("c", "after align")
    running = coordinate(place)
    kept = ("propose", "agree", "peers", "align")
    # All of these, and the replies of a and b to the request after them, which c does not give.
    place.wait_until(lambda: is_held(place.kits / "c"), "c is not asked after align")
    place.wait_until(lambda: place.n_answers() >= 3 * len(kept) + 2, "a and b do not reply")
    hung = family(place.silos["c"].pid)
    for process in hung:
        process.suspend()
    mine = family(running.pid)
    running.kill()
    running.communicate()
    let_go(place.kits / "c")
    for process in hung:
        process.resume()
    _, alive = psutil.wait_procs(mine, timeout=120)
    assert not alive  # the server and its job have ended with the command
    (begun,) = (line["verb"] for line in place.progress()[-1:])
    done = [line["verb"] for line in place.progress() if line["what"] == "done"]
    answer = told(coordinate(place))
    assert answer["setting"] == "vertical"
    assert answer["asked"].get(begun) == 1  # c alone; a and b had answered
    assert not set(done) & set(answer["asked"]) - NEVER_KEPT
    assert same_bits(place, options)


def test_silo_killed_is_left_out_and_its_restart_completes_the_model(
    place: Place,
) -> None:
    options = place.write("horizontal", agreement="product", timeout=250, learner="hclt")
    place.hold("c", "at fit")
    running = coordinate(place)
    place.wait_until(lambda: is_held(place.kits / "c"), "c is not asked for its fit")
    lost = family(place.silos["c"].pid)
    for process in reversed(lost):
        process.kill()
    place.silos["c"].wait()
    answer = told(running)
    assert list(answer["dropped"]) == ["c"]
    assert "its site is gone" in answer["dropped"]["c"]  # noticed long before the timeout
    _, alive = psutil.wait_procs(lost, timeout=120)
    assert not alive
    let_go(place.kits / "c")
    place.start("c")
    with stranger_at(place):
        answer = told(coordinate(place))
    assert answer["dropped"] == {}
    assert answer["setting"] == "horizontal"
    assert answer["asked"].get("fit") == 1  # of c alone
    assert same_bits(place, options)


class stranger_at:  # noqa: N801
    """A party of another authority that says it is b, and somebody who speaks no TLS at all."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._folder = place.folder / "elsewhere"

    def __enter__(self) -> None:
        shutil.copy(self._place.file, self._place.folder / "other.toml")
        subprocess.run(
            fedcircuits("provision", self._place.folder / "other.toml", "--kits", self._folder),
            check=True,
            capture_output=True,
        )
        rows = table(seed=5)
        rows.to_csv(self._folder / "b.csv", index=False)
        self._silo = silo(self._folder / "b", self._folder / "b.csv", self._place.folder)

    def __exit__(self, *_: object) -> None:
        log = (self._folder / "b" / "log.txt").read_text()
        assert f"localhost:{self._place.port}" in log  # it did try
        assert "Successfully registered" not in log
        assert not (self._folder / "b" / "audit.jsonl").exists()  # it was never asked anything
        self._silo.terminate()
        self._silo.wait(120)


def test_rows_and_columns_split_over_three_give_the_model_of_one_process(
    place: Place,
) -> None:
    options = place.write("hybrid", agreement="product")
    answer = told(coordinate(place))
    assert (answer["setting"], answer["dropped"]) == ("hybrid", {})
    assert same_bits(place, options)


def test_remote_models_answer_and_a_policy_is_not_talked_round(place: Place) -> None:
    options = place.write("hybrid", agreement="product")
    here = federated_here(place, options)
    federation = read_parties(place.file)
    rows = table(seed=1)[["height", "colour", "visits", "size"]]
    with Parties(Kits(place.kits), federation.client_settings()) as engine:
        assert engine.members() == list(NAMES)
        run = {k: v for k, v in options.items() if k != "clients"}
        fed: Any = fc.federate(None, engine=engine, placement="remote", timeout=120, **run)
        assert fed.setting == "hybrid"
        answer = fed.log_prob(rows)
        assert answer.attrs["answered"] == NAMES
        np.testing.assert_allclose(answer, here.log_prob(rows), rtol=0, atol=1e-9)
        assert engine.replay.asked["query"] == 3  # 120 rows, one task for each party

        label = m.AskLabel(np.zeros(1, dtype=np.uint8), "00" * 32, "label/0")
        refused = engine.call("send_label", {"a": label.to_bytes()}, timeout=120)["a"]
        assert isinstance(refused, bytes)
        assert "PolicyError" in m.Failed.from_bytes(refused).error
        for verb in ("rows", "hello", "read"):
            refused = engine.call(verb, {"a": b""}, timeout=120)["a"]
            assert isinstance(refused, bytes)
            assert "no such request" in m.Failed.from_bytes(refused).error
        refused = engine.call("describe", {"a": bytes(2_000_000)}, timeout=120)["a"]
        assert isinstance(refused, bytes)
        assert "2000000 bytes" in m.Failed.from_bytes(refused).error
        with plaintext(place.port) as other:
            np.testing.assert_array_equal(fed.log_prob(rows), answer)  # the federation goes on
            assert isinstance(engine.call("describe", {"z": b""})["z"], ClientError)
            assert b"Description" not in other.recv(10_000)
    lines = (place.kits / "a" / "audit.jsonl").read_text().splitlines()
    noted = [json.loads(line) for line in lines]
    refusals = [line["verb"] for line in noted if not line["allowed"]]
    assert refusals[-5:] == ["send_label", "rows", "hello", "read", "describe"]


def test_a_scheming_coordinator_is_refused_and_the_next_honest_run_works(
    place: Place,
) -> None:
    """Row evidence, other columns, another schema, the label by clusters, one row as twenty.

    Before a plan is accepted and behind one.
    """
    options = place.write("hybrid", agreement="product", seed=5)
    audit = place.kits / "a" / "audit.jsonl"
    before = earlier_runs(audit, "a")
    with Parties(Kits(place.kits), read_parties(place.file).client_settings()) as engine:

        def ask(verb: str, request: m.Message) -> str | bytes:
            answer = engine.call(verb, {"a": request.to_bytes()}, timeout=120)["a"]
            assert isinstance(answer, bytes)
            return m.Failed.from_bytes(answer).error if b"Failed" in answer[:400] else answer

        described = ask("describe", m.Describe(1))
        assert isinstance(described, bytes)
        schema = m.Description.from_bytes(described).schema
        columns = [variable["name"] for variable in schema]
        em = m.PlannedRule("em", Em().steps(Facts("vertical", "some")))
        plan = m.Plan(
            ["a"], "hclt", columns, ID, LABEL, 5, "gathered", [], "one owner", 99, (), (), (em,)
        )
        forged: list[tuple[str, m.Message]] = [
            ("propose", plan),
            ("propose", dataclasses.replace(plan, columns=columns[:1])),
            ("agree", m.Agree([{**schema[0], "closed": True}, *schema[1:]], 5, None)),
            ("cluster", m.Cluster(CLUSTERS, [LABEL], 2, False, True)),
            ("ask", m.Ask(ModelName(JobId(JobKind.SUBSPACE, 0)), "log_prob", "v", 20, False)),
            ("digests", m.AskDigests("salt", "a", "")),
            ("align", m.Align(np.array([7] * 20))),
        ]
        for verb, request in forged:
            assert "PolicyError" in str(ask(verb, request)), verb
        others = [m.Description.from_bytes(ask("describe", m.Describe(k))) for k in (5, 6, 7)]  # type: ignore[arg-type]
        assert all(each.sketches.keys() == others[0].sketches.keys() for each in others)
    noted = [json.loads(line) for line in audit.read_text().splitlines()]
    refused = [line["verb"] for line in noted if not line["allowed"]]
    assert refused[-len(forged) :] == [verb for verb, _ in forged]
    assert earlier_runs(audit, "a") == before  # nothing was spent
    with Parties(Kits(place.kits), read_parties(place.file).client_settings()) as engine:
        # Behind a plan that is accepted, with everything in it that aggregates are asked by.
        greedy = dataclasses.replace(
            plan, seed=77, candidates=(m.PlannedRule("greedy", GREEDY),), common=(step(m.AGREE),)
        )
        assert isinstance(ask("propose", greedy), bytes)
        number = next(at for at, each in enumerate(schema) if each["kind"] == "continuous")
        binary = {**schema[number], "kind": "binary", "categories": [-1e9, 1e9], "domain": None}
        wrong = [*schema[:number], binary, *schema[number + 1 :]]
        assert "as it was described" in str(ask("agree", m.Agree(wrong, 77, LABEL)))
        assert "not those of the plan" in str(ask("agree", m.Agree(schema, 77, None)))
        assert isinstance(ask("agree", m.Agree(schema, 77, LABEL)), bytes)
        others = [name for name in columns if name != LABEL]
        forged = [
            ("cluster", m.Cluster(CLUSTERS, [LABEL], 2, False, True)),
            ("cluster", m.Cluster(CLUSTERS, others, 2, True, True)),
            ("cluster", m.Cluster(CLUSTERS, others[:1], 2, False, True)),
            ("send_label", m.AskLabel(np.zeros(0, np.uint8), SealingKey().public, "label/0")),
            ("ask", m.Ask(ModelName(JobId(JobKind.SUBSPACE, 0)), "label", "v", 20, True)),
            ("digests", m.AskDigests("salt", "a", "")),
            ("align", m.Align(np.array([7] * 20))),
            ("align", m.Align(np.array([7, 8]))),
        ]
        for verb, request in forged:
            assert isinstance(ask(verb, request), str), verb
    (scheme,) = [run for name, run in earlier_runs(audit, "a").items() if name not in before]
    assert scheme.bits == scheme.epsilon == 0.0
    answer = told(coordinate(place))
    assert answer["dropped"] == {}
    assert same_bits(place, options)
    reviewed = subprocess.run(
        fedcircuits("silo", place.kits / "a", "--review", "--json"),
        capture_output=True,
        text=True,
        check=True,
    )
    plans = json.loads(reviewed.stdout)["plans"]
    assert plans[-1]["refusal"] is None
    assert any(plan["refusal"] for plan in plans)


def plaintext(port: int) -> socket.socket:
    """Somebody without a certificate who asks anyway."""
    other = socket.create_connection(("localhost", port), timeout=120)
    other.sendall(b"GET /describe HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return other


@pytest.mark.parametrize("case", [case for case in SPLITS if len(SPLITS[case]()) == len(NAMES)])
@pytest.mark.filterwarnings("ignore::fedcircuits.errors.FedcircuitsWarning")
def test_default_policies_and_a_coordinator_on_defaults_train(place: Place, case: str) -> None:
    """The same bits as in this process; `test_ray.py` has the splits over two."""
    (place.folder / "policy.toml").write_text("")
    for name in NAMES:  # a new table begins with a new audit file
        (place.kits / name / "audit.jsonl").unlink(missing_ok=True)
    options = place.write_tables(SPLITS[case](), {"id": ID, "label": LABEL})
    answer = told(coordinate(place))
    assert answer["dropped"] == {}
    assert same_bits(place, options)


def test_silos_stop_on_a_signal_and_leave_nothing(place: Place) -> None:
    for name in NAMES:  # a signal before Python handles it ends a process without its care
        said = place.kits / name / "said.txt"
        place.wait_until(lambda: "waiting for work" in said.read_text(), "not started")  # noqa: B023
    processes = place.families()
    assert processes
    for one in place.silos.values():
        one.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=120)
    assert not alive


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"--data": "nowhere.csv"}, "client 'a': no such file"),
        ({"--policy": "nowhere.toml"}, "cannot read the policy"),
        ({"kit": "coordinator"}, "no start-up kit of a party"),
    ],
)
def test_silo_says_at_once_what_is_wrong(
    founded: Place, change: dict[str, str], words: str
) -> None:
    founded.write("vertical", **VERTICAL)
    given = {"kit": "a", "--data": "a.csv", "--policy": "policy.toml", **change}
    command = fedcircuits(
        "silo", founded.kits / given["kit"], "--data", founded.folder / given["--data"],
        "--policy", founded.folder / given["--policy"],
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
