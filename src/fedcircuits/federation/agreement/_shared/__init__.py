"""What several agreement rules need; runs at the server.

Cluster indices of aligned rows, latent classes fitted to them, jobs for one model a class, trees of
anchors, and validation rows that are scored without sending a cell or a label.
"""
