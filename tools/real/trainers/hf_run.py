"""transformers.Trainer with PublishCallback, also under torchrun and with DeepSpeed's ZeRO-3. Trains twice from the same seed, without it and with it: the
weights must end the same, so the callback changes nothing of the training."""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import Any, Optional

import torch
import transformers
from safetensors.torch import load_file

from dws.trainers.hf import PublishCallback
from tools.real.trainers import models
from tools.real.trainers.comparison import Comparison

STEPS = 6


def gathered(model: torch.nn.Module) -> dict[str, Any]:
    """The full state. A collective call."""
    if hasattr(next(model.parameters()), "ds_id"):
        from tools.real.trainers import zero

        return zero.gathered(model)
    return model.state_dict()


class Compare(transformers.TrainerCallback):
    """Comes after the callback that it looks at."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._check(state, given["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._check(state, given["model"])

    def _check(self, state: Any, model: Any) -> None:
        weights = gathered(model)
        if model.config.tie_word_embeddings:
            del weights["lm_head.weight"]
        self._comparison.check(state.global_step + 1, weights)


class Tokens(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = torch.arange(index, index + 12) % models.VOCABULARY
        return {"input_ids": tokens, "labels": tokens}


def train(callbacks: list[Any], folder: str, zero3: bool) -> str:
    """Returns the digest of the weights in the last checkpoint that it writes; "" on other processes
    than the first, which write none."""
    given: dict[str, Any] = {}
    if zero3:
        from tools.real.trainers import zero

        given = {"bf16": True, "deepspeed": zero.configuration(stage=3)}
    model = models.make("qwen3", seed=1)
    arguments = transformers.TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        save_steps=STEPS // 2,
        report_to=[],
        disable_tqdm=True,
        seed=3,
        **given,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=Tokens(), callbacks=callbacks)
    trainer.train()
    if not trainer.is_world_process_zero():
        return ""
    saved = load_file(os.path.join(folder, f"checkpoint-{STEPS}", "model.safetensors"))
    return models.digest(saved)


def main(argv: Optional[list[str]] = None) -> None:
    parser = argparse.ArgumentParser()
    for name in ("sender", "receiver", "job-id", "seen", "dtype"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--zero3", action="store_true")
    options = parser.parse_args(argv)
    comparison = Comparison(options.seen, options.dtype)
    dtype = None if options.dtype == "float32" else options.dtype
    publish = PublishCallback(
        options.sender, options.job_id, wait="all", wait_timeout=60, dtype=dtype
    )
    with tempfile.TemporaryDirectory() as folder:
        alone = train([], os.path.join(folder, "alone"), options.zero3)
        published = train(
            [publish, Compare(comparison)], os.path.join(folder, "published"), options.zero3
        )
    assert alone == published, "the callback changed what was trained"
    print(f"ok: {comparison.report()}, checkpoint as without the callback", flush=True)
    if options.zero3:
        os._exit(0)  # threads of DeepSpeed go on


if __name__ == "__main__":
    main()
