"""TRL's GRPOTrainer with a real vLLM server, whose weights come only from DWS. Before each generation the server
must have the version of the trainer's step. The log probabilities that it sampled with must be the trainer's own, but
for rounding; with weights of another step they are not."""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import Any

import transformers
import trl

from dws.trainers.grpo import generation_by_dws
from dws.trainers.hf import PublishCallback
from tools.real.trainers import models
from tools.real.trainers.grpo_run import STEPS, configuration, prompts, reward
from tools.real.trainers.vllm_server import VllmServer

# How far the log probabilities of vLLM and transformers, in float32, may differ. One step changes them by 0.1 or more.
DIFFERENCE_MAX = 1e-3


class Attach(transformers.TrainerCallback):
    """Comes after PublishCallback: attaching needs the trainer's layout."""

    def __init__(self, server: VllmServer, receiver: str) -> None:
        self._server = server
        self._receiver = receiver

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._server.call("dws_attach", socket=self._receiver)


def train(options: argparse.Namespace, folder: str, server: VllmServer) -> None:
    publish = PublishCallback(options.sender, options.job_id)
    with generation_by_dws(publish, timeout=120):
        trainer = trl.GRPOTrainer(
            model=models.make("qwen3", seed=1),
            reward_funcs=reward,
            args=configuration(
                folder,
                use_vllm=True,
                vllm_mode="server",
                vllm_server_base_url=server.url,
                logging_steps=1,
            ),
            train_dataset=prompts(),
            processing_class=models.tokenizer(),
            callbacks=[publish, Attach(server, options.receiver)],
        )
    generated: list[tuple[int, int]] = []
    generate = trainer.vllm_generation.generate

    def watched(*args: Any, **given: Any) -> Any:
        version = server.call("dws_status")["version"]
        generated.append((trainer.state.global_step + 1, version))
        return generate(*args, **given)

    trainer.vllm_generation.generate = watched
    trainer.train()
    wanted = [(version, version) for version in range(1, STEPS + 1)]
    assert generated == wanted, f"generated with (wanted, had) {generated}"
    key = "sampling/sampling_logp_difference/max"
    differences = [entry[key] for entry in trainer.state.log_history if key in entry]
    assert len(differences) == STEPS, trainer.state.log_history
    assert max(differences) < DIFFERENCE_MAX, f"log probabilities differ by {differences}"
    print(
        f"ok: {STEPS} generations, each with the trainer's version; log probabilities differ by "
        f"{max(differences):.1e} at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("sender", "receiver", "job-id", "seen", "dtype"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "model")
        models.make("qwen3", seed=1).config.save_pretrained(model)
        models.tokenizer().save_pretrained(model)
        server = VllmServer(model)
        try:
            train(options, folder, server)
        finally:
            server.end()


if __name__ == "__main__":
    main()
