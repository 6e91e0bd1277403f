"""Build hook: compile the inner loops where there is a C compiler, go on without them elsewhere."""

from __future__ import annotations

import runpy
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = "src/fedcircuits/native"


class CompileKernels(BuildHookInterface):  # type: ignore[type-arg]
    """Adds `kernels.so` to a wheel, or puts it beside the sources of an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; a wheel with a library is for this platform and any Python 3."""
        del version
        if self.target_name != "wheel":
            return
        build = runpy.run_path(str(Path(self.root, NATIVE, "build.py")))
        try:
            library = build["compile_kernels"]()
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or error
            self.app.display_warning(
                f"the inner loops were not compiled ({said}): NumPy does their work, more slowly"
            )
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append(f"{NATIVE}/{library.name}")
