"""Draft models that follow their target, or stay as they are: ways to run vllm_draft_run.py, each beside fresh engines."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from tools.real.engines.draft_model import SPECULATIONS
from tools.real.engines.results import Result
from tools.real.engines.torn import HERE


@dataclasses.dataclass(frozen=True)
class DraftMode:
    """A way to speculate: of SPECULATIONS. `fixed`: the draft stays as it is; `ranks`: of tensor parallelism."""

    speculation: str
    fixed: bool = False
    ranks: int = 1

    def command(self) -> list[str]:
        command = [os.path.join(HERE, "vllm_draft_run.py"), "--speculation", self.speculation, "--tp", str(self.ranks)]
        return [*command, "--fixed"] if self.fixed else command

    def variables(self, folder: str) -> dict[str, str]:
        """Environment variables for the engine's processes, in addition to those of Environment."""
        return {
            "VLLM_USE_V2_MODEL_RUNNER": "0",
            "VLLM_CACHE_ROOT": os.path.join(folder, "cache"),
            # Engines one after the other in one process, which is asked for every parameter.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }

    def module_paths(self) -> list[str]:
        """Paths that come first on PYTHONPATH."""
        return []

    @staticmethod
    def verdict(found: dict[str, Any]) -> Result:
        """The run ends with an error if anything differs."""
        return Result(True, str(found["found"]))


VLLM_MODES = {
    **{name: DraftMode(name) for name in SPECULATIONS},
    "eagle-tp2": DraftMode("eagle", ranks=2),
    "eagle3-tp2": DraftMode("eagle3", ranks=2),
    "eagle-fixed": DraftMode("eagle", fixed=True),
    "mtp-fixed": DraftMode("mtp", fixed=True),
}
MODES: dict[str, dict[str, DraftMode]] = {"vllm": VLLM_MODES, "sglang": {}}
