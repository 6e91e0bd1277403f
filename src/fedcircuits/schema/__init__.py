"""The words of a table: names, kinds, domains, units, grids; encoding rows and merging schemas."""

from fedcircuits.schema.grids.grid import Grid
from fedcircuits.schema.grids.sketch import Sketch
from fedcircuits.schema.read import Data, read
from fedcircuits.schema.schema import Schema
from fedcircuits.schema.table import Table
from fedcircuits.schema.variable import MISSING, Kind, Variable

__all__ = ["MISSING", "Data", "Grid", "Kind", "Schema", "Sketch", "Table", "Variable", "read"]
