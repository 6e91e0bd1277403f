"""The command line: `fedcircuits learn`, `query`, `inspect`, `federate` and others."""

from fedcircuits.cli.app import main

__all__ = ["main"]
