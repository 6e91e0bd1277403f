"""Rows and columns split: two clients share some columns and some rows, not all.

Run: python examples/both_split.py
"""

from sklearn.datasets import load_wine

import fedcircuits as fc


def main() -> None:
    wine = load_wine(as_frame=True).frame.sample(frac=1, random_state=0)
    wine = wine.rename_axis("bottle").reset_index()
    train, test = wine.iloc[:130], wine.iloc[130:]
    north = train.iloc[:90][["bottle", "alcohol", "hue", "proline", "target"]]
    south = train.iloc[40:][["bottle", "alcohol", "flavanoids", "target"]]

    fed = fc.federate({"north": north, "south": south}, id="bottle", label="target")
    print(f"setting: {fed.setting}; rule: {fed.rule.name}; clients: {fed.clients}")

    names = ["alcohol", "hue", "proline", "flavanoids"]
    accuracy = (fed.predict(test[names], "target") == test["target"]).mean()
    print(f"accuracy {accuracy:.3f}")
    print("a bottle of class 1, all columns of both clients:")
    print(fed.condition(target=1).sample(1, seed=1)[names])


if __name__ == "__main__":
    main()
