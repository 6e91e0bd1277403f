"""Organisations with NVFlare: server and sites with mutual TLS, our messages inside its tasks.

`flare` alone imports the library. `kits` makes start-up kits, `sites` starts processes on them,
`jobs` writes what is submitted, `channel` links a program to a running job, `engine` is the engine.
"""
