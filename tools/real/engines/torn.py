"""The search for torn passes: ways to run vLLM and SGLang, each by a script of its own beside this one.

A trainer publishes two versions in turns, as fast as they are committed, while requests run. Every step's
log probabilities, of prompt tokens and of the sampled one, must be those of one version alone, to the bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
from typing import Any, Optional, Sequence

from tests.integration.cluster import Cluster
from tools.real.engines.results import Result
from tools.real.environment import Environment

HERE = os.path.dirname(os.path.abspath(__file__))
# How long an engine's start and end may take, in addition to its run. The first start compiles.
START_SECONDS = 1500.0


def verdict(found: dict[str, Any]) -> Result:
    # Without commits, and steps of both versions among them, nothing was tested.
    tried = found["commits"] >= 2 and found["versions"] == 2
    counts = f"{found['steps']} passes, {found['commits']} commits, {found['torn']} torn"
    note = "" if tried else ": too few commits fell between them"
    return Result(tried and found["torn"] == 0, counts + note)


@dataclasses.dataclass(frozen=True)
class Mode:
    """A way to run vLLM. `run`: a script that uses vLLM's worker extension, or its weight transfer; `request`: see
    vllm_run.py; `engine`: arguments of vllm.LLM; `kind`: the model's kind."""

    v2: bool = False
    ranks: int = 1
    run: str = "vllm_run.py"
    request: str = "tokens"
    engine: dict[str, Any] = dataclasses.field(default_factory=dict)
    kind: str = "qwen3"

    def command(self) -> list[str]:
        return [
            *(os.path.join(HERE, self.run), "--request", self.request),
            *("--kind", self.kind, "--tp", str(self.ranks), "--engine", json.dumps(self.engine)),
        ]

    def variables(self, folder: str) -> dict[str, str]:
        """Environment variables for the engine's processes, in addition to those of Environment."""
        found = {
            "VLLM_USE_V2_MODEL_RUNNER": str(int(self.v2)),
            "VLLM_CACHE_ROOT": os.path.join(folder, "cache"),
        }
        if self.v2:
            found["TRITON_INTERPRET"] = "1"
        return found

    def module_paths(self) -> list[str]:
        """Paths that come first on PYTHONPATH."""
        return [os.path.join(HERE, "interpreted_triton")] if self.v2 else []

    verdict = staticmethod(verdict)


@dataclasses.dataclass(frozen=True)
class SglangMode:
    """A way to run SGLang. `engine`: arguments of its server; `kind`: the model's kind."""

    ranks: int = 1
    kind: str = "qwen3"
    engine: tuple[str, ...] = ()

    def command(self) -> list[str]:
        return [
            *(os.path.join(HERE, "sglang_run.py"), "--kind", self.kind, "--tp", str(self.ranks)),
            *("--engine", json.dumps(self.engine)),
        ]

    def variables(self, folder: str) -> dict[str, str]:
        """Environment variables for the engine's processes, in addition to those of Environment."""
        return {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(rank) for rank in range(self.ranks))}

    def module_paths(self) -> list[str]:
        """Paths that come first on PYTHONPATH."""
        return []

    verdict = staticmethod(verdict)


_SYNCHRONOUS = {"async_scheduling": False}
_ASYNCHRONOUS = {"async_scheduling": True}
_NATIVE = "vllm_native_run.py"
_NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}
_POOLING = {"runner": "pooling"}
VLLM_MODES = {
    "v1": Mode(engine=_SYNCHRONOUS),
    "v1-async": Mode(engine=_ASYNCHRONOUS),
    "v1-tp2": Mode(ranks=2),
    "v1-grammar": Mode(request="grammar", engine=_ASYNCHRONOUS),
    "v1-ngram": Mode(engine={"speculative_config": _NGRAM}),
    "v1-pooling": Mode(request="embedding", engine=_POOLING),
    "v2": Mode(v2=True, engine=_SYNCHRONOUS),
    "v2-async": Mode(v2=True, engine=_ASYNCHRONOUS),
    "v2-tp2": Mode(v2=True, ranks=2),
    "v2-grammar": Mode(v2=True, request="grammar", engine=_ASYNCHRONOUS),
    "v1-native": Mode(run=_NATIVE),
    "v1-native-tp2": Mode(run=_NATIVE, ranks=2),
    "v2-native": Mode(run=_NATIVE, v2=True),
    "v2-pooling": Mode(v2=True, request="embedding", engine=_POOLING),
}
SGLANG_MODES = {
    "qwen3": SglangMode(),
    "qwen3-serial": SglangMode(engine=("--disable-overlap-schedule",)),
    "qwen3-tp2": SglangMode(ranks=2),
    "llama": SglangMode(kind="llama"),
    "qwen2": SglangMode(kind="qwen2"),
    "qwen3-moe": SglangMode(kind="qwen3-moe"),
    "qwen3-moe-tp2": SglangMode(kind="qwen3-moe", ranks=2),
}
MODES: dict[str, dict[str, Any]] = {"vllm": VLLM_MODES, "sglang": SGLANG_MODES}


def end_processes(engine: subprocess.Popen[bytes]) -> None:
    """Ends the processes of an engine that did not end by itself; they are a process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(engine.pid, signal.SIGKILL)
    engine.wait()


def run(
    name: str, mode: Any, environment: Environment, module_paths: Sequence[str], logs: str, seconds: float
) -> Result:
    """Args:
    name: of the log.
    mode: one of the engine's MODES, or another that has the same methods.
    seconds: how long requests run while versions alternate.
    """
    with Cluster("real-engines") as cluster:
        sender = cluster.start_sender()
        receiver = cluster.start_receiver("engine")
        command = [
            *(environment.python, *mode.command()),
            *("--sender", sender.socket, "--receiver", receiver.socket, "--job-id", cluster.job_id),
            *("--model", os.path.join(cluster.folder, "model"), "--seconds", str(seconds)),
        ]
        variables = {
            **os.environ,
            **environment.variables([*mode.module_paths(), *module_paths]),
            **mode.variables(cluster.folder),
        }
        log_path = os.path.join(logs, f"{name}.log")
        with open(log_path, "w") as log:
            process = subprocess.Popen(
                command, env=variables, stdout=log, stderr=log, start_new_session=True
            )
            try:
                code: Optional[int] = process.wait(START_SECONDS + seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                end_processes(process)
        with open(log_path, errors="replace") as log:
            lines = log.readlines()
        if code == 0:
            found: Result = mode.verdict(json.loads(next(x for x in reversed(lines) if x[:1] == "{")))
            return found
        why = "it did not end in time" if code is None else f"status {code}"
        return Result(False, f"{why}:\n{''.join(lines[-40:])}{cluster.logs()}")
