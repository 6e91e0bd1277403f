"""Public queries that every density inherits, one file a kind: probabilities, moments, completions.

Each is a class over the hooks of `density/hooks.py` that takes evidence as callers give it;
`density/density.py` puts them together.
"""
