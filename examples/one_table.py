"""Learn a density from one table and ask it: predictions, missing cells, samples, saving.

Run: python examples/one_table.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from sklearn.datasets import load_wine

import fedcircuits as fc


def main() -> None:
    wine = load_wine(as_frame=True).frame
    train, test = wine.iloc[::2], wine.iloc[1::2]
    model = fc.learn(train, label="target")

    # p(target | x), with all columns and with two of them: the others are summed out.
    right = model.predict(test.drop(columns="target"), "target") == test["target"]
    few = model.predict(test[["alcohol", "hue"]], "target") == test["target"]
    print(f"accuracy {right.mean():.3f}; from alcohol and hue alone {few.mean():.3f}")

    # Densities, moments and the likeliest completion, given anything.
    print(f"mean log-density of the test rows: {model.mean_log_prob(test):.2f} nats")
    print(
        "expected alcohol of class 0:", round(float(model.expectation("alcohol", {"target": 0})), 2)
    )
    print(model.mpe({"alcohol": 14.1})[["alcohol", "proline", "target"]])

    with TemporaryDirectory() as folder:
        path = Path(folder) / "wine.fc"
        model.save(path)
        same = fc.load(path).log_prob(test).equals(model.log_prob(test))
        print("the loaded model gives the same densities:", same)


if __name__ == "__main__":
    main()
