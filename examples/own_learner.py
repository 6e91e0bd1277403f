"""A learner of your own: any object with `fit(table, rng)` that returns a density.

This one fits a diagonal Gaussian mixture with scikit-learn and returns it as a circuit, so every
query and every federation takes it.

Run: python examples/own_learner.py
"""

from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_iris
from sklearn.mixture import GaussianMixture

import fedcircuits as fc
from fedcircuits import Circuit, Table, build


@dataclass(frozen=True)
class GaussianMixtureLearner:
    """Numeric columns only; rows with missing cells are left out of the fit."""

    n_components: int = 3

    def fit(self, table: Table, rng: np.random.Generator) -> Circuit:
        """Return the mixture as a sum over products of Gaussian leaves."""
        seed = int(rng.integers(2**31))
        found = GaussianMixture(self.n_components, covariance_type="diag", random_state=seed)
        found.fit(table.values[table.observed.all(axis=1)])  # (n, d)
        components = [
            build.product(
                [
                    build.gaussian(name, m, v**0.5)
                    for name, m, v in zip(table.schema.names, mean, var, strict=True)
                ]
            )
            for mean, var in zip(found.means_, found.covariances_, strict=True)
        ]
        return build.circuit(table.schema, build.sum(components, found.weights_))


def main() -> None:
    iris = load_iris(as_frame=True).data
    model = fc.learn(iris, learner=GaussianMixtureLearner(3))
    print(f"one table: {model.mean_log_prob(iris):.3f} nats a row")

    fed = fc.federate(fc.partition.iid(iris, 3), learner=GaussianMixtureLearner(2))
    print(f"three clients: {fed.mean_log_prob(iris):.3f} nats a row")
    print(fed.condition({"petal length (cm)": 1.5}).sample(2, seed=0))


if __name__ == "__main__":
    main()
