"""What is sent between server and clients; both sides run it.

`requests/` defines every message: request, reply and, at the end of each file, one declaration that
says what the server and others learn from the reply and what it does to the client (`verbs.py` has
the form of a declaration and the levels of what is revealed). The rest is what messages are made
of: encoding (`message.py`, `codecs.py`, `packing.py`, `envelope.py`), names of jobs and models
(`names.py`), digests of ids, masks, randomised response, seeds, the ledger of bytes, and the
contract of an engine (`transport.py`).
"""
