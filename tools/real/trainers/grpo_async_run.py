"""TRL's AsyncGRPOTrainer with WeightTransfer as its way to the engine. Its rollout worker is one of this check, which
pushes made-up samples; its attention kernel, which needs a GPU, is computed here by torch."""

from __future__ import annotations

import argparse
import os
import queue
import tempfile
from typing import Any, Iterator

import numpy as np
import torch
from trl.experimental.async_grpo import (
    AsyncGRPOConfig,
    AsyncGRPOTrainer,
    async_grpo_trainer,
    packing,
)
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from dws.trainers.weight_transfer import WeightTransfer
from tools.real.trainers import models
from tools.real.trainers.comparison import Comparison
from tools.real.trainers.grpo_run import STEPS, prompts

SAMPLES = 4  # of one step


class Attention:
    """The attention kernel, with the one function that TRL calls."""

    @staticmethod
    def flash_attn_varlen_func(
        query: Any, key: Any, value: Any, ends_q: Any, ends_k: Any, *_: Any, **options: Any
    ) -> Any:
        """Each query segment attends to its own keys, up to its own position."""
        found = []
        repeats = query.shape[1] // key.shape[1]
        for i in range(len(ends_q) - 1):
            q = query[ends_q[i] : ends_q[i + 1]].transpose(0, 1)
            k, v = (
                x[ends_k[i] : ends_k[i + 1]].transpose(0, 1).repeat_interleave(repeats, 0)
                for x in (key, value)
            )
            seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
            seen = seen.tril(k.shape[1] - q.shape[1])
            attend = torch.nn.functional.scaled_dot_product_attention
            scale = options["softmax_scale"]
            found.append(attend(q, k, v, attn_mask=seen, scale=scale).transpose(0, 1))
        return torch.cat(found)


class Rollouts:
    """TRL's RolloutWorkerProtocol: all samples of the training at once, as the loader fetches ahead."""

    def __init__(self) -> None:
        self.rollout_buffer: queue.Queue[RolloutSample] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()

    def start(self) -> None:
        for i in range(SAMPLES * (STEPS + 2)):
            sample = RolloutSample(
                prompt=[],
                completion=[],
                input_ids=np.arange(i, i + 10) % models.VOCABULARY,
                completion_mask=np.array([0] * 4 + [1] * 6),
                old_log_probs=np.full(10, -4.0, np.float32),
                advantage=1.0 if i % 2 else -1.0,
                model_version=1,
                group_id=i // SAMPLES,
                metrics={},
            )
            self.rollout_buffer.put(sample)

    def stop(self) -> None:
        pass

    def check_health(self, stale_after_s: float) -> None:
        pass

    def update_model_version(self, model_version: int) -> None:
        pass


class Compared(WeightTransfer):
    """Compares each version after it was sent."""

    def __init__(self, options: argparse.Namespace, comparison: Comparison) -> None:
        super().__init__(options.sender.replace("{rank}", "0"), options.job_id, timeout=60)
        self._comparison = comparison
        self.model: Any = None

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        super().send_weights(iterator)
        weights = self.model.state_dict()
        del weights["lm_head.weight"]  # tied
        self._comparison.check(self._comparison.versions + 1, weights)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("sender", "receiver", "job-id", "seen", "dtype"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    packing._flash_attn = lambda: Attention
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: None  # asks for the GPU's name
    comparison = Comparison(options.seen, options.dtype)
    transfer = Compared(options, comparison)
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "model")
        models.make("qwen3", seed=1).save_pretrained(model)
        arguments = AsyncGRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            dtype="float32",
            max_steps=STEPS,
            per_device_train_batch_size=SAMPLES,
            token_budget=0,
            max_staleness=STEPS,
            learning_rate=1e-2,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = AsyncGRPOTrainer(
            model,
            args=arguments,
            train_dataset=prompts(),
            processing_class=models.tokenizer(),
            rollout_worker=Rollouts(),
            weight_transfer=transfer,
        )
        transfer.model = trainer.model
        trainer.train()
    print(f"ok: {comparison.report()}")


if __name__ == "__main__":
    main()
