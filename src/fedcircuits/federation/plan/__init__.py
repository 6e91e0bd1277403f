"""Algorithm 1 of the paper as pure functions; runs at the server and touches neither data nor wire.

The indicator matrix says who holds which column, subspaces group columns with the same holders, the
plan says what is fitted and which clusters each product combines, and `weights.py` has the weights
of sums (rho, section 3.3).
"""
