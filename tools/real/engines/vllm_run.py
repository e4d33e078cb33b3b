"""One way to run vLLM, in a process of its own: requests one after the other while versions alternate.

Its last line on stdout is a JSON object: steps, commits, torn, versions."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any

from tools.real.engines.alternation import alternation, parser_of_run, print_result
from tools.real.engines.model import NEXT_TOKEN, token_text, write_config, write_tokenizer
from tools.real.engines.publisher import Publisher
from tools.real.engines.steps import Step, steps_of

Named = dict[tuple[int, Step], set[int]]
PROMPT = [3, 77, 130, 5, 9, 212, 41]
TOKENS = 4


def arguments() -> argparse.Namespace:
    parser = parser_of_run(__doc__)
    parser.add_argument("--request", choices=("tokens", "grammar", "embedding"), default="tokens")
    parser.add_argument("--engine", type=json.loads, default={}, help="more arguments of vllm.LLM")
    return parser.parse_args()


def start_engine(options: argparse.Namespace) -> Any:
    from vllm import LLM

    write_config(options.model, options.kind)
    write_tokenizer(options.model)
    return LLM(
        options.model,
        skip_tokenizer_init=options.request == "tokens",
        load_format="dummy",
        dtype="bfloat16",
        enforce_eager=True,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=32 << 20,
        max_model_len=256,
        tensor_parallel_size=options.tp,
        worker_extension_cls="tools.real.engines.worker.WorkerExtension",
        **options.engine,
    )


def request(engine: Any, kind: str, named: Named) -> list[Step]:
    """Makes one request; returns what each of its steps computed.

    Args:
      named: is added, for what a step computed: which of the two weights vLLM says it was computed with (since 0.33).
    """
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    prompts = [{"prompt_token_ids": PROMPT}]
    if kind == "embedding":
        embedding = engine.embed(prompts, use_tqdm=False)[0].outputs.embedding
        return [(math.fsum(place * value for place, value in enumerate(embedding, 1)),)]
    sampling = SamplingParams(
        temperature=0.0,
        max_tokens=TOKENS,
        logprobs=0,
        prompt_logprobs=0,
        allowed_token_ids=[NEXT_TOKEN],
        ignore_eos=True,
        detokenize=False,
    )
    if kind == "grammar":
        # Allows ten tokens around the forced one: log probabilities are relative to the tokens that the grammar allows.
        some = f"({token_text(NEXT_TOKEN)[:-1]}[0-9]){{{TOKENS + 1}}}"
        sampling.structured_outputs = StructuredOutputsParams(regex=some)
    output = engine.generate(prompts, sampling, use_tqdm=False)[0]
    if list(output.outputs[0].token_ids) != [NEXT_TOKEN] * TOKENS:
        raise RuntimeError(f"sampled {output.outputs[0].token_ids}: the sequence was not forced")
    steps, spans = steps_of(output), getattr(output.outputs[0], "weight_versions", ())
    if spans is None:
        raise RuntimeError("a result has no weight_versions")
    for span in spans:
        for number in range(span.start, span.end):
            named.setdefault((number, steps[number]), set()).add(int(span.version) % 2)
    return steps


def require_told(engine: Any, version: int) -> None:
    """Raises RuntimeError: vLLM does not name the version that its last step was computed with."""
    told = engine.llm_engine.get_weight_version()
    if told != str(version):
        raise RuntimeError(f"vLLM names version {told!r}, expected {version}")


def main() -> int:
    options = arguments()
    engine = start_engine(options)
    publisher = Publisher(options.sender, options.job_id, options.kind)
    attach: dict[str, Any] = {"socket": options.receiver}
    if options.request == "embedding":
        attach["excluded"] = ["lm_head.weight"]  # vLLM leaves it out
    engine.collective_rpc("dws_attach", kwargs=attach)
    named: Named = {}
    result = alternation(
        publisher,
        lambda: request(engine, options.request, named),
        options.seconds,
        lambda version: require_told(engine, version),
    )
    if wrong := [step for step, versions in named.items() if len(versions) > 1]:
        raise RuntimeError(f"vLLM named both versions for the same log probabilities: {wrong}")
    print_result(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
