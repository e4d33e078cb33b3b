"""What the checks of one configuration share: its folder, and what fresh engines compute with each step."""

from __future__ import annotations

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Sequence

from tools.real.engines.cells import Configuration
from tools.real.engines.engine_server import EngineServer, Start
from tools.real.engines.model import trained_weights, write_checkpoint
from tools.real.engines.observation import Observation, Probe, difference
from tools.real.engines.sglang_server import SglangServer
from tools.real.engines.trainer import STEPS
from tools.real.engines.vllm_server import VllmServer
from tools.real.environment import Environment
from tools.real.server import kill_all


class CheckFailed(Exception):
    """The engine is not as it should be; the message says how."""


class Scene:
    """Lifecycle: made, and fresh engines start on threads; close. One thread.

    Attributes:
      configuration: what is checked.
      compares: engines attach with the option `checkpoint`.
    """

    def __init__(
        self,
        configuration: Configuration,
        environment: Environment,
        logs: str,
        module_paths: Sequence[str],
        compares: bool = False,
    ) -> None:
        """Args:
        logs: a folder for the logs of engines.
        module_paths: as Start's.
        """
        self.configuration = configuration
        self.compares = compares
        self._environment = environment
        self._logs = logs
        self._module_paths = module_paths
        self._folder = tempfile.mkdtemp(prefix="dws-", dir="/tmp")
        self._threads = ThreadPoolExecutor(len(STEPS))
        self._fresh = {step: self._threads.submit(self._observe_fresh, step) for step in STEPS}
        self._references: dict[int, Observation] = {}

    def close(self) -> None:
        """Kills the engines that are left."""
        kill_all()
        self._threads.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)

    def path(self, name: str) -> str:
        """The path of `name` in the scene's folder, for models and state."""
        return os.path.join(self._folder, name)

    def write_base(self, folder: str) -> None:
        """Writes the checkpoint that engines have before the first version comes. (An engine keeps the padding that it
        starts with: from arbitrary weights it would differ from a fresh engine's.)"""
        write_checkpoint(folder, self.configuration.kind, trained_weights(self.configuration.kind, 0))

    def start(self, name: str, model: str, **how: Any) -> EngineServer:
        """Args:
          name: the name of its log.
          how: further arguments of Start.

        Raises:
          RuntimeError: it does not listen.
        """
        log = os.path.join(self._logs, f"{self.configuration.name.replace('/', '-')}-{name}.log")
        kind = VllmServer if self.configuration.package == "vllm" else SglangServer
        return kind(
            Start(self.configuration, self._environment, model, log, self._module_paths, **how)
        )

    def _observe_fresh(self, step: int) -> Observation:
        """Observes an engine that starts with the trainer's checkpoint of this step."""
        model = self.path(f"step-{step}")
        write_checkpoint(model, self.configuration.kind, trained_weights(self.configuration.kind, step))
        server = self.start(f"fresh-{step}", model)
        try:
            found = server.observe()
            if difference(server.observe(), found) is not None:
                raise RuntimeError("the same weights gave other numbers: steps cannot be compared")
            return found
        finally:
            server.kill()

    def references(self) -> dict[int, Observation]:
        """Waits for the fresh engines; returns their observations, by step.

        Raises:
          RuntimeError: one does not start, or steps cannot be told apart.
        """
        if not self._references:
            found = {step: fresh.result() for step, fresh in self._fresh.items()}
            one, other = (found[step] for step in STEPS)
            if one.probe == other.probe or one.parameters == other.parameters:
                raise RuntimeError("the steps of training cannot be told apart")
            self._references = found
        return self._references

    def probes(self) -> list[Probe]:
        """What a pass computes with each step."""
        return [self.references()[step].probe for step in STEPS]

    def require_as_fresh(self, server: EngineServer, step: int, when: str) -> None:
        """Raises CheckFailed: the engine differs from one that was started with that step's checkpoint."""
        why = difference(server.observe(), self.references()[step])
        if why is not None:
            raise CheckFailed(f"{when}: {why}")
