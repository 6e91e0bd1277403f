"""Rows split: three hospitals have the same columns of different patients.

Run: python examples/rows_split.py
"""

from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score

import fedcircuits as fc


def main() -> None:
    table = load_breast_cancer(as_frame=True).frame.iloc[:, [0, 1, 4, 21, 24, 30]]
    train, test = table.iloc[::2], table.iloc[1::2]

    hospitals = fc.partition.iid(train.head(150), 3, seed=1)  # name -> DataFrame
    fed = fc.federate(hospitals, label="target")
    print(f"setting: {fed.setting}; rule: {fed.rule.name}; rows: {fed.n_rows}")

    together = fed.predict_proba(test.drop(columns="target"), "target")[1]
    alone = fc.learn(next(iter(hospitals.values())), label="target")
    single = alone.predict_proba(test.drop(columns="target"), "target")[1]
    print(f"AUC of the federation: {roc_auc_score(test['target'], together):.3f}")
    print(f"AUC of one hospital:   {roc_auc_score(test['target'], single):.3f}")

    print("what left a client besides schema, row counts and models:")
    for line in fed.rule.reveals:
        print(" -", line)
    print(fed.ledger.table())


if __name__ == "__main__":
    main()
