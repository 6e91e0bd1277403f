"""The head: small trees that adjust p(y | x) of a fitted model while p(x) stays as it is.

Growing trees on states, choosing them on validation rows, and the passes that answer queries with
missing cells.
"""
