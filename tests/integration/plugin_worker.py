"""One rank of an engine in its own process: a worker of the stand-in for vLLM with dws.vllm's extension and
the weight transfer backend "dws", driven over a pipe as vLLM's executor drives its workers: the two calls of a step arrive one by one."""

from __future__ import annotations

import multiprocessing
import os
import sys
import types
from typing import Any

import torch
import torch.distributed

import dws.vllm
from tests.clients.python import engine_models
from tests.clients.python.engine_models import Checkpoint, Config, RankModel

TOKENS = torch.tensor([3, 77, 130, 5])
DTYPE = torch.float32


def _run(rank: int, size: int, store: str, config: Config, v2: bool, pipe: Any) -> None:
    """Serves calls: (method, kwargs) to (True, result) or (False, error), until None."""
    clients = os.path.join(os.path.dirname(os.path.abspath(engine_models.__file__)), "fake_engines")
    sys.path.insert(0, clients)
    from vllm.config import vllm_config
    from vllm.distributed import parallel_state
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    dws.vllm.register()
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size
    )
    group = torch.distributed.new_group(backend="gloo")
    parallel_state.set_tp_group(rank, size, group)
    # For the collectives of a forward pass, separate from those of the ranks' agreement.
    collective = torch.distributed.new_group(backend="gloo")

    def reduce(part: torch.Tensor) -> torch.Tensor:
        torch.distributed.all_reduce(part, group=collective)
        return part

    worker = WorkerWrapperBase()
    worker.init_worker(
        vllm_config(
            {"tensor_parallel_size": size, "world_size": size},
            hf_text_config=config,
            make_model=lambda rank: RankModel(config, rank, size, dtype=DTYPE),
            hidden_states=lambda model, batch: engine_models.hidden_states(model, TOKENS, reduce),
            compute_logits=lambda model, hidden: engine_models.logits(model, hidden, reduce),
            use_v2_model_runner=v2,
            weight_transfer_config=types.SimpleNamespace(backend="dws"),
        ),
        rank,
    )
    worker.load_model()
    extra = {
        "reference": lambda weights: _reference(
            worker.model_runner.get_model(), config, weights, reduce
        ),
        "execute_model": lambda: worker.execute_model(SchedulerOutput(len(TOKENS))),
        "sample_tokens": lambda: _arrays(worker.sample_tokens(None)),
    }
    for method, kwargs in iter(pipe.recv, None):
        try:
            call = extra.get(method) or (lambda **given: worker.execute_method(method, **given))
            pipe.send((True, call(**kwargs)))
        except Exception as error:  # like an executor: the driver raises it
            pipe.send((False, f"{type(error).__name__}: {error}"))
    worker.execute_method("dws_detach")
    worker.execute_method("shutdown_weight_transfer_engine")
    torch.distributed.destroy_process_group()


def _arrays(output: Any) -> tuple[Any, Any]:
    """The logits of sampled tokens and those of prompt tokens."""
    return output.logits.numpy(), output.prompt_logits.numpy()


def _reference(live: RankModel, config: Config, weights: Checkpoint, reduce: Any) -> dict[str, Any]:
    """A model that loads `weights` the engine's own way: returns its logits, and the names in which the live one
    differs from it (except padding, which is never loaded)."""
    loaded = RankModel(config, live.tp_rank, live.tp_size, dtype=DTYPE)
    loaded.load_weights(weights)
    differs = [
        name
        for name, tensor in loaded.named_parameters()
        if not torch.equal(tensor.view(torch.int32), live.tensor(name).view(torch.int32))
    ]
    hidden = engine_models.hidden_states(loaded, TOKENS, reduce)
    return {"logits": engine_models.logits(loaded, hidden, reduce).numpy(), "differs": differs}


class WorkerProcess:
    """Lifecycle: send and then receive; end, then stop: ranks detach together."""

    def __init__(self, rank: int, size: int, store: str, config: Config, v2: bool) -> None:
        """Args:
        store: a file through which the ranks find each other.
        v2: with the V2 model runner.
        """
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_run, args=(rank, size, store, config, v2, theirs), daemon=True
        )
        self.process.start()
        theirs.close()

    def send(self, method: str, **kwargs: Any) -> None:
        self._pipe.send((method, kwargs))

    def receive(self) -> Any:
        """Raises RuntimeError with what the worker raised."""
        fine, result = self._pipe.recv()
        if not fine:
            raise RuntimeError(result)
        return result

    def end(self) -> None:
        self._pipe.send(None)

    def stop(self) -> None:
        self.process.join(20)
        if self.process.exitcode is None:
            self.process.kill()
        self._pipe.close()
