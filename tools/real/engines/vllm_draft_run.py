"""vLLM with a draft model that follows its target, or stays as it is, in a process of its own, beside fresh engines of the same
steps.

Tokens and log probabilities must be those of fresh engines, to the bit, and so must each parameter of the target and of
the draft; of the draft's proposals as many must be accepted, at each position. Its last line on stdout is a JSON object:
what was found."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import hashlib
import os
import sys
from typing import Any

import dws
from tools.real.engines.alternation import parser_of_run, print_result
from tools.real.engines.draft_model import MTP, PREFIX, SPECULATIONS, weights_of, write_models

STEPS = (1, 2)
PROMPTS = ([3, 77, 130, 5, 9, 212, 41], [500, 2, 8, 13], [11, 12, 13, 14, 15, 16])
TOKENS = 48
WAIT_SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class Observation:
    """What an engine has computed. `accepted`: at each position of a draft's proposals, how many; `drafts`: how often it
    has proposed; `parameters`: the digest of each one."""

    tokens: list[list[int]]
    logprobs: list[list[float]]
    accepted: list[int]
    drafts: int
    parameters: dict[str, str]


def digests(worker: Any) -> dict[str, str]:
    """The digest of each parameter of the target and of the draft, on this rank."""
    import torch

    found = {}
    for kind in ("target", "draft"):
        runner = worker.model_runner
        model = runner.get_model() if kind == "target" else runner.get_draft_model()
        for name, parameter in model.named_parameters():
            raw = parameter.detach().contiguous().view(torch.uint8).numpy().tobytes()
            found[f"rank {worker.rank} {kind} {name}"] = hashlib.sha256(raw).hexdigest()
    return found


def start_engine(options: argparse.Namespace, step: int) -> Any:
    """With the checkpoints of a step; a draft that stays as it is has those of step 0."""
    from vllm import LLM

    speculation = SPECULATIONS[options.speculation]
    target, draft = write_models(options.speculation, options.model, step, 0 if options.fixed else None)
    config = {"method": speculation.method, "num_speculative_tokens": speculation.tokens}
    return LLM(
        target,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        enforce_eager=True,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=32 << 20,
        max_model_len=128,
        disable_log_stats=False,
        tensor_parallel_size=options.tp,
        speculative_config={**config, **({} if draft is None else {"model": draft})},
        worker_extension_cls="tools.real.engines.worker.WorkerExtension",
    )


def _counts(engine: Any) -> tuple[list[int], int]:
    found = {metric.name: metric for metric in engine.get_metrics()}
    accepted = list(found["vllm:spec_decode_num_accepted_tokens_per_pos"].values)
    return accepted, int(found["vllm:spec_decode_num_drafts"].value)


def observe(engine: Any) -> Observation:
    from vllm import SamplingParams

    accepted, drafts = _counts(engine)
    sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS, logprobs=0, ignore_eos=True, detokenize=False)
    outputs = [
        engine.generate([{"prompt_token_ids": list(prompt)}], sampling, use_tqdm=False)[0].outputs[0] for prompt in PROMPTS
    ]
    accepted_now, drafts_now = _counts(engine)
    return Observation(
        [list(output.token_ids) for output in outputs],
        [[next(iter(entry.values())).logprob for entry in output.logprobs] for output in outputs],
        [now - before for now, before in zip(accepted_now, accepted)],
        drafts_now - drafts,
        {name: digest for rank in engine.collective_rpc(digests) for name, digest in rank.items()},
    )


def observe_fresh(options: argparse.Namespace, step: int) -> Observation:
    from vllm.distributed import cleanup_dist_env_and_memory

    engine = start_engine(options, step)
    found = observe(engine)
    engine.llm_engine.engine_core.shutdown()
    del engine
    cleanup_dist_env_and_memory()
    gc.collect()
    return found


def differences(found: Observation, expected: Observation) -> list[str]:
    """What differs, in words."""
    wrong = []
    for field in dataclasses.fields(Observation):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(one, dict):
            names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
            wrong += [f"{len(names)} of {len(other)} parameters differ: {', '.join(names[:3])}"] if names else []
        elif one != other:
            wrong.append(f"{field.name} {one}, expected {other}")
    return wrong


def published(name: str, step: int, fixed: bool = False) -> dict[str, Any]:
    """What a trainer publishes of a step.

    Args:
      fixed: nothing of the draft.
    """
    target, draft = weights_of(name, step)
    if fixed:
        return {key: tensor for key, tensor in target.items() if not key.startswith(MTP)}
    return {**target, **{f"{PREFIX}{key}": tensor for key, tensor in draft.items()}}


def check(options: argparse.Namespace) -> str:
    """Raises RuntimeError: the engine is not as fresh ones are."""
    name, fixed = options.speculation, options.fixed
    fresh = {step: observe_fresh(options, step) for step in STEPS}
    one, other = (fresh[step] for step in STEPS)
    if one.parameters == other.parameters or one.logprobs == other.logprobs or not all(f.accepted[0] for f in fresh.values()):
        raise RuntimeError(f"the steps cannot be told apart, or no draft is accepted: {one}, {other}")
    engine = start_engine(options, 0)
    with dws.Trainer(options.sender, options.job_id) as trainer:
        views = trainer.register(published(name, 0, fixed))
        attach = {"socket": options.receiver, "draft": "fixed" if fixed else "follow"}
        if not fixed and SPECULATIONS[name].draft is not None:
            attach["draft_prefix"] = PREFIX
        print(engine.collective_rpc("dws_attach", kwargs=attach), flush=True)
        for version, step in enumerate((*STEPS, STEPS[0]), 1):
            for key, tensor in published(name, step, fixed).items():
                views[key].copy_(tensor)
            trainer.publish(version)
            trainer.wait(version, "all", WAIT_SECONDS)
            wrong = differences(observe(engine), fresh[step])
            if wrong:
                raise RuntimeError(f"version {version}, step {step}: {'; '.join(wrong)[:2000]}")
    counts = ", ".join(f"{f.accepted} of {f.drafts} drafts" for f in fresh.values())
    return f"{len(STEPS) + 1} versions as fresh engines, to the bit; accepted at each position {counts}"


def main() -> int:
    parser = parser_of_run(__doc__)
    parser.add_argument("--speculation", choices=sorted(SPECULATIONS), required=True)
    parser.add_argument("--fixed", action="store_true", help="the draft stays as it is")
    options = parser.parse_args()
    os.makedirs(options.model, exist_ok=True)
    print_result({"found": check(options)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
