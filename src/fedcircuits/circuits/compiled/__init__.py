"""Compiled passes over a circuit: prepared once, then many rows a call.

`program.py` lays a circuit out as blocks of nodes, `cells.py` looks up what the rows say about the
leaves, `run.py` calls the loops of `native/circuit_values.inc` (up) and `native/circuit_pass.inc`
(down). The passes in NumPy (`circuits/passes.py`, `queries/walk.py`) are their twins and work out
the rare rows that linear space cannot hold.
"""
