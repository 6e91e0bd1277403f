"""Federations of Adult, Give Me Some Credit and Cancer beside centralised and single clients.

Rows split (iid, Dirichlet, one class a client), columns split (label shared, on one client,
private) and both (30 % of the columns shared, 40 % of the rows aligned): quality, density, time,
growth to a million rows, bytes. Held-out test rows; every choice is made on rows inside the
training part. Rows that lose are kept.

    python benchmarks/federation.py --seeds 5 --jobs 8 --runs FILE     # everything, resumable
    python benchmarks/federation.py --seeds 5 --shard 2/4 --runs FILE --no-page   # a quarter of it
    python benchmarks/federation.py --page-only --runs FILE [FILE ...]  # the page from runs
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import time
import traceback
import warnings
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import federation_tables
import tables
from federation_cases import Task, run, tasks


def measured(task: Task) -> dict[str, Any]:
    """One task's figures, with what it was and where and when it ran."""
    warnings.filterwarnings("ignore")
    found = {"data": task.data, "case": task.case, "seed": task.seed, **run(task)}
    return {**found, "machine": tables.machine(), "date": datetime.date.today().isoformat()}


def read(files: list[Path]) -> list[dict[str, Any]]:
    """Finished runs; the first of a task counts."""
    found: dict[Task, dict[str, Any]] = {}
    for file in files:
        for line in file.read_text().splitlines() if file.exists() else []:
            one = json.loads(line)
            found.setdefault(Task(one["data"], one["case"], one["seed"]), one)
    return list(found.values())


def work(todo: list[Task], jobs: int, until: float, kept: Path) -> None:
    """Run tasks side by side; each is written down as soon as it is done."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # one thread a task, tasks side by side
    waiting, running = list(todo), dict[Future[dict[str, Any]], Task]()
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool, kept.open("a") as file:
        while waiting or running:
            while waiting and len(running) < jobs and time.monotonic() < until:
                task = waiting.pop(0)
                running[pool.submit(measured, task)] = task
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task = running.pop(future)
                try:
                    found = future.result()
                except Exception:  # one case that fails must not end the others
                    print("FAILED", task, traceback.format_exc(), flush=True)
                    continue
                file.write(json.dumps(found, default=float) + "\n")
                file.flush()
                print(task, f"{found.get('CPU s', 0):.1f} CPU s", flush=True)


def main() -> None:
    """Run what is asked for and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", nargs="*", default=["adult", "cancer", "credit"])
    parser.add_argument("--only", default="", help="run cases whose name holds this")
    parser.add_argument("--shard", default="1/1", help="i/n: the i-th of n parts of the tasks")
    parser.add_argument("--jobs", type=int, default=1, help="tasks side by side")
    parser.add_argument("--seconds", type=float, default=1e9, help="start nothing after these")
    parser.add_argument("--runs", type=Path, nargs="+", default=[Path("federation_runs.jsonl")],
                        help="files of finished runs; the first is added to")  # fmt: skip
    parser.add_argument("--no-page", action="store_true", help="leave the page as it is")
    parser.add_argument("--page-only", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    done = read(arguments.runs)
    if not arguments.page_only:
        part, parts = map(int, arguments.shard.split("/"))
        known = {Task(d["data"], d["case"], d["seed"]) for d in done}
        mine = tasks(arguments.seeds, arguments.data)[part - 1 :: parts]
        todo = [t for t in mine if t not in known and arguments.only in t.case]
        until = time.monotonic() + arguments.seconds
        work(todo, arguments.jobs, until, arguments.runs[0])
        done = read(arguments.runs)
    if not arguments.no_page:
        command = f"python benchmarks/federation.py --seeds {arguments.seeds}"
        federation_tables.write(done, command)


if __name__ == "__main__":
    main()
