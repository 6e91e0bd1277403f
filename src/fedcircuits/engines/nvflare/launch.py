"""The program of a server's or site's process; a script that imports NVFlare alone, to start fast.

NVFlare starts a process of its own for a job; both end when standard input does, on a signal, or
when NVFlare itself comes to an end.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

HEARTBEAT = 5.0  # seconds between a site's signs of life
SERVER = "server"


def run(kit: Path, name: str) -> None:
    """Run the server or a site until stopped; does not return."""
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, _stop)
    role, uid = (SERVER, []) if name == SERVER else ("client", [f"uid={name}"])
    sys.argv = [
        f"{role}_train", "-m", str(kit), "-s", f"fed_{role}.json", "--set", "secure_train=true",
        *uid, "org=fedcircuits", "config_folder=config", f"heart_beat_interval={HEARTBEAT}",
    ]  # fmt: skip
    try:
        runpy.run_module(f"nvflare.private.fed.app.{role}.{role}_train", run_name="__main__")
    finally:
        _end(1)  # it does not end by itself unless something is wrong


def main() -> None:
    """Entry point of a started process: runs until its standard input ends."""
    kit, name, scratch = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    watching = threading.Thread(target=_end_with_input, args=[scratch], daemon=True)
    watching.start()
    run(kit, name)


def _end_with_input(scratch: str) -> None:
    """End this process when its standard input ends: whoever started it is gone."""
    while os.read(0, 2**12):
        pass
    if scratch:
        end_children(os.getpid())
        time.sleep(0.5)  # others that end now write there until they have
        shutil.rmtree(scratch, ignore_errors=True)
    _end(0)


def _stop(number: int, frame: FrameType | None) -> None:
    del number, frame
    _end(0)


def _end(code: int) -> None:
    """End this process at once, and what it has started."""
    end_children(os.getpid())
    os._exit(code)


def end_children(pid: int) -> None:
    """Kill all processes that a process has started; a job's process has its own group."""
    import psutil  # type: ignore[import-untyped]

    with contextlib.suppress(psutil.NoSuchProcess):
        for one in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


if __name__ == "__main__":
    main()
