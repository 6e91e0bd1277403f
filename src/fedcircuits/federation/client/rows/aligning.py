"""Aligning rows at a client: digests of ids, public keys, the label sent or taken."""

from __future__ import annotations

import numpy as np

from fedcircuits.density.tilt import n_states_of
from fedcircuits.errors import FedcircuitsError
from fedcircuits.federation.client.dispatch import handles
from fedcircuits.federation.client.jobs import label_counts, labels
from fedcircuits.federation.client.state import ClientState
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.ids import check_distinct, digests
from fedcircuits.federation.wire.packing import pack_codes
from fedcircuits.federation.wire.sealing import wrapped


class Aligning(ClientState):
    """The part of a client that matches rows by id, takes keys, and sends or takes the label."""

    @handles(m.DIGESTS)
    def _digests(self, request: m.AskDigests) -> m.Digests:
        if self._ids is None:
            raise FedcircuitsError(f"client {self.name!r} has no id column to align by")
        check_distinct(self._ids, self.name)
        if request.first == self.name:
            group = self._mail.key.own(f"ids {request.salt}")
        else:
            pair = self._mail.key.pair(self._mail.key_of(request.first), "ids")
            group = bytes.fromhex(wrapped(bytes.fromhex(request.wrapped), pair, request.salt))
        return m.Digests(digests(self._ids, request.salt, self._secret, self.name, group))

    @handles(m.GROUP_SECRET)
    def _group_secret(self, request: m.AskGroupSecret) -> m.GroupSecret:
        """Draw a secret and wrap it for each of the other clients."""
        key = self._mail.key
        secret = key.own(f"ids {request.salt}")
        pairs = {name: key.pair(other, "ids") for name, other in self._mail.peers.items()}
        return m.GroupSecret({n: wrapped(secret, pair, request.salt) for n, pair in pairs.items()})

    @handles(m.ALIGN)
    def _align(self, request: m.Align) -> m.Ready:
        self._aligned.set(request.rows, len(self._have()))
        return m.Ready(len(self._have()), [])

    @handles(m.NAME_ROWS)
    def _name_rows(self, request: m.NameRows) -> m.Ready:
        self._aligned.name(request.name, request.choice, request.draw)
        named = np.zeros(len(self._have()), dtype=bool)
        named[self._aligned.named(request.name)] = True
        self._counted[request.name] = self._parts.chosen(named)
        return m.Ready(len(self._have()), [])

    @handles(m.SEND_LABEL)
    def _send_label(self, request: m.AskLabel) -> m.Sealed:
        codes, known = labels(self._have(), self._label, self.name)
        n_codes = n_states_of(self._have().schema[self._label or ""])
        sent = np.where(known, codes, n_codes)[self._aligned.chosen(request.choice)]
        packed = pack_codes(sent, n_codes + 1)
        return self._mail.seal(packed, request.key, m.LABEL_PIECE, request.step, str(sent.size))

    @handles(m.TAKE_LABEL)
    def _take_label(self, request: m.TakeLabel) -> m.Ready:
        """Add the label to this client's table: missing where its owners lack the row."""
        assert self._label is not None
        taken = self._aligned.with_label(self._have(), self._label, request, self._mail)
        self._table, self._label_was_sent = taken, True
        self._parts.grouped(self._revealed_classes())
        return m.Ready(len(taken), label_counts(taken, self._label))

    @handles(m.PEERS)
    def _take_peers(self, request: m.Peers) -> m.Ready:
        """Take the keys of the others; one that is not the pinned one is refused."""
        self._mail.meet(request)
        return m.Ready(len(self._have()), [])
