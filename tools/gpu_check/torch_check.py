"""The part of gpu_check that needs PyTorch: trainers and engines with models on a GPU, and the daemons
between them. After every version the engine's outputs have to be those of a model that was loaded
from the trainer's weights, bit for bit.

Prints what gpu_check prints: a JSON line a check. Every check is a process of its own, because
PyTorch's allocator is chosen once a process. Without PyTorch, or without a GPU, all are skipped.

    python3 torch_check.py --bin=bin            # dws-sender, dws-receiver

It needs numpy, grpcio and protobuf, and the package `dws`, tests.integration.cluster and its own folder
by path from the top on PYTHONPATH; run.sh sees to it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from typing import Any, Callable, NamedTuple, Optional

from tools.gpu_check.result_lines import Lines, why_failed
from tools.gpu_check.torch_model import (
    make_model,
    optimizer_step,
    require_same,
    tokens_for,
    why_not,
)

CHECK_SECONDS = 60
WAIT_SECONDS = 30.0
NATIVE = {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}
# Some builds of PyTorch make segments that can be shared on demand only.
EXPANDABLE = {
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC": "1",
}
ASYNC = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}


class Setup:
    """The parts of a check: a sender, a receiver, a trainer, and clients that are closed at the
    end."""

    def __init__(self, programs: str, device: str) -> None:
        import dws
        from tests.integration import cluster

        cluster.SENDER = os.path.join(programs, "dws-sender")
        cluster.RECEIVER = os.path.join(programs, "dws-receiver")
        self.dws = dws
        self.device = device
        self.cluster = cluster.Cluster("gpu-check")
        self.cluster.start_sender()
        self.cluster.start_receiver("receiver-0")
        self.trainer = dws.Trainer(self.cluster.senders[0].socket, "gpu-check")
        self.engine = dws.Engine(self.cluster.receivers[0].socket)

    def close(self, failed: bool) -> None:
        if failed:
            print(self.cluster.logs(15), file=sys.stderr)
        self.engine.close()
        self.trainer.close()
        self.cluster.stop()

    def publish(self, version: int) -> None:
        self.synchronize()
        self.trainer.publish(version)

    def await_version(self, version: int) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while self.engine.grant is None or self.engine.grant.version != version:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"version {version} did not arrive; the engine has {self.engine.grant}, "
                    f"{self.engine.stats()}"
                )
            time.sleep(0.005)
        self.engine.wait_ready(WAIT_SECONDS)

    def synchronize(self) -> None:
        import torch

        if self.device != "cpu":
            torch.cuda.synchronize()


def follow(setup: Setup, trained: Any, use_graph: bool = False) -> None:
    """An engine with its model on the device follows `trained`, which is registered."""
    import torch

    tokens = tokens_for(setup.device)
    model = make_model(setup.device)
    optimizer_step(model, 1.0)  # not the trainer's
    setup.publish(1)
    setup.engine.attach(model)
    setup.await_version(1)
    graph: Optional[Any] = None
    with setup.engine.running(WAIT_SECONDS):
        output = model(tokens)
        if use_graph and setup.device != "cpu":
            graph = torch.cuda.CUDAGraph()
            setup.synchronize()
            with torch.cuda.graph(graph):
                output = model(tokens)
            graph.replay()
        setup.synchronize()
        require_same(output, trained, tokens, 1)
    for version, share in ((2, 0.01), (3, 0.3), (4, 1.0), (5, 0.002)):
        optimizer_step(trained, share)
        setup.publish(version)
        setup.await_version(version)
        with setup.engine.running(WAIT_SECONDS):
            if graph is not None:
                graph.replay()
            else:
                output = model(tokens)
            setup.synchronize()
            require_same(output, trained, tokens, version)


def live_trainer(setup: Setup) -> None:
    trained = make_model(setup.device)
    optimizer_step(trained, 0.5)
    setup.dws.bind(trained, setup.trainer.register(trained))
    follow(setup, trained)


def with_graph(setup: Setup) -> None:
    trained = make_model(setup.device)
    setup.dws.bind(trained, setup.trainer.register(trained))
    follow(setup, trained, use_graph=True)


def host_trainer(setup: Setup) -> None:
    trained = make_model("cpu")
    optimizer_step(trained, 0.5)
    setup.dws.bind(trained, setup.trainer.register(trained))
    follow(setup, trained)


def refused(setup: Setup) -> None:
    model = make_model(setup.device)
    for who, register in (("trainer", setup.trainer.register), ("engine", setup.engine.attach)):
        try:
            register(model)
        except setup.dws.DwsError as error:
            if "backend:native" not in str(error):
                raise AssertionError(f"the {who}'s refusal names no remedy: {error}") from error
        else:
            raise AssertionError(f"memory of cudaMallocAsync's default pool: the {who} accepted it")


def many_tensors(setup: Setup) -> None:
    import torch

    trained = {
        f"expert.{i:04}": torch.randn(64 + i % 7, device=setup.device, dtype=torch.bfloat16)
        for i in range(5000)
    }
    trained.update(setup.trainer.register(trained))
    live = {name: torch.zeros_like(tensor) for name, tensor in trained.items()}
    setup.publish(1)
    live.update(setup.engine.attach(live))
    for version in (1, 2):
        if version > 1:
            for tensor in trained.values():
                tensor[3] += 1
            setup.publish(version)
        setup.await_version(version)
        with setup.engine.running(WAIT_SECONDS):
            for name, tensor in trained.items():
                if not torch.equal(live[name], tensor):
                    raise AssertionError(f"'{name}' differs at version {version}")


def sleep_and_wake(setup: Setup) -> None:
    import torch

    trained = make_model(setup.device)
    setup.dws.bind(trained, setup.trainer.register(trained))
    tokens = tokens_for(setup.device)
    model = make_model(setup.device)
    setup.publish(1)
    setup.engine.attach(model)
    setup.await_version(1)
    for version in (2, 3):
        setup.engine.suspend()
        kept = []  # so that memory is not allocated at the same address
        for weight in model.parameters():
            kept.append(weight.data)
            weight.data = torch.zeros_like(weight)
        optimizer_step(trained, 0.1)
        setup.publish(version)
        setup.engine.refresh()
        setup.await_version(version)
        with setup.engine.running(WAIT_SECONDS):
            output = model(tokens)
            setup.synchronize()
            require_same(output, trained, tokens, version)


class Check(NamedTuple):
    """`environment`: of its process; `on_cpu`: it shows something without a GPU."""

    name: str
    run: Callable[[Setup], None]
    environment: dict[str, str]
    on_cpu: bool = False


CHECKS = {
    "native": Check("PyTorch's caching allocator, live at both ends", live_trainer, NATIVE, True),
    "expandable": Check("expandable_segments, live at both ends", live_trainer, EXPANDABLE),
    "graph": Check("an engine that replays a CUDA graph", with_graph, NATIVE),
    "pinned": Check("a trainer in pinned memory of the host", host_trainer, NATIVE, True),
    "refused": Check("cudaMallocAsync's default pool is refused with a remedy", refused, ASYNC),
    "many": Check("5,000 tensors", many_tensors, NATIVE, True),
    "sleep": Check("weights that sleep and wake somewhere else", sleep_and_wake, NATIVE),
}


def run_one(name: str, programs: str, device: str) -> None:
    """In its own process, which ends its daemons in any case."""

    def too_late(*_: Any) -> None:
        raise TimeoutError(f"not done after {CHECK_SECONDS} s")

    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(CHECK_SECONDS)
    # Set before CUDA starts: the same weights must give the same outputs.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    torch.use_deterministic_algorithms(True)
    setup = Setup(programs, device)
    failed = True
    try:
        with torch.no_grad():
            CHECKS[name].run(setup)
        failed = False
    finally:
        setup.close(failed)


def run_all(lines: Lines, programs: str, device: str, names: list[str]) -> None:
    reason = why_not(device)
    for name in names:
        check = CHECKS[name]
        if reason:
            lines.skipped(check.name, reason)
        elif device == "cpu" and not check.on_cpu:
            lines.skipped(check.name, "this is a run without a GPU")
        else:
            print(f"torch: {check.name} ...", file=sys.stderr)
            command = [__file__, f"--one={name}", f"--bin={programs}", f"--device={device}"]
            why = why_failed(command, CHECK_SECONDS + 30, check.environment, stdout=sys.stderr)
            lines.checked(check.name, why)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--bin", required=True, help="folder of dws-sender and dws-receiver")
    parser.add_argument("--only", default="", help=f"separated by commas: {' '.join(CHECKS)}")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        try:
            run_one(options.one, options.bin, options.device)
        except Exception:  # any error is reported
            traceback.print_exc()
            return 1
        return 0
    names = [name for name in options.only.split(",") if name] or list(CHECKS)
    lines = Lines("torch", options.device)
    run_all(lines, options.bin, options.device, names)
    return 1 if lines.failed else 0


if __name__ == "__main__":
    sys.exit(main())
