"""The words of a table: names, kinds, domains, units; encoding rows and merging schemas.

`reading/` takes rows from files and data frames, `grids/` has the cells of numbers, `events/` what
may be said of a cell besides its value.
"""

from fedcircuits.schema.grids.grid import Grid
from fedcircuits.schema.grids.sketch import Sketch
from fedcircuits.schema.reading.read import Data, read
from fedcircuits.schema.schema import Schema
from fedcircuits.schema.table import Table
from fedcircuits.schema.variable import MISSING, Kind, Variable

__all__ = ["MISSING", "Data", "Grid", "Kind", "Schema", "Sketch", "Table", "Variable", "read"]
