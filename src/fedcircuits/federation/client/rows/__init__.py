"""What a client does about its own rows before any fit.

`describe.py` summarises columns for the server and `rare_states.py` merges states of few rows;
`aligning.py` answers requests about ids, keys and a label that others hold, `aligned_rows.py` keeps
which rows other clients hold too, and `parts.py` which rows every group so far has in common.
"""
