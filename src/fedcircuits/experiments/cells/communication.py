"""The paper's communication figure: bytes that were sent, beside the formulas of section 3.4."""

from __future__ import annotations

from typing import Any

from fedcircuits.experiments import rivals
from fedcircuits.experiments.cells import classification
from fedcircuits.experiments.experiment import Cell, Context, Experiment
from fedcircuits.federation.wire import ledger


def run(cell: Cell, experiment: Experiment, context: Context) -> dict[str, Any]:
    """Return measured bytes of one training, and what the formula of its method says."""
    return of_record(classification.run(cell, experiment, context), cell, experiment)


def of_record(found: dict[str, Any], cell: Cell, experiment: Experiment) -> dict[str, Any]:
    """Return the same for a training that was recorded: its facts and the formula's bytes."""
    setting = experiment.settings[cell.setting]
    n, rows = int(setting["clients"]), int(found["rows"])
    parameters = float(found.get("parameters") or 0)
    if cell.model.startswith("FedAvg"):
        formula = 4 * 2 * ledger.fed_avg(parameters, n, int(found["rounds"]))
    elif cell.model.startswith("SplitNN"):
        from fedcircuits.baselines.split_nn import ACTIVATION

        formula = 4 * 2 * ledger.split_nn(rows, ACTIVATION, n - 1, int(found["rounds"]))
    elif cell.model in rivals.RIVALS:
        formula = float("nan")
    else:
        formula = 8 * ledger.fed_pc_horizontal(parameters / n, n)
    return {**found, "bytes_formula": float(formula)}
