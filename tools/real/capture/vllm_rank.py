"""One rank of vLLM in this process: its model, loaded from a checkpoint by vLLM's own loader."""

from __future__ import annotations

import os
from typing import Any

import tools.real.engines.worker  # noqa: F401  keeps weights as parameters
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.distributed.parallel_state import get_tp_group, get_world_group
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model

from dws.plugins.canonical import Parallel
from dws.plugins.vllm_config import Groups, rank_of, text_config
from tools.real.capture.cases import Case


def load(case: Case, rank: int, folder: str, port: int) -> tuple[Any, Any, Parallel]:
    """The model, its text config, and the rank."""
    replica, number = divmod(rank, case.tp * case.pp)
    os.environ.update(VLLM_DP_SIZE=str(case.dp), VLLM_DP_RANK=str(replica), VLLM_DP_MASTER_PORT=str(port))
    config = EngineArgs(
        model=folder,
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        kv_cache_memory_bytes=32 << 20,
        max_model_len=256,
        tensor_parallel_size=case.tp,
        pipeline_parallel_size=case.pp,
        enable_expert_parallel=case.experts is not None,
        expert_placement_strategy=case.experts or "linear",
    ).create_engine_config()
    config.parallel_config.rank = number
    os.environ["VLLM_DIST_IDENT"] = f"dws-{port}"  # as vLLM's worker does, of its communicator
    with set_current_vllm_config(config):
        at = f"tcp://127.0.0.1:{port}"
        init_distributed_environment(case.tp * case.pp, number, at, number, backend="gloo")
        initialize_model_parallel(case.tp, case.pp)
        model = get_model(vllm_config=config)
        return model, text_config(config), rank_of(config, Groups(get_tp_group(), get_world_group())).part
