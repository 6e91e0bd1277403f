"""Runs inside the peer's own environment: the same circuit in deeprob-kit, timed.

Usage: python deeprob_log_prob.py circuit.json rows.npy out.npz
"""

import json
import sys
import time

import deeprob.spn.structure as spn
import numpy as np
from deeprob.spn.algorithms.inference import log_likelihood

with open(sys.argv[1]) as file:
    nodes = json.load(file)
rows = np.load(sys.argv[2])
built = []
for node in nodes:
    kind = node["kind"]
    if kind == "sum":
        children = [built[c] for c in node["children"]]
        built.append(spn.Sum(children=children, weights=node["weights"]))
    elif kind == "product":
        built.append(spn.Product(children=[built[c] for c in node["children"]]))
    elif kind == "gaussian":
        built.append(spn.Gaussian(node["column"], mean=node["mean"], stddev=node["sd"]))
    else:
        probs = node["probs"]
        built.append(spn.Categorical(node["column"], list(range(len(probs))), probs))
root = built[-1]
spn.assign_ids(root)
log_likelihood(root, rows[:100])
times = []
for _ in range(3):
    start = time.process_time()
    answer = log_likelihood(root, rows)
    times.append(time.process_time() - start)
single = []
for i in range(20):
    start = time.perf_counter()
    log_likelihood(root, rows[i : i + 1])
    single.append(time.perf_counter() - start)
np.savez(
    sys.argv[3], log_prob=np.ravel(answer), seconds=np.median(times), one_row=np.median(single)
)
