"""Quickstart of FSDP2 (docs/quickstart/fsdp2.md): two trainer processes and one engine, each with daemons of its own.

    torchrun --nproc-per-node 2 train_fsdp2.py train     # one terminal
    python train_fsdp2.py engine                         # another one

Each trainer process publishes its shards in BF16 by a dws-sender. The engine, a plain module, gets whole weights by its
dws-receiver. Both print a digest of each version: the same one.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard  # type: ignore[attr-defined]  # of torch 2.6

import dws
from dws.trainers.publisher import Publisher

JOB = "fsdp2"
RANKS = 2
RUN_DIR = "/tmp/dws-quickstart"  # sockets, logs and state of the daemons; removed at the end
SENDER = f"{RUN_DIR}/{JOB}/sender-{{rank}}/d.sock"
WAIT_SECONDS = 600.0
WORDS = 512


def make_model(device: str) -> Any:
    torch.manual_seed(1)  # every process begins with the same weights
    layers = [torch.nn.Embedding(WORDS, 256), torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, WORDS)]
    return torch.nn.Sequential(*layers).to(device)


def digest(state: dict[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(state):
        found.update(state[name].detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:12]


def train(steps: int, pace: float, device: str) -> None:
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank = dist.get_rank()
    if device == "cuda":
        torch.cuda.set_device(rank)
    with dws.daemons.sender(JOB, rank, run_dir=RUN_DIR):  # a job's own senders run as services: then only Publisher is left
        model = make_model(device)
        mesh = init_device_mesh(device, (dist.get_world_size(),))
        for layer in (model[0], model[1], model[3]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        publisher = Publisher(SENDER, JOB, dtype=torch.bfloat16)
        publisher.register(model)  # after fully_shard and the optimizer
        torch.manual_seed(rank)  # each process has samples of its own
        for version in range(1, steps + 1):
            time.sleep(pace)  # rollouts
            words = torch.randint(WORDS, (64,), device=device)
            loss: Any = torch.nn.functional.cross_entropy(model(words), (words + 1) % WORDS)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            stats = publisher.publish(version)  # when it returns, the weights may change again
            result = publisher.wait(version, policy=1, timeout=WAIT_SECONDS)  # until one engine has the version
            whole = {name: shard.full_tensor().to(torch.bfloat16) for name, shard in model.state_dict().items()}
            if stats is not None and result is not None:  # process 0 waits
                print(f"version {version}: {result.wire_bytes} bytes by this process, which stood still for "
                      f"{1e3 * stats.stall_seconds:.1f} ms, digest {digest(whole)}", flush=True)  # fmt: skip
        publisher.close()
    dist.destroy_process_group()


def engine(steps: int, device: str) -> None:
    senders = [f"unix:{SENDER.format(rank=rank)}" for rank in range(RANKS)]
    with dws.daemons.receiver("rollout-0", senders, JOB, run_dir=RUN_DIR) as receiver, dws.Engine(receiver.socket) as live:
        model = make_model(device).to(torch.bfloat16)
        live.attach(model, timeout=WAIT_SECONDS)  # waits for the trainer, which knows the layout
        seen = 0
        while seen < steps:
            with live.running(timeout=WAIT_SECONDS) as grant, torch.no_grad():  # no commit falls into this block
                model(torch.arange(WORDS, device=device))
                if grant.version != seen:
                    seen = grant.version
                    print(f"version {seen}: digest {digest(model.state_dict())}", flush=True)
            time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains with FSDP2 and brings the weights to an engine.")
    parser.add_argument("role", choices=("train", "engine"))
    parser.add_argument("--steps", type=int, default=60, help="versions to publish (60)")
    parser.add_argument("--pace", type=float, default=0.5, help="seconds that rollouts take in each step (0.5)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the weights are (cpu)")
    options = parser.parse_args()
    if options.role == "train":
        train(options.steps, options.pace, options.device)
    else:
        engine(options.steps, options.device)


if __name__ == "__main__":
    main()
