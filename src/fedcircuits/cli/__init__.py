"""The command line: `fedcircuits learn | query | inspect | demo`."""

from fedcircuits.cli.app import main

__all__ = ["main"]
