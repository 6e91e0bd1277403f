"""Region graphs: the ways to split variables, and drawings of them."""
