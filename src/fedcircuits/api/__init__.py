"""The functions and classes that users call; runs in the user's process.

`learn`, `federate` and `load` turn names ("hclt", "product", "ray") into objects and call the rooms
below. Also here: scikit-learn estimators, partitioners that split a table over clients, dataset
loaders, and the client spec that a client is made from wherever it runs.
"""
