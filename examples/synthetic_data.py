"""Synthetic rows: sample a table from a federation, also given conditions, and fill in gaps.

Samples follow the model's joint distribution. They are not differentially private: a model can
reproduce rare values of the rows that it was learned from.

Run: python examples/synthetic_data.py
"""

import numpy as np
import pandas as pd
from sklearn.datasets import load_wine

import fedcircuits as fc


def main() -> None:
    wine = load_wine(as_frame=True).frame[["alcohol", "hue", "proline", "target"]]
    fed = fc.federate(fc.partition.iid(wine, 3, seed=0), label="target")

    drawn = fed.sample(2_000, seed=1)  # a DataFrame with the same names and kinds
    print(pd.DataFrame({"real": wine.mean(), "synthetic": drawn.mean()}).round(2))

    rare = fed.condition(target=2).sample(200, seed=2)
    print(f"mean proline given class 2: {rare['proline'].mean():.0f}", end=", ")
    print(f"in the data {wine.loc[wine['target'] == 2, 'proline'].mean():.0f}")

    gaps = wine.head(5).copy()
    gaps.loc[gaps.index[1:3], "proline"] = np.nan
    print(fed.impute(gaps))


if __name__ == "__main__":
    main()
