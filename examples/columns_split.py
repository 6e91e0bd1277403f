"""Columns split: a laboratory and a shop know different things about the same bottles.

Rows are matched by an id that both have; digests of it travel, keyed with `id_secret`.

Run: python examples/columns_split.py
"""

from sklearn.datasets import load_wine

import fedcircuits as fc


def main() -> None:
    wine = load_wine(as_frame=True).frame.rename_axis("bottle").reset_index()
    train, test = wine.iloc[::2], wine.iloc[1::2]
    lab = train[["bottle", "alcohol", "malic_acid", "ash", "magnesium", "target"]]
    shop = train[["bottle", "color_intensity", "hue", "proline"]].sample(frac=0.95, random_state=0)

    fed = fc.federate(
        {"lab": lab, "shop": shop},
        id="bottle",
        label="target",
        id_secret="32 random characters or more, please",  # known to clients, not to the server
    )
    print(f"setting: {fed.setting}; rule: {fed.rule.name}")

    # One model answers about columns that no single client holds together.
    rows = test[[name for name in fed.schema.names if name != "target"]]
    accuracy = (fed.predict(rows, "target") == test["target"]).mean()
    print(f"accuracy {accuracy:.3f}")
    print("colour given the laboratory's columns:")
    print(fed.expectation("color_intensity", lab.drop(columns=["bottle", "target"]).head(3)))

    print("what left a client besides schema, row counts and models:")
    for line in fed.rule.reveals:
        print(" -", line)


if __name__ == "__main__":
    main()
