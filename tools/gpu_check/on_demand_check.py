"""The part of gpu_check that trains on demand: two ranks with FSDP2 share the GPU, each with a dws-sender beside it.

Prints a JSON line a check, as gpu_check does. The gradients of each step have to be those that a model which is not cut
gives for the same weights and samples. Without a PyTorch of 2.9 or newer, or without a GPU, all are skipped.

    python3 on_demand_check.py --bin=bin    # dws-sender

It needs what torch_check.py needs.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

from tools.gpu_check.result_lines import Lines
from tools.gpu_check.torch_model import why_not

RANKS, STEPS = 2, 4
WIDTH, LAYERS, TOKENS = 256, 3, 64
CHECK_SECONDS = 120
# A piece's gradients are BF16, and its sums may be made in another order than those of the model that is not cut.
ROUNDING = 2.0**-6
CHECKS = {
    "device": "training on demand, versions are read on the GPU",
    "host": "training on demand, versions are copied to the host",
}


def _make(device: str) -> Any:
    """The same weights each time; a rank's rows are not equally many."""
    import torch
    from torch import nn

    torch.manual_seed(7)
    layers = [nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH + 1), nn.GELU(), nn.Linear(WIDTH + 1, WIDTH)) for _ in range(LAYERS)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 5)).to(device)


def _loss(model: Any, step: int, sample: int, device: str) -> Any:
    import torch

    generator = torch.Generator().manual_seed(1000 * step + sample)
    values = torch.randn(TOKENS, WIDTH, generator=generator).to(device, torch.bfloat16)
    return model(values).float().square().mean()


def _whole(model: Any) -> dict[str, Any]:
    """All weights, on the host. A collective call."""
    import torch
    import torch.distributed as dist

    own = {name: each.to_local().detach().cpu() for name, each in model.named_parameters()}
    parts: list[Any] = [None] * RANKS
    dist.all_gather_object(parts, own)
    return {name: torch.cat([part[name] for part in parts]) for name in own}


def _expected(model: Any, step: int, samples: Any, device: str) -> dict[str, Any]:
    """By name the mean of all ranks' gradients in FP64, and of their magnitudes. A collective call."""
    import torch
    import torch.distributed as dist

    reference = _make(device)
    reference.load_state_dict(_whole(model))
    reference.to(torch.bfloat16)
    found = {name: torch.zeros(2, *each.shape, dtype=torch.float64) for name, each in reference.named_parameters()}
    for sample in samples:
        reference.zero_grad()
        _loss(reference, step, sample, device).backward()
        for name, each in reference.named_parameters():
            piece = each.grad.cpu().double()
            found[name] += torch.stack([piece, piece.abs()])
    for each in found.values():
        dist.all_reduce(each)
    return {name: each / RANKS for name, each in found.items()}


def _require_gradients(model: Any, expected: dict[str, Any], rank: int) -> None:
    for name, parameter in model.named_parameters():
        own = parameter.grad.to_local()
        if own.device.type != parameter.device.type:
            raise AssertionError(f"the gradient of '{name}' is on {own.device}, the parameter on {parameter.device}")
        each = -(-parameter.shape[0] // RANKS)
        mean, magnitude = expected[name][:, rank * each : (rank + 1) * each]
        apart = (own.cpu().double() - mean).abs()
        if not bool((apart <= ROUNDING * magnitude).all()):
            raise AssertionError(f"the gradient of '{name}' is up to {float(apart.max())} away from that of a model that is not cut")


def _train(options: argparse.Namespace) -> None:
    """One rank."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    import dws

    if options.device == "cuda":
        torch.cuda.set_device(0)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo", init_method=f"file://{options.folder}/{options.one}", rank=options.rank, world_size=RANKS)
    model = _make(options.device)
    on_device = options.one == "device"
    with dws.on_demand.Training(options.senders, "gpu-check", exact=True, timeout=60, on_device=on_device) as od:
        mesh = init_device_mesh(options.device, (RANKS,))
        od.fully_shard(model, units=list(model)[:LAYERS], param_dtype=torch.bfloat16, mesh=mesh)
        memory = od.publisher.memory
        if options.device == "cuda" and bool(memory.host_copies) == on_device:
            raise AssertionError(f"on_device={on_device}, and {memory}")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for number in range(STEPS):
            plan = [[(0,), (1,), (2,)], [(3,)]] if number % 2 == 0 else [[], [(0,), (1,)]]
            expected = _expected(model, number, [each for (each,) in plan[options.rank]], options.device)
            for attempt in od.minibatch(plan):
                with attempt:
                    for (sample,) in attempt.microbatches:
                        loss = _loss(model, number, sample, options.device)
                        loss.backward()
                        losses.append(loss.detach())
                    step = attempt.finish()
            if not step.finite:
                raise AssertionError(f"the gradient of minibatch {number} is not finite: {step}")
            _require_gradients(model, expected, options.rank)
            od.clip(1.0)
            optimizer.step()
            od.publish()
        print(f"on_demand: rank {options.rank}: losses {[float(each) for each in losses]}, {od.waits}", file=sys.stderr)
        dist.barrier()
    dist.barrier()
    dist.destroy_process_group()


def run_one(options: argparse.Namespace) -> str:
    """Returns why the check failed, or ""."""
    from tests.integration import cluster

    cluster.SENDER = os.path.join(options.bin, "dws-sender")
    with cluster.Cluster("gpu-check") as daemons, tempfile.TemporaryDirectory() as folder:
        peers = ",".join(f"unix:{daemons.folder}/sender-{rank}/d.sock" for rank in range(RANKS))
        for rank in range(RANKS):
            daemons.start_sender(rank, f"--train-peers={peers}")
        command = [sys.executable, __file__, f"--bin={options.bin}", f"--device={options.device}", f"--one={options.one}"]
        command += [f"--senders={daemons.folder}/sender-{{rank}}/d.sock", f"--folder={folder}"]
        ranks = [subprocess.Popen([*command, f"--rank={rank}"], stdout=sys.stderr) for rank in range(RANKS)]
        try:
            statuses = [process.wait() for process in ranks]  # each ends itself in time
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        if any(statuses):
            print(daemons.logs(15), file=sys.stderr)
            return f"the ranks ended with {statuses}, see above"
    return ""


def why_not_here(device: str) -> str:
    """Returns why nothing can be checked; "": it can."""
    reason = why_not(device)
    if reason:
        return reason
    asking = "import torch; from dws.on_demand.units import require_torch; require_torch(torch.__version__)"
    asked = subprocess.run([sys.executable, "-c", asking], capture_output=True, text=True)
    return asked.stderr.strip().rpartition("\n")[2] if asked.returncode else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--bin", required=True, help="folder of dws-sender")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    for name in ("one", "senders", "folder"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        signal.alarm(CHECK_SECONDS)
        # Set before CUDA starts: the same weights must give the same gradients.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        _train(options)
        return 0
    lines, reason = Lines("on_demand", options.device), why_not_here(options.device)
    for options.one, name in CHECKS.items():
        if reason:
            lines.skipped(name, reason)
        else:
            print(f"on_demand: {name} ...", file=sys.stderr)
            lines.checked(name, run_one(options))
    return 1 if lines.failed else 0


if __name__ == "__main__":
    sys.exit(main())
