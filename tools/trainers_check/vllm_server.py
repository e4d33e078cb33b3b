"""`vllm serve` on the CPU, in a process of its own, with dws.vllm's extension in its worker."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

START_SECONDS = 420.0
STOP_SECONDS = 30.0
REQUEST_SECONDS = 120.0
_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # /collective_rpc
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the other one needs Triton
    "TORCHDYNAMO_DISABLE": "1",  # sampling would be compiled at the first request
}


class VllmServer:
    """Lifecycle: made listening; end."""

    def __init__(self, model: str) -> None:
        """Args:
          model: a folder with a configuration and a tokenizer; weights are not read.

        Raises:
          RuntimeError: it does not listen in time.
        """
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model),
            *("--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy"),
            *("--dtype", "float32", "--enforce-eager", "--max-model-len", "64"),
            *("--kv-cache-memory-bytes", str(32 << 20), "--logprobs-mode", "processed_logprobs"),
            *("--worker-extension-cls", "tools.trainers_check.vllm_worker.WorkerExtension"),
        ]
        environment = {**os.environ, **_ENVIRONMENT}
        self._process = subprocess.Popen(command, env=environment)
        deadline = time.monotonic() + START_SECONDS
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.end()
                raise RuntimeError(f"vLLM does not listen, status {self._process.returncode}")
            time.sleep(0.5)

    def _listens(self) -> bool:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            with urllib.request.urlopen(f"{self.url}/v1/models", timeout=10):
                return True
        return False

    def call(self, method: str, **given: Any) -> Any:
        """A method of the worker. Raises urllib.error.HTTPError if it fails."""
        body = json.dumps({"method": method, "kwargs": given}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/collective_rpc", body, headers)
        with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:
            return json.load(answer)["results"][0]

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
