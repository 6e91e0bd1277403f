"""What the owner of a table allows, and the guard that enforces it; runs at a client.

`Policy` is read from a TOML file, and a plan is consented to as far as it allows (`consent.py`).
The policy guard checks every request and reply against both and counts what they cost (`run.py`);
the audit file records them.
"""
