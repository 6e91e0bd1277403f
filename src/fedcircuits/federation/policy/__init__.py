"""What the owner of a table allows, and the guard that enforces it; runs at a client.

`Policy` is read from a TOML file. The policy guard checks every request and reply against it, the
audit file records them, and the replay guard refuses messages of another run or sent twice.
"""
