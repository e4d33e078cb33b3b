"""An adapter of peft by itself: a transformers.Trainer, TRL's GRPOTrainer, or FSDP2 by torchrun. At each version an engine that has
loaded the adapter's first checkpoint must have, to the bit, the checkpoint that peft writes then."""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import Any, Optional

import peft
import torch
import transformers
from safetensors.torch import load_file

import dws
from dws.adapters.shadow import Shadow
from dws.trainers.hf import PublishCallback
from dws.trainers.publisher import Publisher
from tools.real.trainers import models

STEPS = 4
_ADAPTER = "math"
_SECONDS = 120.0


def make() -> Any:
    """A model with two adapters, of which one is trained and published."""
    torch.manual_seed(1)
    config = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj", "down_proj"]}
    model = peft.get_peft_model(models.make("qwen3", seed=1), peft.LoraConfig(**config), adapter_name=_ADAPTER)
    model.add_adapter("other", peft.LoraConfig(r=2, lora_alpha=2, target_modules=["o_proj"]))
    return model


class Engine:
    """One that has loaded an adapter's checkpoint, without a model. Lifecycle: attached when it is made.

    Attributes:
      compared: versions.
    """

    def __init__(self, receiver: str, checkpoint: str, dtype: str) -> None:
        self.compared = 0
        self._dtype = dtype
        self._shadow = Shadow(checkpoint, dtype)
        self._engine = dws.Engine(receiver)
        self._shadow.use(self._engine.attach(self._shadow.tensors, timeout=_SECONDS))

    def require(self, version: int, saved: dict[str, Any]) -> None:
        """Raises AssertionError: it does not have this version, or other bits than what was saved."""
        with self._engine.running(timeout=_SECONDS) as grant:
            assert grant.version == version, (grant, version)
            found = self._shadow.copies()
        assert set(found) == set(saved), set(found) ^ set(saved)
        for name, tensor in saved.items():
            assert torch.equal(found[name], tensor.to(getattr(torch, self._dtype))), (version, name)
        self.compared += 1


def save(model: Any, folder: str, adapter: str) -> str:
    """Returns the folder of the checkpoint that peft writes."""
    model.save_pretrained(folder, selected_adapters=[adapter])
    return folder if adapter == "default" else os.path.join(folder, adapter)


def saved_now(model: Any, adapter: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = load_file(os.path.join(save(model, folder, adapter), "adapter_model.safetensors"))
    return found


class Compare(transformers.TrainerCallback):
    """Comes after the callback that it looks at, which does not wait: the first version is there when an engine has attached."""

    def __init__(self, publish: PublishCallback, receiver: str, dtype: str) -> None:
        self.engine: Optional[Engine] = None
        self._publish, self._receiver, self._dtype = publish, receiver, dtype

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.engine = Engine(self._receiver, save(given["model"], folder, self._publish.adapter), self._dtype)
        self._check(state, given["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._check(state, given["model"])

    def _check(self, state: Any, model: Any) -> None:
        assert self.engine is not None
        self._publish.bring("all", _SECONDS)
        self.engine.require(state.global_step + 1, saved_now(model, self._publish.adapter))


def train(options: argparse.Namespace, folder: str) -> str:
    """With transformers.Trainer or TRL's."""
    adapter = "default" if options.layout == "grpo" else _ADAPTER
    publish = PublishCallback(options.sender, options.job_id, dtype=options.dtype, adapter=adapter)
    compare = Compare(publish, options.receiver, options.dtype)
    callbacks = [publish, compare]
    if options.layout == "grpo":
        import trl
        from tools.real.trainers import grpo_run

        trainer = trl.GRPOTrainer(
            model=models.make("qwen3", seed=1),
            reward_funcs=grpo_run.reward,
            args=grpo_run.configuration(folder),
            train_dataset=grpo_run.prompts(),
            processing_class=models.tokenizer(),
            callbacks=callbacks,
            peft_config=peft.LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "down_proj"]),
        )
    else:
        from tools.real.trainers.hf_run import Tokens

        arguments = transformers.TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            max_steps=STEPS,
            per_device_train_batch_size=2,
            learning_rate=1e-2,
            save_steps=STEPS,
            report_to=[],
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(make(), arguments, train_dataset=Tokens(), callbacks=callbacks)
    trainer.train()
    assert compare.engine is not None and compare.engine.compared > 1
    if options.layout == "hf":  # the checkpoint of the trainer itself
        last = load_file(os.path.join(folder, f"checkpoint-{STEPS}", adapter, "adapter_model.safetensors"))
        compare.engine.require(STEPS + 1, last)
    return f"{compare.engine.compared} checkpoints of the adapter"


def shard(options: argparse.Namespace, folder: str) -> str:
    """With FSDP2: each rank publishes its parts of A and B."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model, first = make(), dist.get_rank() == 0
    checkpoint = save(model, folder, _ADAPTER)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.base_model.model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    publisher = Publisher(options.sender, options.job_id, dtype=options.dtype, adapter=_ADAPTER)
    publisher.register(model)
    engine = Engine(options.receiver, checkpoint, options.dtype) if first else None
    for version in range(1, STEPS + 1):
        publisher.publish(version)
        publisher.wait(version, "all", _SECONDS)
        saved = {
            name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            for name, tensor in peft.get_peft_model_state_dict(model, adapter_name=_ADAPTER).items()
        }
        if engine is not None:
            engine.require(version, saved)
        tokens = torch.randint(models.VOCABULARY, (2, 9))
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    ranks = dist.get_world_size()
    dist.destroy_process_group()
    return "" if engine is None else f"{engine.compared} checkpoints of the adapter, {ranks} ranks with a sender each"


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("sender", "receiver", "job-id", "seen", "dtype", "layout"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = (shard if options.layout == "fsdp2" else train)(options, folder)
    if found:
        print(f"ok: an engine had {found}, to the bit", flush=True)


if __name__ == "__main__":
    main()
