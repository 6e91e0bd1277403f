"""Two thousand fuzzed cases: an answer that is right, or an error of ours, in time and memory.

`make fuzz` tries as many as ten minutes allow; `cases.py` says how to replay a find.
"""

from __future__ import annotations

import numpy as np
import pytest

from fuzzing import cases
from fuzzing.targets import TARGETS

CASES = {"messages": 400, "replies": 400, "files": 200, "toml": 400, "csv": 150, "http": 450}


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.filterwarnings("ignore::fedcircuits.errors.FedcircuitsWarning")
def test_no_case_ends_with_anything_but_an_answer_or_an_error_of_ours(name: str) -> None:
    tally = cases.fuzz(name, first=0, cases=CASES[name])
    assert tally.cases == CASES[name]
    assert tally.finds == {}


class Broken:
    """A target with three faults."""

    def make(self, rng: np.random.Generator) -> bytes:
        return bytes([int(rng.integers(4))])

    def check(self, data: bytes) -> None:
        if data == b"\x00":
            raise KeyError("a foreign exception")
        while data == b"\x01":
            pass
        self.held = bytearray(300 * 2**20) if data == b"\x02" else b""


def test_the_harness_finds_what_it_looks_for(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TARGETS, "broken", Broken)
    monkeypatch.setattr(cases, "SECONDS", 0.05)
    monkeypatch.setattr(cases, "FOLDER", tmp_path)
    finds = cases.fuzz("broken", first=0, cases=12).finds
    words = " ".join(finds.values())
    assert "KeyError" in words
    assert "no end after" in words
