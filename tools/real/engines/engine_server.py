"""A real engine behind HTTP, as the checks use it: they start it in one of several ways and ask what it computes."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Mapping, Optional, Sequence

import psutil

from tools.real.engines.cells import Configuration
from tools.real.engines.observation import Observation, Probe, Sample
from tools.real.environment import Environment
from tools.real.server import Server

PROMPT = [3, 77, 130, 5, 9, 212, 41]
# Long enough for several blocks of the prefix cache.
LONG_PROMPT = [(7 * place + 13) % 900 + 5 for place in range(80)]
TOKENS = 8


@dataclasses.dataclass(frozen=True)
class Start:
    """How to start an engine.

    Attributes:
      model: its folder, with its checkpoint.
      log: a file for its output.
      module_paths: with the packages dws and tools.
      receiver: whose engine it is: the socket, for an integration that takes it at the start.
      options: of the attach, for such an integration.
      transfer: vLLM: with the weight transfer backend.
      caches: keeps a cache of prefixes.
      port: 0: a free one.
    """

    configuration: Configuration
    environment: Environment
    model: str
    log: str
    module_paths: Sequence[str]
    receiver: Optional[str] = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    transfer: bool = False
    caches: bool = False
    port: int = 0


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a long request ended: with how many `tokens` of those it asked for, and the engine's reason."""

    tokens: int
    reason: str


class EngineServer(Server, abc.ABC):
    """Lifecycle: see Server. Threads: `probe` and `long_request` from any; else one."""

    @abc.abstractmethod
    def sample(self, prompt: Sequence[int], tokens: int, prompt_logprobs: bool) -> Sample:
        """Makes one greedy request.

        Raises:
          RuntimeError, OSError: see `post`.
        """

    @abc.abstractmethod
    def parameters(self) -> dict[str, str]:
        """The engine's own checksum of each parameter, by name and rank."""

    @abc.abstractmethod
    def long_request(self, prompt: Sequence[int], tokens: int) -> Ended:
        """Makes one long request. Raises like `sample`."""

    @abc.abstractmethod
    def clear_cache(self) -> None:
        """Clears the prefix cache."""

    def probe(self) -> Probe:
        found = self.sample(PROMPT, 1, True)
        return (*found.prompt_logprobs, *found.logprobs)

    def observe(self) -> Observation:
        """Observes the engine. No other request may run meanwhile, because results depend on what is in a batch."""
        return Observation(
            self.probe(),
            self.sample(PROMPT, TOKENS, True),
            self.sample(LONG_PROMPT, TOKENS, False),
            self.parameters(),
        )

    def kill_worker(self) -> str:
        """Kills (SIGKILL) the last worker, a process that holds weights. Returns its command line."""
        children = psutil.Process(self.pid).children(recursive=True)
        workers = [one for one in children if self.is_worker(" ".join(one.cmdline()))]
        if not workers:
            raise RuntimeError(f"no worker among {[one.cmdline()[:1] for one in children]}")
        name = " ".join(workers[-1].cmdline())
        workers[-1].kill()
        return name

    @staticmethod
    @abc.abstractmethod
    def is_worker(command: str) -> bool:
        """Returns whether the process with this command line is a worker."""
