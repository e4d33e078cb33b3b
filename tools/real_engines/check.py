"""Runs real vLLM or SGLang beside real daemons and looks for steps that a commit has torn: tools/real_engines.sh.

A trainer publishes two versions in turns, as fast as they are committed, while requests run. Every step's
log probabilities, of prompt tokens and of the sampled one, must be those of one version alone, to the bit.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
from typing import Any, Optional

from tests.integration.cluster import Cluster

HERE = os.path.dirname(os.path.abspath(__file__))
# Time for an engine's start and end, in addition to its seconds. The first start compiles.
START_SECONDS = 240.0
_EVERY_ENGINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@dataclasses.dataclass(frozen=True)
class Mode:
    """A way to run vLLM. `run`: by vLLM's extension of workers, or by its weight transfer; `request`: as
    vllm_run.py takes it; `engine`: arguments of vllm.LLM; `kind`: of the model."""

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

    def environment(self, folder: str, inherited: dict[str, str]) -> dict[str, str]:
        """Of the engine's processes."""
        found = {
            **inherited,
            **_EVERY_ENGINE,
            "VLLM_USE_V2_MODEL_RUNNER": str(int(self.v2)),
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
            # Ranks may outnumber processors here.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": os.path.join(folder, "cache"),
        }
        if self.v2:
            found["TRITON_INTERPRET"] = "1"
            triton = os.path.join(HERE, "interpreted_triton")
            found["PYTHONPATH"] = os.pathsep.join([triton, inherited["PYTHONPATH"]])
        return found


@dataclasses.dataclass(frozen=True)
class SglangMode:
    """A way to run SGLang. `engine`: arguments of its server; `kind`: of the model."""

    ranks: int = 1
    kind: str = "qwen3"
    engine: tuple[str, ...] = ()

    def command(self) -> list[str]:
        return [
            *(os.path.join(HERE, "sglang_run.py"), "--kind", self.kind, "--tp", str(self.ranks)),
            *("--engine", json.dumps(self.engine)),
        ]

    def environment(self, folder: str, inherited: dict[str, str]) -> dict[str, str]:
        """Of the engine's processes."""
        return {
            **inherited,
            **_EVERY_ENGINE,
            "SGLANG_USE_CPU_ENGINE": "1",
            "SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(rank) for rank in range(self.ranks)),
            # No library of its own for collectives: gloo.
            "SGLANG_NCCL_SO_PATH": "/nonexistent",
        }


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
MODES = {"vllm": VLLM_MODES, "sglang": SGLANG_MODES}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/real_engines.sh", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of requests, for each mode")
    parser.add_argument("--modes", help="some of the engine's")
    parser.add_argument("--logs", help="a folder for the engines' logs, which then stay")
    options = parser.parse_args()
    engine = next(name for name in MODES if importlib.util.find_spec(name) is not None)
    options.known = MODES[engine]
    options.modes = options.modes.split(",") if options.modes else list(options.known)
    if unknown := sorted(set(options.modes) - set(options.known)):
        parser.error(
            f"--modes: {', '.join(unknown)}: expected some of {', '.join(options.known)} of {engine}"
        )
    return options


def end_processes(engine: subprocess.Popen[bytes]) -> None:
    """Of an engine that did not end by itself; its process group is its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(engine.pid, signal.SIGKILL)
    engine.wait()


def run(name: str, options: argparse.Namespace, inherited: dict[str, str]) -> Optional[dict[str, int]]:
    """What the engine's run found; None, with the end of its log on stderr, when it failed."""
    mode = options.known[name]
    with Cluster("engine-check") as cluster:
        sender = cluster.start_sender()
        receiver = cluster.start_receiver("engine")
        command = [
            *(sys.executable, *mode.command()),
            *("--sender", sender.socket, "--receiver", receiver.socket, "--job-id", cluster.job_id),
            *("--model", os.path.join(cluster.folder, "model"), "--seconds", str(options.seconds)),
        ]
        log_path = os.path.join(options.logs or cluster.folder, f"{name}.log")
        with open(log_path, "w") as log:
            process = subprocess.Popen(
                command,
                env=mode.environment(cluster.folder, inherited),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                code: Optional[int] = process.wait(START_SECONDS + options.seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                end_processes(process)
        with open(log_path, errors="replace") as log:
            lines = log.readlines()
        if code == 0:
            found: dict[str, int] = json.loads(next(x for x in reversed(lines) if x[:1] == "{"))
            return found
        why = "it did not end in time" if code is None else f"status {code}"
        print(f"{name}: {why}:\n{''.join(lines[-40:])}{cluster.logs()}", file=sys.stderr)
        return None


def verdict(name: str, found: Optional[dict[str, int]]) -> bool:
    """Prints the line of a mode; whether it is as it should be."""
    if found is None:
        print(f"{name}: FAILED", flush=True)
        return False
    # Without commits, and steps of both versions among them, nothing was tested.
    tried = found["commits"] >= 2 and found["versions"] == 2
    good = tried and found["torn"] == 0
    counts = f"{found['steps']} passes checked, {found['commits']} commits, {found['torn']} torn"
    note = "" if tried else ": too few commits fell between them"
    print(f"{name}: {counts}{note}: {'ok' if good else 'FAILED'}", flush=True)
    return good


def main() -> int:
    options = arguments()
    inherited = dict(os.environ)
    # It may name stand-ins for GPU libraries, for vLLM only.
    os.environ.pop("LD_LIBRARY_PATH", None)
    if options.logs:
        os.makedirs(options.logs, exist_ok=True)
    results = [verdict(name, run(name, options, inherited)) for name in options.modes]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
