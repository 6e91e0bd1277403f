"""A trained network as a `Density`: queries, spreads, encoding of columns, unrolling."""
