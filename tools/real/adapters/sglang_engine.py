"""SGLang's server with adapters, in processes of its own, and what it computes with each."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any, Mapping, Optional

from dws.plugins import sglang_adapters
from tools.real.adapters.scene import Observation
from tools.real.engines.engine_server import LONG_PROMPT, PROMPT
from tools.real.engines.model import NEXT_TOKEN
from tools.real.engines.sglang_server import other_models
from tools.real.engines.steps import Step
from tools.real.server import Server

TOKENS = 4
LIKING = 8.0  # added to a logit that is to be the largest: log probabilities still differ
PREFIX = "lora:"  # of the names of slots in what /weights_checker answers (sglang_launch)
# One is the base model's.
SLOTS = 3


class SglangEngine:
    """Lifecycle: made listening; end. One thread."""

    def __init__(
        self,
        model: str,
        log: str,
        ranks: int = 1,
        attached: Optional[Mapping[str, Any]] = None,
        loaded: Optional[Mapping[str, str]] = None,
        more: tuple[str, ...] = (),
    ) -> None:
        """Args:
        attached: the value of DWS_ADAPTERS.
        loaded: folders of adapters that it loads at the start, by name.
        more: arguments of the server.
        """
        self._ranks = ranks
        command = [
            *("-m", "tools.real.adapters.sglang_launch", "--model-path", model),
            *("--dtype", "bfloat16", "--skip-tokenizer-init", "--skip-server-warmup"),
            *("--device", "cpu", "--attention-backend", "torch_native", "--disable-cuda-graph"),
            *("--max-total-tokens", "4096", "--disable-radix-cache", "--tp-size", str(ranks)),
            *("--enable-lora", "--lora-backend", "torch_native", "--max-lora-rank", "16"),
            *("--max-loras-per-batch", str(SLOTS), "--lora-target-modules"),
            *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
            *more,
        ]
        if loaded:
            command += ["--lora-paths", *(f"{name}={folder}" for name, folder in loaded.items())]
        variables = {
            "SGLANG_CPU_OMP_THREADS_BIND": "|".join(map(str, range(ranks))),
            "SGLANG_DISABLED_MODEL_ARCHS": ",".join(other_models(next(p for p in sys.path if p.endswith("site-packages")))),
        }
        if attached:
            variables[sglang_adapters.VARIABLE] = json.dumps(attached)
        self._server = Server(command, variables, "/model_info", log=log)

    def end(self) -> None:
        self._server.end()

    def log(self) -> str:
        return self._server.log_tail(20)

    def load(self, name: str, folder: str) -> None:
        """Raises RuntimeError: SGLang refuses it."""
        self._server.post("/load_lora_adapter", {"lora_name": name, "lora_path": folder})

    def unload(self, name: str) -> None:
        """Raises RuntimeError: SGLang refuses it."""
        self._server.post("/unload_lora_adapter", {"lora_name": name})

    def observe(self, name: str) -> Observation:
        found = [self._request(name, prompt) for prompt in (PROMPT, LONG_PROMPT)]
        return Observation([tokens for tokens, _ in found], [steps for _, steps in found], self.slots(name))

    def forced(self, name: str) -> tuple[list[int], list[Step]]:
        """The tokens of a request, which are the same with versions that differ little, and its steps."""
        return self._request(name, PROMPT, {"logit_bias": {str(NEXT_TOKEN): LIKING}})

    def slots(self, name: str) -> list[Optional[str]]:
        """On each rank the digest of the adapter's slot; None: it has none."""
        digests: list[Optional[str]] = [None] * self._ranks
        for rank, one in enumerate(self._server.post("/weights_checker", {"action": "checksum"})["ranks"]):
            begin = f"{PREFIX}{name}:"
            mine = sorted((key[len(begin) :], text) for key, text in one["checksums"].items() if key.startswith(begin))
            if mine:
                digests[rank] = hashlib.sha256(repr(mine).encode()).hexdigest()
        return digests

    def _request(self, name: str, prompt: list[int], more: Mapping[str, Any] = {}) -> tuple[list[int], list[Step]]:
        answer = self._server.post(
            "/generate",
            {
                "input_ids": prompt,
                "sampling_params": {"temperature": 0.0, "max_new_tokens": TOKENS, "ignore_eos": True, **more},
                "return_logprob": True,
                "logprob_start_len": 0,
                "lora_path": name,
            },
        )
        found = answer["meta_info"]
        sampled = found["output_token_logprobs"]
        of_prompt = [float(entry[0]) for entry in found["input_token_logprobs"][1:]]
        steps: list[Step] = [(*of_prompt, float(sampled[0][0])), *((float(entry[0]),) for entry in sampled[1:])]
        return [int(entry[1]) for entry in sampled], steps
