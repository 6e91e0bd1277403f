"""The head: small trees that adjust p(y | x) of a fitted model while p(x) stays as it is.

`fit_head.py` grows the trees on states and chooses them on validation rows, `pool.py` pools them
with the model's own posterior, `fit_across.py` and `learning_across.py` do so over columns of
several clients. `trees/` has the trees, `headed/` the circuit that carries them.
"""
