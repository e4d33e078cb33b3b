"""SGLang's server, as EngineServer."""

from __future__ import annotations

import json
import os
from typing import Any, Mapping, Sequence

from tools.real.engines.engine_server import Ended, EngineServer, Start
from tools.real.engines.observation import Sample


# Modules of SGLang with the models that the checks use.
_MODELS = {"glm4_moe", "llama", "minimax_m2", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "step3p5"}


def other_models(packages: str) -> list[str]:
    names = os.listdir(os.path.join(packages, "sglang", "srt", "models"))
    return sorted({name.removesuffix(".py") for name in names if name.endswith(".py")} - _MODELS)


class SglangServer(EngineServer):
    """SGLang's server."""

    def __init__(self, start: Start) -> None:
        """Raises RuntimeError: it does not listen."""
        ranks = start.configuration.ranks
        quantised = start.configuration.is_quantised
        launcher = "tools.real.engines.sglang_launch" if quantised else "sglang.launch_server"
        command = [
            *("-m", launcher, "--model-path", start.model),
            *("--dtype", "bfloat16", "--skip-tokenizer-init", "--skip-server-warmup"),
            *("--device", "cpu", "--attention-backend", "torch_native", "--disable-cuda-graph"),
            *("--max-total-tokens", "4096", "--tp-size", str(ranks)),
        ]
        if not start.caches:
            command.append("--disable-radix-cache")
        variables = {
            "SGLANG_CPU_OMP_THREADS_BIND": "|".join(map(str, range(ranks))),
            # It imports every model it knows, in each process: most of a start's time.
            "SGLANG_DISABLED_MODEL_ARCHS": ",".join(other_models(start.environment.packages)),
        }
        if start.receiver is not None:
            variables["DWS_RECEIVER_SOCKET"] = start.receiver
            variables["DWS_ATTACH_OPTIONS"] = json.dumps(start.options)
        variables.update(start.environment.variables(list(start.module_paths)))
        python, log = start.environment.python, start.log
        super().__init__(command, variables, "/model_info", python, log, start.port)

    def _generate(self, prompt: Sequence[int], tokens: int, more: Mapping[str, Any]) -> Any:
        sampling = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
        return self.post("/generate", {"input_ids": list(prompt), "sampling_params": sampling, **more})

    def sample(self, prompt: Sequence[int], tokens: int, prompt_logprobs: bool) -> Sample:
        more: dict[str, Any] = {"return_logprob": True}
        if prompt_logprobs:
            more["logprob_start_len"] = 0
        found = self._generate(prompt, tokens, more)["meta_info"]
        sampled = found["output_token_logprobs"]
        of_prompt = found["input_token_logprobs"][1:] if prompt_logprobs else []
        return Sample(
            tuple(int(entry[1]) for entry in sampled),
            tuple(float(entry[0]) for entry in sampled),
            tuple(float(entry[0]) for entry in of_prompt),
        )

    def long_request(self, prompt: Sequence[int], tokens: int) -> Ended:
        answer = self._generate(prompt, tokens, {})
        return Ended(len(answer["output_ids"]), str(answer["meta_info"]["finish_reason"]["type"]))

    def parameters(self) -> dict[str, str]:
        answer = self.post("/weights_checker", {"action": "checksum"})
        found = {}
        for rank, one in enumerate(answer["ranks"]):
            found.update({f"tp{rank}:{name}": text for name, text in one["checksums"].items()})
        return found

    def clear_cache(self) -> None:
        self.post("/flush_cache", {})

    @staticmethod
    def is_worker(command: str) -> bool:
        return command.startswith("sglang::scheduler")
