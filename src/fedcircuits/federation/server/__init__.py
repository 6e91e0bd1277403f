"""The server of a run: sends requests, merges replies, holds no table.

`Server` does the handshake (schemas merged in `merged_schema.py`, alignment) and calls clients;
`fitted_parts.py` has the jobs sent to clients and what came back; the circuit builder puts sums and
products over those parts; `remote.py` is a model that stayed at its client.
"""
