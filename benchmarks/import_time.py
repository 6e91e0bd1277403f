"""CPU time of `import fedcircuits` and of the first use of its main names, each in a new process.

Run: python benchmarks/import_time.py [--repeats 5]
The least of the repeats is shown: other work on the machine only adds to it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

CASES = {
    "import fedcircuits": "import fedcircuits",
    "fc.learn": "import fedcircuits as fc; fc.learn",
    "fc.load": "import fedcircuits as fc; fc.load",
    "fc.federate": "import fedcircuits as fc; fc.federate",
    "fc.CircuitClassifier": "import fedcircuits as fc; fc.CircuitClassifier",
    "import pandas (for comparison)": "import pandas",
}
TIMED = "import time; start = time.process_time(); {code}; print(time.process_time() - start)"


def seconds(code: str, repeats: int) -> float:
    """Return the least CPU seconds that some code takes in a new process."""
    command = [sys.executable, "-c", TIMED.format(code=code)]
    return min(
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(repeats)
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    print("| first use | CPU, s |\n|---|---|")
    for name, code in CASES.items():
        print(f"| `{name}` | {seconds(code, repeats):.2f} |")


if __name__ == "__main__":
    main()
