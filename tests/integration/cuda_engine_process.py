"""An engine with weights on a CUDA device, in its own process, for tests that kill it."""

from __future__ import annotations

from typing import Any

import dws
from dws.dtypes import DType
from tests.clients.python.gpu import Gpu, GpuTensor
from tests.integration.engine_process import EngineProcess, answer


def _run(socket: str, shapes: dict[str, tuple[int, ...]], pipe: Any) -> None:
    gpu = Gpu()
    live = {}
    for name, shape in shapes.items():
        live[name] = GpuTensor(gpu, gpu.malloc(8 << 20) + 256, shape, DType.BF16)
    engine = dws.Engine(socket)
    engine.attach(live)
    answer(engine, lambda: {name: tensor.get() for name, tensor in live.items()}, pipe)


class CudaEngineProcess(EngineProcess):
    """Attaches bfloat16 tensors and answers `look` with the version and their bits."""

    _run = staticmethod(_run)
