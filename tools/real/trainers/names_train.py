"""The trainer of names_run.py, with one or several processes: publishes a model of transformers, then its weights after a
step, and saves these with save_pretrained. Files in a folder tell the engine's process how far it is."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch
import torch.distributed as dist

from dws.trainers.hf import PublishCallback
from dws.trainers.publisher import Publisher
from tools.real.declare.models import random_model
from tools.real.trainers import models

SECONDS_MAX = 600.0
# What vLLM's kernels for the CPU take.
SIZES = {
    "hidden_size": 128, "intermediate_size": 64, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
}  # fmt: skip

# Sizes that vLLM's kernels take, and what vLLM reads of a config and transformers does not have.
OF_MODEL: dict[str, dict[str, Any]] = {
    "afmoe": {"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1},
    "deepseek_v3": {
        "kv_lora_rank": 512, "q_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 64, "v_head_dim": 32,
        "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    },
    "qwen3_next": {"linear_key_head_dim": 128, "linear_value_head_dim": 128},
}  # fmt: skip


def made(name: str) -> Any:
    own = OF_MODEL.get(name, {})
    model = random_model(name, {**SIZES, **own})
    for key, value in own.items():
        setattr(model.config, key, value)
    return model


def wait_for(folder: str, name: str) -> None:
    """Raises TimeoutError: the other process does not write the file in time."""
    deadline = time.monotonic() + SECONDS_MAX
    while not os.path.exists(os.path.join(folder, name)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {name} within {SECONDS_MAX:g} s")
        time.sleep(0.05)


def tell(folder: str, name: str) -> None:
    with open(os.path.join(folder, name), "w"):
        pass


def step(model: torch.nn.Module, optimizer: Any) -> None:
    """A step whose gradients are the weights: it changes every element that is not zero."""
    for parameter in model.parameters():
        parameter.grad = parameter.detach().clone()
    optimizer.step()


def save(model: Any, name: str, folder: str) -> None:
    """Saves what is in the processes' parts as transformers saves a whole model. A collective call."""
    state = {
        key: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        for key, tensor in model.state_dict().items()
    }
    whole = made(name)
    whole.load_state_dict(state)
    if not dist.is_initialized() or dist.get_rank() == 0:
        whole.save_pretrained(folder)


def publish(options: argparse.Namespace, model: Any) -> None:
    """By Publisher, of a whole model or of one that fully_shard has cut."""
    if options.via == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        dist.init_process_group("gloo")
        lists = [part for part in model.modules() if isinstance(part, torch.nn.ModuleList)]
        for layer in lists[0]:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    publisher = Publisher(options.sender, options.job_id)
    publisher.register(model)
    publisher.publish(1)
    tell(options.folder, "registered")
    wait_for(options.folder, "attached")
    step(model, optimizer)
    publisher.publish(2)
    publisher.wait(2, "all", timeout=300)
    save(model, options.model, os.path.join(options.folder, "step"))
    publisher.close()


def train(options: argparse.Namespace, model: Any) -> None:
    """One step by transformers.Trainer with PublishCallback, or by TRL's GRPOTrainer, which generates by itself."""
    import transformers

    class Told(transformers.TrainerCallback):
        """Comes after the callback that registers."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            tell(options.folder, "registered")
            wait_for(options.folder, "attached")

    class Committed(transformers.TrainerCallback):
        """Comes before it, because that ends the registration."""

        def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            publishing.bring("all", timeout=300)

    publishing = PublishCallback(options.sender, options.job_id)
    make = grpo_trainer if options.via == "grpo" else hf_trainer
    trainer = make(model, os.path.join(options.folder, "output"), [Committed(), publishing, Told()])
    trainer.train()
    model.save_pretrained(os.path.join(options.folder, "step"))


def hf_trainer(model: Any, folder: str, callbacks: list[Any]) -> Any:
    import transformers

    tokens = torch.arange(12) % 60
    arguments = transformers.TrainingArguments(
        output_dir=folder, use_cpu=True, max_steps=1, save_strategy="no",
        per_device_train_batch_size=2, learning_rate=0.1, report_to=[], disable_tqdm=True,
    )  # fmt: skip
    data: Any = [{"input_ids": tokens, "labels": tokens}] * 4
    return transformers.Trainer(model, arguments, train_dataset=data, callbacks=callbacks)


def grpo_trainer(model: Any, folder: str, callbacks: list[Any]) -> Any:
    import trl

    from tools.real.trainers.grpo_run import configuration, prompts, reward

    arguments = configuration(folder)
    arguments.max_steps = 1
    return trl.GRPOTrainer(
        model=model, reward_funcs=reward, args=arguments, train_dataset=prompts(),
        processing_class=models.tokenizer(), callbacks=callbacks,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("sender", "job-id", "model", "via", "folder"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = made(options.model)
    if os.environ.get("RANK", "0") == "0":  # the engine looks into its checkpoint for names
        model.save_pretrained(os.path.join(options.folder, "base"))
    if options.via in ("hf", "grpo"):
        train(options, model)
    else:
        publish(options, model)
    tell(options.folder, "done")
    print("trained", flush=True)


if __name__ == "__main__":
    main()
