"""A cluster with Ray: one actor for each client, placed by resources, messages as our bytes.

`cluster` alone imports the library; `settings` is what its processes read from the environment;
`certificates` makes what encryption needs; `engine` is the engine.
"""
