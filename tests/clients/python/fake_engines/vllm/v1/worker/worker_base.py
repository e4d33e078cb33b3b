"""Workers, and the wrapper through which executors call their methods by name."""

from __future__ import annotations

import importlib
import threading
from typing import Any

_EXTENDING = threading.Lock()  # vLLM has a process for each rank, some tests a thread


class WorkerBase:
    def __init__(self, vllm_config: Any, rank: int) -> None:
        self.vllm_config = vllm_config
        self.model_config = vllm_config.model_config
        self.parallel_config = vllm_config.parallel_config
        self.rank = self.parallel_config.rank = rank
        self.model_runner: Any = None

    def rank_of(self) -> int:
        return self.rank

    def load_model(self) -> None:
        raise NotImplementedError

    def execute_model(self, scheduler_output: Any) -> Any:
        """Returns None when sample_tokens returns the output."""
        raise NotImplementedError

    def sample_tokens(self, grammar_output: Any) -> Any:
        raise NotImplementedError


class WorkerWrapperBase:
    def __init__(self) -> None:
        self.worker: Any = None

    def init_worker(self, vllm_config: Any, rank: int) -> None:
        worker_class = _resolve(vllm_config.parallel_config.worker_cls)
        extension = _resolve(vllm_config.parallel_config.worker_extension_cls)
        with _EXTENDING:
            if extension not in worker_class.__bases__:
                for name in dir(extension):
                    if not name.startswith("__"):
                        assert not hasattr(worker_class, name), f"the worker has {name} already"
                worker_class.__bases__ = worker_class.__bases__ + (extension,)
        self.worker = worker_class(vllm_config, rank)

    def execute_method(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, method)(*args, **kwargs)

    def execute_model(self, scheduler_output: Any) -> Any:
        return self.worker.execute_model(scheduler_output)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)


def _resolve(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
