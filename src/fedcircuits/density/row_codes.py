"""How coarse a code of a row is that one client's trees say and another's see.

A score for every class but the last has `2 LEVELS + 1` levels, a leaf is one of `N_LEAVES`: at most
8 bits a row for two classes, 4 more for every further class.
"""

from __future__ import annotations

LEVELS, N_LEAVES = 7, 16
