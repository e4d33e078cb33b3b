"""Quickstart of TRL (docs/quickstart/trl.md): GRPO with a small model of random weights, made here; nothing is downloaded.

    python train_trl.py train               # one terminal: the trainer and its dws-sender
    python train_trl.py engine              # another one: an engine of plain PyTorch and its dws-receiver

Both print a digest of each version: the same one. With a vLLM server that generates the completions:

    python train_trl.py model MODEL         # writes a folder with config and tokenizer, for `vllm serve`
    python train_trl.py train --vllm http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import tempfile
import time
import urllib.error
import urllib.request
from typing import Any

import datasets
import tokenizers
import torch
import transformers
import trl

import dws
from dws.trainers.grpo import generation_by_dws
from dws.trainers.hf import PublishCallback

JOB = "trl"
RUN_DIR = "/tmp/dws-quickstart"  # sockets, logs and state of the daemons; removed at the end
SENDER = f"{RUN_DIR}/{JOB}/sender-0/d.sock"
WAIT_SECONDS = 600.0
WORDS = ["<bos>", "<eos>", "<pad>", "<unk>", *(f"w{i}" for i in range(60))]


def make_model() -> Any:
    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        architectures=["Qwen3ForCausalLM"], vocab_size=len(WORDS), hidden_size=128, intermediate_size=256,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=64,
        bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    return transformers.Qwen3ForCausalLM(config)


def make_tokenizer() -> Any:
    words = tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>")
    made = tokenizers.Tokenizer(words)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = dict(bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special)


def digest(model: Any) -> str:
    found = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        found.update(weight.detach().cpu().to(torch.bfloat16).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:12]


class Show(transformers.TrainerCallback):  # type: ignore[misc]
    """Prints a digest of each version. With a server: attaches it, which needs a trainer that has begun."""

    def __init__(self, url: str, receiver: str) -> None:
        self._url = url
        self._receiver = receiver

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self._url:
            with contextlib.suppress(urllib.error.HTTPError):
                self._call("dws_detach")  # of an earlier run
            self._call("dws_attach", socket=self._receiver)
        print(f"version 1: digest {digest(given['model'])}", flush=True)

    def _call(self, method: str, **arguments: Any) -> None:
        body = json.dumps({"method": method, "kwargs": arguments}).encode()
        request = urllib.request.Request(f"{self._url}/collective_rpc", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=WAIT_SECONDS).close()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        print(f"version {state.global_step + 1}: digest {digest(given['model'])}", flush=True)


def reward(completions: list[str], **unused: Any) -> list[float]:
    return [float(text.count("w1")) for text in completions]


def train(steps: int, url: str) -> None:
    with contextlib.ExitStack() as stack:
        sender = stack.enter_context(dws.daemons.sender(JOB, run_dir=RUN_DIR))
        server = {}
        publish = PublishCallback(SENDER, JOB, wait=1, wait_timeout=WAIT_SECONDS, dtype=torch.bfloat16)
        receiver = ""
        if url:  # beside the server, where it runs on another host
            receiver = stack.enter_context(dws.daemons.receiver("vllm-0", sender, JOB, run_dir=RUN_DIR)).socket
            server = dict(use_vllm=True, vllm_mode="server", vllm_server_base_url=url)
            # The callback publishes before the server is attached, so only generation waits.
            publish = PublishCallback(SENDER, JOB, dtype=torch.bfloat16)
            stack.enter_context(generation_by_dws(publish, timeout=WAIT_SECONDS))
        arguments = trl.GRPOConfig(
            output_dir=stack.enter_context(tempfile.TemporaryDirectory()), use_cpu=not torch.cuda.is_available(),
            bf16=False, max_steps=steps, per_device_train_batch_size=4, num_generations=4, max_completion_length=8,
            learning_rate=1e-5, beta=0.0, save_strategy="no", report_to=[], disable_tqdm=True, **server,
        )  # fmt: skip
        trainer = trl.GRPOTrainer(
            model=make_model(), reward_funcs=reward, args=arguments, processing_class=make_tokenizer(),
            train_dataset=datasets.Dataset.from_dict({"prompt": [" ".join(WORDS[i : i + 8]) for i in range(4, 20)]}),
            callbacks=[publish, Show(url, receiver)],
        )  # fmt: skip
        trainer.train()


def engine(steps: int) -> None:
    with dws.daemons.receiver("rollout-0", f"unix:{SENDER}", JOB, run_dir=RUN_DIR) as receiver:
        with dws.Engine(receiver.socket) as live:
            model = make_model().to(torch.bfloat16)
            live.attach(model, timeout=WAIT_SECONDS)  # waits for the trainer, which knows the layout
            seen = 0
            while seen <= steps:  # the version before the first step is 1
                with live.running(timeout=WAIT_SECONDS) as grant, torch.no_grad():  # no commit falls into this block
                    model(torch.arange(len(WORDS))[None])
                    if grant.version != seen:
                        seen = grant.version
                        print(f"version {seen}: digest {digest(model)}", flush=True)
                time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains with TRL's GRPOTrainer and brings the weights to an engine.")
    parser.add_argument("role", choices=("train", "engine", "model"))
    parser.add_argument("folder", nargs="?", help="of role model: where config and tokenizer are written")
    parser.add_argument("--steps", type=int, default=30, help="optimizer steps (30)")
    parser.add_argument("--vllm", default="", metavar="URL", help="a vLLM server that generates the completions")
    options = parser.parse_args()
    if options.role == "train":
        train(options.steps, options.vllm)
    elif options.role == "engine":
        engine(options.steps)
    elif options.folder is None:
        parser.error("model: expected a folder to write to")
    else:
        make_model().config.save_pretrained(options.folder)
        make_tokenizer().save_pretrained(options.folder)


if __name__ == "__main__":
    main()
