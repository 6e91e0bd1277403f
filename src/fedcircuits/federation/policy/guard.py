"""A client behind its policy: what is not allowed is refused, logged, and never reaches it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedcircuits.errors import MALFORMED, StorageError
from fedcircuits.federation.policy.audit import SERVER, AuditLog, Handler
from fedcircuits.federation.policy.consent import NO_ROW_EVIDENCE, consent, schema_fault
from fedcircuits.federation.policy.policy import Policy, PolicyError
from fedcircuits.federation.policy.run import Past, Run
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.ids import fingerprint
from fedcircuits.federation.wire.verbs import Level, Verb
from fedcircuits.schema import Schema

PLAN_BYTES = 2**18  # of a plan, besides what the client's own columns take
_log = logging.getLogger(__name__)


class Guarded:
    """Answers as the client does, where policy and plan allow it; else with a `Failed` message.

    A run begins with `describe`, whose reply depends on table and policy alone, and a plan
    (`propose`), of which the policy strikes rules. What remains is all that is answered.

    Args:
        client: made of a table that went through `Policy.apply`.
        policy: of the owner of the data.
        audit: file that every message is noted in; an unwritable one stops all answers. What runs
            have cost is read from it.
        coordinator: the only sender that is answered.
    """

    def __init__(
        self,
        client: Handler,
        policy: Policy,
        *,
        audit: Path | None = None,
        coordinator: str = SERVER,
    ) -> None:
        self.name = client.name
        self._client = client
        self._policy = policy
        self._audit = AuditLog(audit, client.name)
        self._coordinator = coordinator
        self._past = Past(audit, client.name)
        self._run: Run | None = None
        self._state: dict[str, str] = {}
        # Engines may call from several threads; numbers, log and client are one thing at a time.
        self._lock = threading.Lock()
        self._audit.write("start", 0, client.name, None)

    def handle(self, verb: str, payload: bytes, sender: str = SERVER) -> bytes:
        """Return the reply to one message, or an error that says why there is none."""
        with self._lock:
            try:
                return self._handle(verb, payload, sender)
            except PolicyError as error:
                return self._audit.refuse(verb, len(payload), sender, str(error))
            except MALFORMED as error:  # of a plan or request that makes no sense
                _log.warning("client %r was asked %r: %r", self.name, verb[:40], error)
                why = f"a message that cannot be read ({type(error).__name__})"
                return self._audit.refuse(verb, len(payload), sender, why)

    def _handle(self, verb: str, data: bytes, sender: str) -> bytes:
        largest = self._policy.max_message_bytes
        if len(data) > largest:  # before a byte is decoded
            raise PolicyError(
                f"a message of {len(data)} bytes; the largest is {largest} "
                "(max_message_bytes in its policy)"
            )
        if sender != self._coordinator:
            raise PolicyError(f"{sender!r} asks; only {self._coordinator!r} is answered")
        request = self._read(verb, data)
        if isinstance(request, m.Describe):
            return self._describe(data, sender)
        if isinstance(request, m.Plan):
            return self._consent(request, data, sender)
        run = self._run
        if run is None:
            self._check_asked(verb, request, None)
            raise PolicyError("no plan was accepted before it: propose one first")
        self._check_asked(verb, request, run)
        return self._answer(run, m.VERBS[verb], request, data, sender)

    def _answer(
        self, run: Run, verb: Verb[Any, Any], request: m.Message, data: bytes, sender: str
    ) -> bytes:
        """Admit a request, let the client reply, check the reply, count what it reveals."""
        name = run.name_of(verb.name, request, data)
        run.step_of(verb.name, request, name)
        self._check_masks(verb, request)
        if isinstance(request, m.Agree):
            self._check_schema(run, request)
        if isinstance(request, m.Peers):
            strangers = set(request.keys) - set(run.plan.clients)
            if strangers:
                raise PolicyError(f"a key of {min(strangers)!r}, who is no client of the plan")
        answer = self._client.handle(verb.name, data)
        with self._audit.held():  # other processes of this client may be at the same plan
            self._past.read()
            return self._counted(run, verb, request, data, sender, name, answer)

    def _counted(
        self,
        run: Run,
        verb: Verb[Any, Any],
        request: m.Message,
        data: bytes,
        sender: str,
        name: str,
        answer: bytes,
    ) -> bytes:
        """Count what a reply reveals; return it, or why it may not leave."""
        step = run.step_of(verb.name, request, name)
        name_of_reply = fingerprint(verb.name.encode(), answer)[:16]
        facts: dict[str, Any] = {
            "run": run.name,
            "request": name if step >= 0 else "",  # once
            "reply": name_of_reply,
            "step": step,
            "level": verb.level("server", vars(request)).value,
            "bits": 0.0,
            "epsilon": 0.0,
        }
        masked_with = self._check_masks(verb, request)
        failed = _failure(answer)
        if masked_with and failed is None:
            facts["masked_with"] = masked_with
            run.spent.masked_with.add(masked_with)
        refusal = None
        if failed is None and name_of_reply not in run.spent.replies:
            facts["bits"], facts["epsilon"], refusal = self._cost(run, verb, request, answer)
            if step < 0 and (facts["bits"] or facts["epsilon"]):
                # The table is another one than when this was asked, though it is described alike.
                name = facts["request"] = f"{name} {name_of_reply}"
        if facts["request"]:  # also where it failed or is refused: that reveals something, too
            run.spent.add(name, name_of_reply, verb.name, step, facts["bits"], facts["epsilon"])
        if refusal is not None:
            return self._audit.refuse(verb.name, len(data), sender, refusal, **facts)
        self._audit.write(verb.name, len(data), sender, None, **facts)
        if failed is not None:
            return answer if self._policy.errors == "sent" else self._hushed(verb.name, failed)
        run.note(verb, request, data)
        return answer

    def _cost(
        self, run: Run, verb: Verb[Any, Any], request: m.Message, answer: bytes
    ) -> tuple[float, float, str | None]:
        """Bits and epsilon of a reply, or nothing and why it may not leave."""
        try:
            reply = self._checked_reply(verb, answer)
            bits, epsilon = verb.bits(vars(request), reply), verb.epsilon(vars(request))
            self._check_budget(run, bits, epsilon)
        except PolicyError as error:
            return 0.0, 0.0, str(error)
        return round(bits, 6), epsilon, None

    # --- before a plan ----------------------------------------------------------------------------

    def _describe(self, data: bytes, sender: str) -> bytes:
        """The one description of this table under this policy, whatever `min_rows` is asked."""
        found = self._description()
        if isinstance(found, bytes):
            return found
        answer = found.to_bytes(answers=m.request_name(self.name, m.DESCRIBE.name, data))
        self._checked_reply(m.DESCRIBE, answer)
        level = m.DESCRIBE.level("server").value
        self._audit.write(m.DESCRIBE.name, len(data), sender, None, level=level)
        return answer

    def _description(self) -> m.Description | bytes:
        """The description of the client's columns, or the failure that takes its place."""
        ask = m.Describe(self._policy.min_rows)
        answer = self._client.handle(m.DESCRIBE.name, ask.to_bytes())
        failed = _failure(answer)
        if failed is not None:
            return answer if self._policy.errors == "sent" else self._hushed("describe", failed)
        return m.Description.from_bytes(answer)

    def _consent(self, plan: m.Plan, data: bytes, sender: str) -> bytes:
        """Strike candidates; accept what remains, or refuse the plan as a whole."""
        found = self._description()
        if isinstance(found, bytes):
            return found
        with self._audit.held():
            self._past.read()
            return self._consented(plan, found, data, sender)

    def _consented(self, plan: m.Plan, found: m.Description, data: bytes, sender: str) -> bytes:
        """Accept or refuse a plan for a table as it was described."""
        earlier = self._past.runs
        name = fingerprint(plan.to_bytes(), found.to_bytes())[:16]
        spent = earlier.get(name)
        columns = [variable["name"] for variable in found.schema]
        try:
            most = PLAN_BYTES + 4 * len(found.to_bytes())
            if len(data) > most:  # its words go into the audit file
                plan = replace(plan, columns=[], id=None, common=(), optional=(), candidates=())
                raise PolicyError(f"a plan of {len(data)} bytes; the largest is {most}")
            struck = consent(plan, self._policy, columns)
            if spent is None and len(earlier) >= self._policy.runs:
                raise PolicyError(
                    f"{len(earlier)} runs were answered, and {self._policy.runs} are allowed "
                    "(runs in its policy; a new table begins with a new audit file)"
                )
        except PolicyError as error:
            facts = {"plan": plan.words(), "proposed": name}
            return self._audit.refuse(m.PROPOSE.name, len(data), sender, str(error), **facts)
        self._run = run = Run(name, plan, struck, spent, self._state)
        earlier[name] = run.spent
        self._audit.write(
            m.PROPOSE.name,
            len(data),
            sender,
            None,
            run=run.name,
            request="",
            plan=plan.words(struck),
        )
        return m.Consent(struck).to_bytes(answers=m.request_name(self.name, m.PROPOSE.name, data))

    # --- requests and replies ---------------------------------------------------------------------

    def _read(self, verb: str, payload: bytes) -> m.Message:
        """The message in some bytes, if it is one that is answered at all."""
        answered = set(m.VERBS if self._policy.requests is None else self._policy.requests)
        answered |= {m.DESCRIBE.name, m.PROPOSE.name}
        if verb not in m.VERBS or verb not in answered:
            raise PolicyError(
                f"there is no such request; answered are {', '.join(sorted(answered))} "
                "(requests in its policy)"
            )
        try:
            request: m.Message = m.VERBS[verb].request.from_bytes(payload)
        except (StorageError, *MALFORMED) as error:
            raise PolicyError(f"a message that cannot be read: {error}") from None
        return request

    def _check_asked(self, verb: str, request: m.Message, run: Run | None) -> None:
        """Refuse what the policy does not allow whatever the plan."""
        policy, declared = self._policy, m.VERBS[verb]
        label = None if run is None else run.plan.label
        owns = run is not None and label in run.plan.columns
        try:
            asked = declared.asks(request, policy, label if owns else None)
            if not all(isinstance(name, str) for name in asked.columns):
                raise StorageError("a column's name is a string")
            reveals_label = owns and declared.reveals_label(vars(request))
            level = declared.level("server", vars(request))
            epsilon = declared.epsilon(vars(request))
        except (StorageError, *MALFORMED) as error:
            raise PolicyError(f"a message that cannot be read: {error}") from None
        if policy.columns is not None:
            # A label that another client owns may be sent to this one and named from then on.
            known = {*policy.columns, None if owns else label}
            strangers = [name for name in asked.columns if name not in known]
            if strangers:
                raise PolicyError(
                    f"the column {strangers[0]!r} is not offered; offered are "
                    f"{', '.join(map(repr, policy.columns))} (columns in its policy)"
                )
        if asked.fault is not None:
            raise PolicyError(f"it asks for {asked.fault}")
        if not 0 <= epsilon < np.inf:  # would give back what was spent
            raise PolicyError(f"it asks with epsilon = {epsilon:g}, expected a number from 0 on")
        if reveals_label and policy.label != "sent":
            raise PolicyError(f"it asks for {m.reveals_label_of_rows(policy.label)}")
        by_id = policy.rows_by_id and verb == m.QUERY.name  # which is a consent of its own
        if level is Level.ROW_EVIDENCE and policy.row_evidence != "server" and not by_id:
            raise PolicyError(f"it asks for {NO_ROW_EVIDENCE}")

    def _check_schema(self, run: Run, request: m.Agree) -> None:
        """Refuse an agreed schema that does not follow from what this client described."""
        found = self._description()
        if isinstance(found, bytes):
            raise PolicyError("its columns cannot be described")
        fault = schema_fault(Schema.from_json(found.schema), request.schema)
        if fault is None and (request.label, request.seed) != (run.plan.label, run.plan.seed):
            fault = "its label and seed are not those of the plan"
        if fault is not None:
            raise PolicyError(f"{fault} (the schema must follow from what was described)")

    def _checked_reply(self, verb: Verb[Any, Any], answer: bytes) -> m.Message:
        """Refuse a reply that reveals a small group or is too large."""
        try:
            reply: m.Message = verb.reply.from_bytes(answer)
            groups = {what: counts(reply) for what, counts in verb.groups.items()}
        except StorageError as error:
            raise PolicyError(f"the reply is not what its policy expects: {error}") from None
        for what, counts in groups.items():
            if smallest(counts) < self._policy.min_rows:
                raise PolicyError(
                    f"the reply would reveal {what} below the smallest group of "
                    f"{self._policy.min_rows} (min_rows in its policy); ask for fewer and larger "
                    "groups"
                )
        if len(answer) > self._policy.max_message_bytes:
            raise PolicyError(
                f"the reply has {len(answer)} bytes; the largest is "
                f"{self._policy.max_message_bytes} (max_message_bytes in its policy)"
            )
        return reply

    def _check_budget(self, run: Run, bits: float, epsilon: float) -> None:
        """Refuse a reply that costs more than is left."""
        policy = self._policy
        if bits and run.spent.bits + bits > policy.bits + 1e-9:
            raise PolicyError(
                f"the reply would reveal {bits:.1f} bits a row after {run.spent.bits:.1f}; at most "
                f"{policy.bits:g} leave in a run (bits in its policy)"
            )
        spent = sum(each.epsilon for each in self._past.runs.values())
        if epsilon and policy.epsilon is not None and spent + epsilon > policy.epsilon + 1e-9:
            raise PolicyError(
                f"the reply would cost epsilon {epsilon:g} after {spent:g} over all runs; at most "
                f"{policy.epsilon:g} may be spent (epsilon in its policy)"
            )

    def _check_masks(self, verb: Verb[Any, Any], request: m.Message) -> tuple[str, ...]:
        """The clients that a sum is masked with, where this client's part would be row evidence.

        The difference of sums over two sets of clients is that of those who are in one of them.
        """
        asked = vars(request)
        names = tuple(sorted(asked.get("masked_with", ())))
        alone = verb.level("server", {**asked, "masked_with": []})
        if not names or alone is not Level.ROW_EVIDENCE:
            return ()
        before = {each for spent in self._past.runs.values() for each in spent.masked_with}
        if before - {names}:
            raise PolicyError(
                f"sums over {', '.join(names)} after sums over {', '.join(min(before - {names}))}: "
                "their difference would show the sums of single clients"
            )
        return names

    def _hushed(self, verb: str, error: str) -> bytes:
        """Return a failure without its kind and text, which may depend on a cell and stay here."""
        _log.warning("client %r failed at %r: %s", self.name, verb, error)
        return m.Failed(
            f"ClientError: client {self.name!r} failed at {verb!r}; what happened is in its own "
            "log (errors = 'kind' in its policy)"
        ).to_bytes()


def smallest(counts: Iterable[float]) -> float:
    """Return the smallest group that has rows at all; an empty one reveals nothing of anybody."""
    found = np.asarray(list(counts), dtype=float)
    found = found[found > 0]
    return float(found.min()) if found.size else np.inf


def _failure(answer: bytes) -> str | None:
    """The text of a `Failed` message, None for any other reply."""
    try:
        return m.Failed.from_bytes(answer).error
    except StorageError:
        return None
