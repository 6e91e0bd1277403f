"""What a learner says about a fit: a plain value that is saved with the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class FitReport:
    """Account of one fit.

    Attributes:
        learner: name of the learner.
        seconds: wall-clock time of the fit.
        sizes: chosen sizes by name (latent states, bins, ...).
        curve: objective after each pass, nats per row.
        kept: choices made on validation rows, with what each gained.
        warnings: what the user should know (constant columns, too few rows, ...).
    """

    learner: str
    seconds: float
    sizes: dict[str, Any] = field(default_factory=dict)
    curve: tuple[float, ...] = ()
    kept: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values for the header of a file."""
        return {
            "learner": self.learner,
            "seconds": float(self.seconds),
            "sizes": dict(self.sizes),
            "curve": [float(v) for v in self.curve],
            "kept": dict(self.kept),
            "warnings": list(self.warnings),
        }

    @staticmethod
    def from_json(record: dict[str, Any]) -> FitReport:
        """Inverse of `to_json`."""
        return FitReport(
            learner=str(record["learner"]),
            seconds=float(record["seconds"]),
            sizes=dict(record["sizes"]),
            curve=tuple(float(v) for v in record["curve"]),
            kept=dict(record["kept"]),
            warnings=tuple(str(w) for w in record["warnings"]),
        )
