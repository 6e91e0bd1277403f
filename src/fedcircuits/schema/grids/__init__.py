"""Grids of numeric variables: states (atoms, bins, tails), the density within them, sketches.

`grid.py` is the grid itself; `inside.py`, `shapes.py`, `tails.py` and `states.py` have the density
within bins and tails; `make_grid.py` makes a grid from values; `sketch.py` is what clients send so
that one grid can be agreed.
"""
