"""The service under load: many users, strangers who waste its time, questions that never end.

    .venv/bin/python benchmarks/load.py --seconds 300    # `make load`; writes its page to docs

Two hundred users ask questions of every kind with pauses in between; one in a hundred asks for
more than the deadline allows. Strangers without a token open connections and send nothing, send
large bodies, and send bodies a byte at a time. At the end every worker is busy and the service
gets SIGTERM. It exits with 1 where a user met an error other than 503 with Retry-After, memory
grew, a deadline did not end a question, or the end took more than five seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import fedcircuits as fc
from fedcircuits.api.datasets import cancer
from tables import write

TOKEN = "a-token-for-the-load-test"
DEADLINE = 8.0  # seconds of a question
LATE = 2.0  # seconds that a busy machine may add to a deadline
END = 5.0  # seconds from SIGTERM to the end
GROWTH = 1.25  # of the floor of memory, from the second third of the time to the last
PAUSE = 1.0  # mean seconds between a reply and the user's next question


@dataclass
class Seen:
    """What happened.

    Attributes:
        statuses: replies to users by question and status.
        errors: what no user should meet, with how often.
        seconds: of each answered question.
        longest: seconds of the longest question that was given up.
        strangers: replies to strangers by what they did and status (0: closed without one).
        own_delay: most seconds by which this process, that of the users, came late to a timer.
        memory: (seconds since the start, MiB of all processes).
    """

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    longest: float = 0.0
    strangers: Counter[tuple[str, int]] = field(default_factory=Counter)
    own_delay: float = 0.0
    memory: list[tuple[float, float]] = field(default_factory=list)


async def reply_to(port: int, data: bytes, wait: float) -> tuple[int, dict[str, str], bytes]:
    """Send the bytes of one request and return status, headers and body of the reply."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        found = await asyncio.wait_for(reader.read(), wait)
    finally:
        writer.close()
    head, _, body = found.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    named = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in named}
    return (int(first.split()[1]) if first else 0), headers, body


def request(path: str, body: Any, token: str | None = TOKEN, length: int | None = None) -> bytes:
    """The bytes of a POST request; `length` is said where it is not the body's."""
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Connection: close"]
    lines += ["Content-Type: application/json", f"Content-Length: {length or len(data)}"]
    lines += [] if token is None else [f"Authorization: Bearer {token}"]
    return "\r\n".join([*lines, "", ""]).encode() + data


def questions(rows: list[dict[str, Any]], rng: random.Random) -> tuple[str, dict[str, Any]]:
    """One question as a user may ask it."""
    row = dict(rng.choice(rows))
    name = rng.choice([each for each in row if each != "diagnosis"])
    given = {k: v for k, v in row.items() if rng.random() < 0.2 and k != name}
    kind = rng.random()
    if kind < 0.01:
        return "endless", {"n": 10**8}
    if kind < 0.3:
        return "predict_proba", {"rows": [row], "target": "diagnosis"}
    if kind < 0.5:
        return "log_prob", {"rows": rng.sample(rows, 20)}
    if kind < 0.7:
        return "moment", {"name": name, "given": given}
    if kind < 0.8:
        return "sample", {"n": 20, "given": given}
    if kind < 0.9:
        return "probability", {"event": {name: {"above": row[name]}}, "given": given}
    return "mpe", {"rows": [given]}


async def user(port: int, rows: list[dict[str, Any]], seed: int, end: float, seen: Seen) -> None:
    """Ask until the time is over; every reply is looked at."""
    rng = random.Random(seed)
    await asyncio.sleep(rng.random() * PAUSE)
    while time.monotonic() < end:
        name, body = questions(rows, rng)
        path = "/sample" if name == "endless" else f"/{name}"
        start = time.monotonic()
        try:
            status, headers, data = await reply_to(port, request(path, body), DEADLINE + LATE + 20)
        except (OSError, TimeoutError) as error:
            seen.errors[f"{name}: {type(error).__name__}"] += 1
            continue
        took = time.monotonic() - start
        seen.statuses[name, status] += 1
        if status == 200 and name != "endless":
            seen.seconds.append(took)
            json.loads(data)
        elif status != 503 or "retry-after" not in headers:
            seen.errors[f"{name}: status {status} {data[:80]!r}"] += 1
        else:
            seen.longest = max(seen.longest, took)
            await asyncio.sleep(float(headers["retry-after"]))
        await asyncio.sleep(rng.expovariate(1 / PAUSE))


async def stranger(port: int, seed: int, end: float, seen: Seen) -> None:
    """Waste the service's time without a token."""
    rng = random.Random(-seed)
    while time.monotonic() < end:
        what = rng.choice(["half-open", "large body", "slow body", "POST /health"])
        try:
            if what == "half-open":
                status = (await reply_to(port, b"POST /log_prob HTTP/1.1\r\nHost: x\r\n", 30))[0]
            elif what == "large body":
                data = request("/log_prob", "x" * 2_000_000, None)
                status = (await reply_to(port, data, 30))[0]
            elif what == "POST /health":
                status = (await reply_to(port, request("/health", "x" * 200_000, None), 30))[0]
            else:
                status = await _slowly(port)
        except (OSError, TimeoutError):
            status = 0
        seen.strangers[what, status] += 1


async def _slowly(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for byte in request("/log_prob", {}, "not the token", 10_000)[:60]:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.2)
        found = await asyncio.wait_for(reader.read(100), 30)
    finally:
        writer.close()
    return int(found.split()[1]) if found else 0


async def watch(process: subprocess.Popen[str], start: float, end: float, seen: Seen) -> None:
    """Note the memory of the service and its workers every second."""
    own = psutil.Process(process.pid)
    while time.monotonic() < end:
        total = 0
        for each in [own, *own.children(recursive=True)]:
            try:
                total += each.memory_info().rss
            except psutil.Error:  # it has just ended
                continue
        seen.memory.append((time.monotonic() - start, total / 2**20))
        await asyncio.sleep(1.0)


async def look_at_the_clock(end: float, seen: Seen) -> None:
    """Note how late this process is itself: what users wait is measured here."""
    while time.monotonic() < end:
        due = time.monotonic() + 0.1
        await asyncio.sleep(0.1)
        seen.own_delay = max(seen.own_delay, time.monotonic() - due)


async def load(
    process: subprocess.Popen[str], port: int, rows: list[dict[str, Any]], chosen: Any
) -> tuple[Seen, float]:
    """Users and strangers for some seconds, then the end; return also how long that took."""
    seen, start = Seen(), time.monotonic()
    end = start + chosen.seconds
    tasks = [user(port, rows, seed, end, seen) for seed in range(chosen.users)]
    tasks += [stranger(port, seed, end, seen) for seed in range(chosen.strangers)]
    tasks += [watch(process, start, end, seen), look_at_the_clock(end + DEADLINE, seen)]
    await asyncio.gather(*tasks)
    stuck = [
        asyncio.ensure_future(reply_to(port, request("/sample", {"n": 10**8}), 60))
        for _ in range(8)
    ]
    await asyncio.sleep(1.5)
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    while process.poll() is None and time.monotonic() - begun < 60:
        await asyncio.sleep(0.05)
    took = time.monotonic() - begun
    for each in stuck:
        each.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)
    return seen, took


def faults(seen: Seen, took: float, code: int | None) -> list[str]:
    """What did not hold."""
    found = [f"{text} ({n} times)" for text, n in seen.errors.items()]
    third = max(1, len(seen.memory) // 3)
    # The floor of memory: an endless question has much while it lasts, and is to leave nothing.
    early, late = (
        float(np.quantile([m for _, m in part], 0.1))
        for part in (seen.memory[third : 2 * third], seen.memory[-third:])
    )
    if late > GROWTH * early:
        found.append(f"the floor of memory grew from {early:.0f} to {late:.0f} MiB")
    if seen.longest > DEADLINE + LATE:
        found.append(f"a question with a deadline of {DEADLINE} s took {seen.longest:.1f} s")
    if took > END or code != 0:
        found.append(f"the end took {took:.1f} s, exit code {code}")
    return found


def main() -> int:
    """Start the service, load it, and write what happened."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--strangers", type=int, default=60)
    parser.add_argument("--no-page", action="store_true", help="print only")
    chosen = parser.parse_args()
    before = os.getloadavg()[0]
    table = cancer(0).train
    rows = json.loads(table.to_json(orient="records"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.fc"
        fc.learn(table, label="diagnosis", learner="mixture").save(path)
        command = [sys.executable, "-m", "fedcircuits", "serve", str(path), "--port", "0", "--json"]
        command += ["--max-seconds", str(DEADLINE), "--max-samples", str(10**9)]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "FEDCIRCUITS_TOKEN": TOKEN},
        )
        assert process.stdout is not None
        try:
            port = int(json.loads(process.stdout.readline())["url"].rpartition(":")[2])
            seen, took = asyncio.run(load(process, port, rows, chosen))
        finally:
            process.kill()
            code = process.wait()
    return report(seen, took, code, chosen, before)


def report(seen: Seen, took: float, code: int | None, chosen: Any, before: float) -> int:
    """Print and write the page; 1 where something did not hold."""
    names = sorted({name for name, _ in seen.statuses})
    lines: list[list[Any]] = []
    for name in names:
        found = {status: n for (of, status), n in seen.statuses.items() if of == name}
        rest = sum(n for status, n in found.items() if status not in (200, 503))
        lines.append([name, sum(found.values()), found.get(200, 0), found.get(503, 0), rest])
    low, high = np.quantile(seen.seconds, [0.5, 0.99])
    memory = [each for _, each in seen.memory]
    wrong = faults(seen, took, code)
    strangers = ", ".join(
        f"{what} {status or 'closed'}: {n}" for (what, status), n in sorted(seen.strangers.items())
    )
    notes = [
        f"{chosen.users} users with pauses of {PAUSE:g} s in the mean for {chosen.seconds:g} s, "
        f"{chosen.strangers} strangers without a token beside them; users, strangers and service "
        "on the same cores. `endless` asks for 100 million samples: it must end at the deadline of "
        f"{DEADLINE:g} s, with 503 and Retry-After, as must questions that waited too long.",
        f"Answered questions took {low:.2f} s (median), {high:.2f} s (99 %). The longest question "
        f"that was given up took {seen.longest:.1f} s. The process of the users, which reads the "
        f"clock, came late to its own timers by {seen.own_delay:.1f} s at most; load average of "
        f"the machine {before:.0f} before the start, {os.getloadavg()[0]:.0f} at the end.",
        f"Memory of the service and its four workers: {memory[len(memory) // 6]:.0f} MiB early, "
        f"{max(memory):.0f} at most, {memory[-1]:.0f} at the end (an `endless` question holds what "
        "it has drawn until its process is ended).",
        f"SIGTERM with every worker busy: ended after {took:.1f} s, exit code {code}.",
        f"Strangers: {strangers}.",
        f"What did not hold: {'; '.join(wrong) or 'nothing'}.",
    ]
    if chosen.no_page:
        for line in (*lines, *notes):
            print(line)
    else:
        heads = ["question", "asked", "answered", "503 with Retry-After", "other"]
        command = f"python benchmarks/load.py --seconds {chosen.seconds:g}"
        write("load", "The service under load", heads, lines, command, notes)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
