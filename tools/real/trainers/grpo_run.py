"""TRL's GRPOTrainer with PublishCallback, generating in its own process: nothing else may change its weights."""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import datasets
import trl

from dws.trainers.hf import PublishCallback
from tools.real.trainers import models
from tools.real.trainers.comparison import Comparison
from tools.real.trainers.hf_run import Compare

STEPS = 3


def reward(completions: list[str], **unused: Any) -> list[float]:
    """Rewards differ inside each group, so there is something to learn."""
    return [float(sum(map(ord, text)) % 7) for text in completions]


def prompts() -> datasets.Dataset:
    texts = [" ".join(models.WORDS[i:]) for i in range(8)]
    table = datasets.table.InMemoryTable.from_pydict({"prompt": texts})
    return datasets.Dataset(
        table, fingerprint="prompts"
    )  # it cannot make one in vLLM's environment


def configuration(folder: str, **more: Any) -> trl.GRPOConfig:
    return trl.GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        max_steps=STEPS,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=8,
        learning_rate=1e-2,
        beta=0.0,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **more,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("sender", "receiver", "job-id", "seen", "dtype"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    comparison = Comparison(options.seen, options.dtype)
    publish = PublishCallback(options.sender, options.job_id, wait="all", wait_timeout=60)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trl.GRPOTrainer(
            model=models.make("qwen3", seed=1),
            reward_funcs=reward,
            args=configuration(folder),
            train_dataset=prompts(),
            processing_class=models.tokenizer(),
            callbacks=[publish, Compare(comparison)],
        )
        trainer.train()
    print(f"ok: {comparison.report()}")


if __name__ == "__main__":
    main()
