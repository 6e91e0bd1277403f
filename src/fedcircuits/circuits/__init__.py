"""What a circuit is and what it can be asked; NumPy, SciPy and compiled passes (`compiled/`)."""

from fedcircuits.circuits.assemble import Assembler
from fedcircuits.circuits.circuit import Circuit
from fedcircuits.circuits.composite import Composite
from fedcircuits.circuits.leaves import FAMILIES, LeafFamily

__all__ = ["FAMILIES", "Assembler", "Circuit", "Composite", "LeafFamily"]
