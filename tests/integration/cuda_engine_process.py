"""An engine with weights on a CUDA device, in a process of its own, for tests that kill it."""

from __future__ import annotations

import multiprocessing
from typing import Any

import dws
from dws.dtypes import DType
from tests.clients.python.gpu import Gpu, GpuTensor


def _run(socket: str, shapes: dict[str, tuple[int, ...]], pipe: Any) -> None:
    gpu = Gpu()
    live = {}
    for name, shape in shapes.items():
        live[name] = GpuTensor(gpu, gpu.malloc(8 << 20) + 256, shape, DType.BF16)
    engine = dws.Engine(socket)
    engine.attach(live)
    while True:
        with engine.running(60) as grant:
            pipe.send((grant.version, {name: tensor.get() for name, tensor in live.items()}))
        pipe.recv()


class CudaEngineProcess:
    """Attaches bfloat16 tensors and answers `look` with the version and their bits."""

    def __init__(self, socket: str, shapes: dict[str, tuple[int, ...]]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(socket, shapes, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def look(self) -> tuple[int, dict[str, Any]]:
        """Weights between two commits. The first answer comes after the first release."""
        seen: tuple[int, dict[str, Any]] = self._pipe.recv()
        self._pipe.send("look again")
        return seen

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.join()
