"""Quickstart of vLLM (docs/quickstart/vllm.md): a trainer publishes versions, vLLM generates with them.

    python serve_vllm.py model MODEL        # a small checkpoint with random weights; or take one of yours
    python serve_vllm.py train MODEL        # one terminal: publishes versions by its dws-sender
    python serve_vllm.py engine MODEL       # another one: vLLM and its dws-receiver
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch

import dws
from dws.trainers.publisher import Publisher

JOB = "vllm"
RUN_DIR = "/tmp/dws-quickstart"  # sockets, logs and state of the daemons; removed at the end
SENDER = f"{RUN_DIR}/{JOB}/sender-0/d.sock"
WAIT_SECONDS = 600.0
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def write_model(folder: str) -> None:
    import transformers

    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        architectures=["Qwen3ForCausalLM"], vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=256, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def train(folder: str, steps: int, pace: float) -> None:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with dws.daemons.sender(JOB, run_dir=RUN_DIR):  # where a sender runs as a service, only Publisher is left
        publisher = Publisher(SENDER, JOB, dtype=torch.bfloat16)
        publisher.register(model)
        for version in range(1, steps + 1):
            stats = publisher.publish(version)
            result = publisher.wait(version, policy=1, timeout=WAIT_SECONDS)  # until one engine has the version
            assert stats is not None and result is not None
            changed = "full" if stats.full else f"{stats.changed_elements} of {stats.total_elements} elements changed"
            print(f"version {version}: {changed}, {result.wire_bytes} bytes, in the engine after "
                  f"{1e3 * result.publish_to_commit_seconds:.0f} ms", flush=True)  # fmt: skip
            time.sleep(pace)
            with torch.no_grad():  # an optimizer step
                for weight in model.parameters():
                    weight += 0.002 * torch.randn_like(weight) * (torch.rand_like(weight) < 0.05)
        publisher.close()


def engine(folder: str, steps: int) -> None:
    if torch.cuda.is_available():
        extension, options = "dws.vllm.WorkerExtension", {}
    else:
        extension, options = "vllm_on_cpu.WorkerExtension", {"enforce_eager": True, "kv_cache_memory_bytes": 32 << 20}
        os.environ.update(VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_USE_V2_MODEL_RUNNER="0", TORCHDYNAMO_DISABLE="1")
    from vllm import LLM, SamplingParams

    llm: Any = LLM(
        folder, dtype="bfloat16", max_model_len=256, skip_tokenizer_init=True, enable_prefix_caching=False,
        worker_extension_cls=extension, **options,
    )  # fmt: skip
    sampling = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True, detokenize=False)
    with dws.daemons.receiver("rollout-0", f"unix:{SENDER}", JOB, run_dir=RUN_DIR) as receiver:
        # Waits for the trainer, which knows the layout. In Python as by vllm serve's /collective_rpc.
        llm.collective_rpc("dws_attach", kwargs={"socket": receiver.socket, "timeout": WAIT_SECONDS})
        seen = 0
        while seen < steps:
            version = llm.collective_rpc("dws_wait_ready", kwargs={"timeout": WAIT_SECONDS})[0]["version"]
            answer = llm.generate([{"prompt_token_ids": PROMPT}], sampling, use_tqdm=False)[0].outputs[0]
            # A version that is committed meanwhile makes an answer of two versions.
            if version not in (None, seen) and llm.collective_rpc("dws_status")[0]["version"] == version:
                seen = version
                print(f"version {seen}: answers {list(answer.token_ids)}", flush=True)
        llm.collective_rpc("dws_detach")


def main() -> None:
    parser = argparse.ArgumentParser(description="Brings a trainer's versions to vLLM.")
    parser.add_argument("role", choices=("model", "train", "engine"))
    parser.add_argument("folder", help="the checkpoint")
    parser.add_argument("--steps", type=int, default=60, help="versions to publish (60)")
    parser.add_argument("--pace", type=float, default=1.0, help="seconds between two versions (1)")
    options = parser.parse_args()
    if options.role == "model":
        write_model(options.folder)
    elif options.role == "train":
        train(options.folder, options.steps, options.pace)
    else:
        engine(options.folder, options.steps)


if __name__ == "__main__":
    main()
