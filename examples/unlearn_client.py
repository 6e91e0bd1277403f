"""A client leaves: its models go, the rest is combined again without training.

Run: python examples/unlearn_client.py
"""

import numpy as np
from sklearn.datasets import load_wine

import fedcircuits as fc


def main() -> None:
    wine = load_wine(as_frame=True).frame[["alcohol", "hue", "proline", "target"]]
    clients = fc.partition.iid(wine, 3, seed=0)
    names = sorted(clients)
    options = {"label": "target", "agreement": "product", "learner": "factorised"}

    fed = fc.federate(clients, **options)
    rest = fed.without(names[-1])
    print(f"before: {fed.clients}; after: {rest.clients}")

    # The same as a federation that never had the client, on the schema that was agreed.
    never = fc.federate({n: clients[n] for n in names[:-1]}, schema=fed.schema, **options)
    difference = np.abs(rest.log_prob(wine) - never.log_prob(wine)).max()
    print(f"largest difference in log-density to a run without it: {difference:.1e}")
    print("the agreed schema and grid still stem from all clients;")
    print("`without(name, rebuild_grid=True)` agrees on them anew and trains the others again")


if __name__ == "__main__":
    main()
