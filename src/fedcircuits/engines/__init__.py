"""Engines carry messages between server and clients; they do no maths."""

from fedcircuits.engines.local import LocalEngine

__all__ = ["LocalEngine"]
