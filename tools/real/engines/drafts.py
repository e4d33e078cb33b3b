"""Draft models that follow their target: ways to run vllm_draft_run.py, each beside fresh engines."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from tools.real.engines.draft_model import SPECULATIONS
from tools.real.engines.results import Result
from tools.real.engines.torn import HERE


@dataclasses.dataclass(frozen=True)
class DraftMode:
    """A way to speculate: of SPECULATIONS."""

    speculation: str

    def command(self) -> list[str]:
        return [os.path.join(HERE, "vllm_draft_run.py"), "--speculation", self.speculation]

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


MODES: dict[str, dict[str, DraftMode]] = {"vllm": {name: DraftMode(name) for name in SPECULATIONS}, "sglang": {}}
