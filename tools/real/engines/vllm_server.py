"""vLLM's server, as EngineServer."""

from __future__ import annotations

import json
import os
from typing import Any, Mapping, Sequence

from tools.real.engines.engine_server import Ended, EngineServer, Start
from tools.real.engines.observation import Sample


class VllmServer(EngineServer):
    """vLLM's OpenAI server, in its development mode."""

    def __init__(self, start: Start) -> None:
        """Raises RuntimeError: it does not listen."""
        configuration = start.configuration
        command = [
            *("-m", "vllm.entrypoints.openai.api_server", "--model", start.model),
            *("--dtype", "bfloat16", "--enforce-eager", "--block-size", "32"),
            *("--kv-cache-memory-bytes", str(32 << 20), "--max-model-len", "256"),
            *("--tensor-parallel-size", str(configuration.ranks)),
            "--enable-prefix-caching" if start.caches else "--no-enable-prefix-caching",
            # Importing it keeps weights where builds for GPUs have them.
            *("--worker-extension-cls", "tools.real.engines.worker.WorkerExtension"),
        ]
        if start.transfer:
            command += ["--weight-transfer-config", json.dumps({"backend": "dws"})]
        paths = list(start.module_paths)
        variables = {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_USE_V2_MODEL_RUNNER": str(int(configuration.engine == "vllm-v2")),
            "VLLM_CACHE_ROOT": os.path.join(os.path.dirname(start.log), "vllm-cache"),
        }
        if configuration.engine == "vllm-v2":
            variables["TRITON_INTERPRET"] = "1"
            here = os.path.dirname(os.path.abspath(__file__))
            paths.insert(0, os.path.join(here, "interpreted_triton"))
        variables.update(start.environment.variables(paths))
        python, log = start.environment.python, start.log
        super().__init__(command, variables, "/weight_info", python, log, start.port)

    def _complete(self, prompt: Sequence[int], tokens: int, more: Mapping[str, Any]) -> Any:
        body = {
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "return_token_ids": True,
            **more,
        }
        return self.post("/v1/completions", body)["choices"][0]

    def sample(self, prompt: Sequence[int], tokens: int, prompt_logprobs: bool) -> Sample:
        more: dict[str, Any] = {"logprobs": 0}
        if prompt_logprobs:
            more["prompt_logprobs"] = 0
        choice = self._complete(prompt, tokens, more)
        of_prompt = [
            float(next(iter(entry.values()))["logprob"])
            for entry in (choice.get("prompt_logprobs") or [None])[1:]
        ]
        return Sample(
            tuple(choice["token_ids"]),
            tuple(float(value) for value in choice["logprobs"]["token_logprobs"]),
            tuple(of_prompt),
        )

    def long_request(self, prompt: Sequence[int], tokens: int) -> Ended:
        choice = self._complete(prompt, tokens, {})
        return Ended(len(choice["token_ids"]), str(choice["finish_reason"]))

    def parameters(self) -> dict[str, str]:
        found: dict[str, str] = self.post("/weight_checker", {"action": "checksum"})["checksums"]
        return found

    def clear_cache(self) -> None:
        self.post("/reset_prefix_cache", {})

    def call_workers(self, method: str, **arguments: Any) -> list[dict[str, Any]]:
        """Returns each worker's answer."""
        answer = self.post("/collective_rpc", {"method": method, "kwargs": arguments})
        return [] if answer is None else list(answer["results"])

    @staticmethod
    def is_worker(command: str) -> bool:
        return command.startswith(("VLLM::Worker", "VLLM::EngineCore"))
