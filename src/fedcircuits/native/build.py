"""Compile the inner loops: `python -m fedcircuits.native.build`, or the build of the package.

Needs a C compiler and nothing else. Without one the package is complete all the same: every
compiled loop has a NumPy twin that does the same work more slowly.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("kernels.c")
LIBRARY = Path(__file__).with_name("kernels.so")
FLAGS = (
    *("-O3", "-std=c11", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread", "-Wall"),
    # Sums may be added in another order, so that they are done many at a time; infinities count.
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math"),
)


def source_digest() -> str:
    """Of the C sources; the library carries it, so that one made of others is not loaded."""
    digest = hashlib.sha256()
    for path in (SOURCE, *sorted(SOURCE.parent.glob("*.inc"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def compile_kernels() -> Path:
    """Compile `kernels.c` beside this file and return the library.

    Raises:
        OSError: there is no compiler.
        subprocess.CalledProcessError: the compiler refused; its words are in `stderr`.
    """
    compiler = shlex.split(os.environ.get("CC", "cc"))
    # Written under another name first: a process may have the old one open.
    fresh = LIBRARY.with_name(f"kernels.{os.getpid()}.tmp")
    stamp = f'-DSOURCE_DIGEST="{source_digest()}"'
    command = [*compiler, *FLAGS, stamp, "-o", str(fresh), str(SOURCE), "-lm"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
        fresh.replace(LIBRARY)
    finally:
        fresh.unlink(missing_ok=True)
    return LIBRARY


if __name__ == "__main__":
    compile_kernels()
