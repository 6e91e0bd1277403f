"""The result of a federation; runs where `fc.federate` was called.

`FederatedCircuit` is a density over fitted parts that were gathered; `RemoteCircuit` is the same
over parts that stayed at their clients; `FederatedEnsemble` averages or votes over classifiers.
Also here: saving them, and what a run cost beside the paper's formulas.
"""
