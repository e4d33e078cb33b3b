"""Shared by the tests of dws.vllm: a worker of the stand-in for vLLM, and a stand-in for the receiver."""

from __future__ import annotations

import os
import sys
import tempfile
import types
import unittest
from typing import Any

import numpy as np

from tests.clients.python.engine_models import Config, RankModel
from tests.clients.python.fake_daemons import FakeReceiver

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_engines"))

import vllm  # noqa: E402
from vllm.config import vllm_config  # noqa: E402
from vllm.distributed import parallel_state  # noqa: E402
from vllm.v1.core.sched.output import SchedulerOutput  # noqa: E402
from vllm.v1.executor.ray_utils import RayWorkerWrapper  # noqa: E402

SMALL = Config(num_hidden_layers=1, vocab_size=100)
NORM = "model.norm.weight"

# Arguments of execute_model: a step with a token, and one with nothing to run.
SCHEDULED = SchedulerOutput(total_num_scheduled_tokens=1)
NOTHING = SchedulerOutput(total_num_scheduled_tokens=0)


def norm_now(live: Any) -> float:
    """A tensor that stands for all weights: tests change only this one."""
    return float(live.tensor(NORM)[0])


def config(model: Config = SMALL, **parallel: Any) -> types.SimpleNamespace:
    """Hidden states are the weights they were computed with; logits are these and the weights of their own pass."""
    size = parallel.setdefault("tensor_parallel_size", 1)
    return vllm_config(
        {"world_size": size, **parallel},
        hf_text_config=model,
        make_model=lambda rank: RankModel(model, rank, size),
        hidden_states=lambda live, batch: norm_now(live),
        compute_logits=lambda live, hidden: (hidden, norm_now(live)),
    )


class VllmCase(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.receiver = FakeReceiver(folder.name)
        self.addCleanup(lambda: self.receiver.stop())
        parallel_state.set_tp_group(0, 1, None)

    def worker(self, vllm_config: Any = None, rank: int = 0) -> Any:
        """A worker in Ray's wrapper, which also works for the other executors."""
        wrapper = RayWorkerWrapper()
        wrapper.init_worker(vllm_config or config(), rank)
        wrapper.load_model()
        return wrapper

    def attached(self, vllm_config: Any = None, **options: Any) -> tuple[Any, Any, Any]:
        """The worker, and the two ends of its lease."""
        worker = self.worker(vllm_config)
        worker.execute_method("dws_attach", socket=self.receiver.socket, **options)
        self.addCleanup(worker.worker._dws_attached.close)
        down, up = self.receiver.leases.get(timeout=20)
        up.get(timeout=20)
        return worker, down, up

    def write_norm(self, value: float) -> None:
        """Writes the engine's memory like a commit."""
        norm = next(view for view in self.receiver.attached.views if view.tensor == NORM)
        memory = np.frombuffer(self.receiver.writable_region(), np.uint16)
        bfloat16 = int(np.float32(value).view(np.uint32)) >> 16
        memory[norm.offset_bytes // 2 :][: SMALL.hidden_size] = bfloat16


def step(worker: Any, scheduled: Any = SCHEDULED) -> Any:
    """Runs one step like vLLM's engine."""
    output = worker.execute_model(scheduled)
    return worker.sample_tokens(None) if output is None else output
