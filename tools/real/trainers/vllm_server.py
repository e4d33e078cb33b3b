"""`vllm serve` on the CPU, in a process of its own, with dws.vllm's extension in its worker."""

from __future__ import annotations

from typing import Any

from tools.real.server import Server

_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # /collective_rpc
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the other one needs Triton
    "TORCHDYNAMO_DISABLE": "1",  # sampling would be compiled at the first request
}


class VllmServer(Server):
    """Lifecycle: made listening; end."""

    def __init__(self, model: str) -> None:
        """Args:
          model: a folder with a configuration and a tokenizer; weights are not read.

        Raises:
          RuntimeError: it does not listen in time.
        """
        command = [
            *("-m", "vllm.entrypoints.openai.api_server", "--model", model, "--load-format", "dummy"),
            *("--dtype", "float32", "--enforce-eager", "--max-model-len", "64"),
            *("--kv-cache-memory-bytes", str(32 << 20), "--logprobs-mode", "processed_logprobs"),
            *("--worker-extension-cls", "tools.real.vllm_worker.WorkerExtension"),
        ]
        super().__init__(command, _ENVIRONMENT, "/v1/models")

    def call(self, method: str, **given: Any) -> Any:
        """Calls a method of the worker. Raises like `post`."""
        return self.post("/collective_rpc", {"method": method, "kwargs": given})["results"][0]
