"""A circuit with a head, p(x, y) = m(x) q(y | x): its queries, for rows with missing cells too.

`headed_circuit.py` is the density, `circuit_head.py` makes one; `completions.py` and `estimates.py`
average over missing cells with the passes of `class_pass.py` and `circuit_pass.py`.
"""
