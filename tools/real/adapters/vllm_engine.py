"""vLLM with adapters, in this process, and what it computes with each."""

from __future__ import annotations

from typing import Any

from tools.real.adapters.scene import Observation
from tools.real.engines.engine_server import LONG_PROMPT, PROMPT
from tools.real.engines.model import NEXT_TOKEN
from tools.real.engines.steps import Step, steps_of

TOKENS = 8


class VllmEngine:
    """Lifecycle: made started; ends with the process. One thread."""

    def __init__(self, model: str, ranks: int = 1, max_loras: int = 2, max_cpu_loras: int = 2, **more: Any) -> None:
        from vllm import LLM

        self.llm = LLM(
            model,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            enforce_eager=True,
            enable_prefix_caching=False,
            kv_cache_memory_bytes=32 << 20,
            max_model_len=256,
            tensor_parallel_size=ranks,
            worker_extension_cls="tools.real.adapters.vllm_worker.WorkerExtension",
            enable_lora=True,
            max_lora_rank=16,
            max_loras=max_loras,
            max_cpu_loras=max_cpu_loras,
            **more,
        )

    def load(self, name: str, number: int, folder: str, inplace: bool = False) -> None:
        """Has vLLM load an adapter, like POST /v1/load_lora_adapter."""
        from vllm.lora.request import LoRARequest

        self.llm.llm_engine.add_lora(LoRARequest(name, number, folder, load_inplace=inplace))

    def call(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Each worker's answer."""
        return list(self.llm.collective_rpc(method, args=args, kwargs=kwargs))

    def observe(self, name: str, number: int, folder: str) -> Observation:
        outputs = [self._request(prompt, name, number, folder, False) for prompt in (PROMPT, LONG_PROMPT)]
        tokens = [[int(token) for token in output.outputs[0].token_ids] for output in outputs]
        return Observation(tokens, [steps_of(output) for output in outputs], self.call("slot_digest", number))

    def forced(self, name: str, number: int, folder: str) -> list[Step]:
        """The steps of a request whose tokens are the same with every version."""
        return steps_of(self._request(PROMPT, name, number, folder, True))

    def _request(self, prompt: list[int], name: str, number: int, folder: str, forced: bool) -> Any:
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=TOKENS,
            logprobs=0,
            prompt_logprobs=0,
            allowed_token_ids=[NEXT_TOKEN] if forced else None,
            ignore_eos=True,
            detokenize=False,
        )
        adapter = LoRARequest(name, number, folder)
        return self.llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False, lora_request=adapter)[0]
