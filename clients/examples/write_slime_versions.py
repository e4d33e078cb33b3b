"""Quickstart of slime (docs/quickstart/slime.md): writes version folders in slime's format, where no slime is installed.

    python write_slime_versions.py model BASE        # a small checkpoint with random weights; or take one of yours
    python write_slime_versions.py write BASE VERSIONS

It stands for slime's trainer with --update-weight-mode delta. A dws-sender writes the folders.
"""

from __future__ import annotations

import argparse
import time

import torch
import transformers

import dws

JOB = "slime-writer"
RUN_DIR = "/tmp/dws-quickstart"  # sockets, logs and state of the daemon; removed at the end


def write_model(folder: str) -> None:
    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        architectures=["Qwen3ForCausalLM"], vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=256, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def write(base: str, versions: str, steps: int, pace: float) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    # With slime_first version 1 is a delta of the base, as slime's is.
    with dws.daemons.sender(
        JOB, run_dir=RUN_DIR, slime_dir=versions, slime_checkpoint=base, slime_first="base"
    ) as sender, dws.Trainer(sender.socket, job_id=JOB) as trainer:
        weights = trainer.register(dict(model.named_parameters()))
        for version in range(1, steps + 1):
            with torch.no_grad():  # an optimizer step
                for weight in weights.values():
                    weight += 0.01 * torch.randn_like(weight) * (torch.rand_like(weight) < 0.05)
            stats = trainer.publish(version)
            changed = "the first" if stats.full else f"{stats.changed_elements} of {stats.total_elements} elements changed"
            print(f"version {version}: {changed}", flush=True)
            time.sleep(pace)


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes version folders in slime's format.")
    parser.add_argument("role", choices=("model", "write"))
    parser.add_argument("base", help="the checkpoint that all versions begin with")
    parser.add_argument("versions", nargs="?", help="of role write: the folder of the versions")
    parser.add_argument("--steps", type=int, default=60, help="versions to write (60)")
    parser.add_argument("--pace", type=float, default=2.0, help="seconds between two versions (2)")
    options = parser.parse_args()
    if options.role == "model":
        write_model(options.base)
    elif options.versions is None:
        parser.error("write: expected the folder of the versions")
    else:
        write(options.base, options.versions, options.steps, options.pace)


if __name__ == "__main__":
    main()
