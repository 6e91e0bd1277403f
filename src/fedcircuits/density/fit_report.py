"""What a learner reports about a fit: a plain value that is saved with the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedcircuits.jsonable import plain_json


@dataclass(frozen=True)
class FitReport:
    """What one fit did: learner, seconds, sizes, likelihoods, choices and warnings.

    Attributes:
        learner: name of the learner.
        seconds: wall-clock time of the fit.
        sizes: chosen sizes by name (latent states, bins, ...).
        curve: objective after each pass, nats per row.
        kept: choices made on validation rows, with what each gained.
        warnings: what the user should know (constant columns, too few rows, ...).
        label: the column that was to be predicted; None where there was none, or it is not known.
    """

    learner: str
    seconds: float
    sizes: dict[str, Any] = field(default_factory=dict)
    curve: tuple[float, ...] = ()
    kept: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    label: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the header of a file: NaN as None, infinities as text."""
        return {
            "learner": str(self.learner),
            "seconds": plain_json(float(self.seconds)),
            "sizes": plain_json(self.sizes),
            "curve": [plain_json(float(v)) for v in self.curve],
            "kept": plain_json(self.kept),
            "warnings": [str(w) for w in self.warnings],
            **({} if self.label is None else {"label": self.label}),
        }

    @staticmethod
    def from_json(record: dict[str, Any]) -> FitReport:
        """Inverse of `to_json`."""
        return FitReport(
            learner=str(record["learner"]),
            seconds=_number(record["seconds"]),
            sizes=dict(record["sizes"]),
            curve=tuple(_number(v) for v in record["curve"]),
            kept=dict(record["kept"]),
            warnings=tuple(str(w) for w in record["warnings"]),
            label=None if record.get("label") is None else str(record["label"]),
        )


def _number(value: Any) -> float:
    """A number read from JSON, in which None stands for NaN."""
    return float("nan") if value is None else float(value)
