"""Latent trees: structure (Chow-Liu), parameters (EM), sizes, and the tree as a circuit."""
