"""What slime and miles do without peer-to-peer transfers, on CPUs: rank 0 gathers each tensor from the trainer
ranks and broadcasts it whole to every engine rank, which loads its part. torch.distributed with gloo."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from typing import Any

from tools.bench.full_weights.shapes import Shapes

_TIMEOUT_SECONDS = 600.0


def _run(rank: int, meeting: str, shapes: Shapes, pipe: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=shapes.ranks + shapes.tp)
    trainers = dist.new_group(list(range(shapes.ranks)))
    specs = shapes.specs()
    rows, columns = specs[0].shape
    part = torch.full((rows // shapes.ranks, columns), rank + 1, dtype=torch.bfloat16)
    parts = [torch.empty_like(part) for _ in range(shapes.ranks)]
    whole = torch.empty((rows, columns), dtype=torch.bfloat16)
    live = [torch.zeros(shape, dtype=torch.bfloat16) for shape in shapes.engine_shapes().values()]
    if rank < shapes.ranks:
        live = []
    for _ in iter(pipe.recv, "stop"):
        dist.barrier()
        begin = time.monotonic()
        for i in range(len(specs)):
            if rank < shapes.ranks:
                dist.gather(part.view(torch.uint8), [p.view(torch.uint8) for p in parts] if rank == 0 else None,
                            group=trainers)  # fmt: skip
                if rank == 0:
                    torch.cat(parts, out=whole)
            dist.broadcast(whole.view(torch.uint8), 0)
            if rank >= shapes.ranks:
                live[i].copy_(whole.chunk(shapes.tp, 1 if shapes.by_columns(i) else 0)[rank - shapes.ranks])
        dist.barrier()
        pipe.send(time.monotonic() - begin)
    dist.destroy_process_group()


class GlooBroadcast:
    """Trainer and engine ranks, a process each. A context manager."""

    def __init__(self, shapes: Shapes) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()  # where ranks meet: no port that another may take
        meeting = os.path.join(self._folder.name, "ranks")
        self._pipes, self._processes = [], []
        for rank in range(shapes.ranks + shapes.tp):
            ours, theirs = context.Pipe()
            process = context.Process(target=_run, args=(rank, meeting, shapes, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def seconds(self) -> float:
        for pipe in self._pipes:
            pipe.send("go")
        times = []
        for pipe in self._pipes:
            if not pipe.poll(_TIMEOUT_SECONDS):
                raise RuntimeError("the broadcast does not end")
            times.append(pipe.recv())
        return float(max(times))

    def __enter__(self) -> "GlooBroadcast":
        return self

    def __exit__(self, *unused: Any) -> None:
        for pipe in self._pipes:
            pipe.send("stop")
        for process in self._processes:
            process.join()
        self._folder.cleanup()
