"""A model of transformers that is trained in other processes, in a real vLLM that began with weights of its own: after a step it
must be equal to the bit to a vLLM that starts with what save_pretrained wrote, in all weights and in log probabilities."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from typing import Any

from safetensors import safe_open

from tools.real.trainers.names_train import tell, wait_for

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1", TORCHDYNAMO_DISABLE="1")
RANKS = 2  # of FSDP2
SEEING = ("multi_modal_projector.", "vision_tower.")
PROMPT = [3, 17, 30, 5, 9, 21, 41]


def start_engine(model: str, load_format: str) -> Any:
    from vllm import LLM

    return LLM(
        model,
        skip_tokenizer_init=True,
        load_format=load_format,
        dtype="bfloat16",
        enforce_eager=True,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=32 << 20,
        max_model_len=64,
        limit_mm_per_prompt={"image": 0, "video": 0},  # vLLM then asks for no processor, and leaves out what is SEEING
        worker_extension_cls="tools.real.trainers.names_worker.WorkerExtension",
    )


def observed(engine: Any) -> tuple[str, list[tuple[int, float]]]:
    """(digest of its weights, sampled tokens with their log probabilities)."""
    from vllm import SamplingParams

    digest = engine.collective_rpc("weights_digest")[0]
    sampling = SamplingParams(temperature=0.0, max_tokens=6, logprobs=0, ignore_eos=True, detokenize=False)
    output = engine.generate([{"prompt_token_ids": PROMPT}], sampling, use_tqdm=False)[0].outputs[0]
    found = [(token, each[token].logprob) for token, each in zip(output.token_ids, output.logprobs)]
    return digest, found


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("sender", "receiver", "job-id", "seen", "dtype", "model", "via"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable]
        if options.via == "fsdp2":
            command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        command += [os.path.join(os.path.dirname(os.path.abspath(__file__)), "names_train.py")]
        command += [f"--{name}={getattr(options, name.replace('-', '_'))}" for name in ("sender", "job-id", "model", "via")]
        trainer = subprocess.Popen([*command, f"--folder={folder}"])
        try:
            check(options, folder, trainer)
        finally:
            trainer.kill()
            trainer.wait()


def check(options: argparse.Namespace, folder: str, trainer: subprocess.Popen[bytes]) -> None:
    from vllm.distributed import cleanup_dist_env_and_memory

    wait_for(folder, "registered")
    engine = start_engine(os.path.join(folder, "base"), "dummy")
    before = observed(engine)
    with safe_open(os.path.join(folder, "base", "model.safetensors"), "pt") as base:
        unseen = [name for name in base.keys() if name.startswith(SEEING)]
    engine.collective_rpc("dws_attach", kwargs={"socket": options.receiver, "excluded": unseen})
    tell(folder, "attached")
    if trainer.wait() != 0:
        raise RuntimeError(f"the trainer ended with status {trainer.returncode}: its error is above")
    found = observed(engine)
    version = engine.collective_rpc("dws_status")[0]["version"]
    assert version == 2, f"the engine has version {version}, expected 2"
    engine.llm_engine.engine_core.shutdown()
    del engine
    cleanup_dist_env_and_memory()
    wanted = observed(start_engine(os.path.join(folder, "step"), "auto"))
    assert before[0] != wanted[0], "the engine began with the trainer's weights"
    assert found[0] == wanted[0], f"weights {found[0]}, those of a fresh engine {wanted[0]}"
    assert found == wanted, f"sampled {found[1]}, a fresh engine {wanted[1]}"
    print(f"ok: {options.model} via {options.via}: weights and log probabilities are a fresh engine's", flush=True)
    os._exit(0)  # vLLM's threads go on


if __name__ == "__main__":
    main()
