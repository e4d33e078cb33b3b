"""One rank of SGLang in this process: its model, loaded from a checkpoint by SGLang's own loader."""

from __future__ import annotations

import json
import os
from typing import Any

from sglang.benchmark.one_batch import _init_process_global_configs
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import bootstrap
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.runtime_context import SpawnRanks, get_context, get_device, publish, spawn_world_rank
from sglang.srt.server_args import ServerArgs

from dws.plugins.canonical import Parallel
from dws.sglang import rank_of
from tools.real.capture.cases import MODELS, Case


def _listed(model: str) -> str:
    """Places experts from the last to the first."""
    backwards = list(reversed(range(MODELS[model]["num_experts"])))
    return json.dumps({"physical_to_logical_map": [backwards] * MODELS[model]["num_hidden_layers"]})


def load(case: Case, rank: int, folder: str, port: int) -> tuple[Any, Any, Parallel]:
    """The model, its text config, and the rank."""
    os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(case.ranks)))
    arguments = ServerArgs(
        model_path=folder,
        dtype="bfloat16",
        device="cpu",
        attention_backend="torch_native",
        disable_cuda_graph=True,
        skip_tokenizer_init=True,
        max_total_tokens=4096,
        tp_size=case.tp,
        ep_size=case.tp if case.experts else 1,
        ep_num_redundant_experts=2 if case.experts == "redundant" else 0,
        init_expert_location=_listed(case.model) if case.experts == "listed" else "trivial",
    )
    arguments.resolve_once()
    world_rank = spawn_world_rank(arguments, tp_rank=rank, pp_rank=0)
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=world_rank, gpu_id=rank))
    _init_process_global_configs()
    bootstrap.init_parallel_runtime(
        server_args=arguments, device=get_device().device, dist_port=port
    )
    config = ModelConfig.from_server_args(arguments)
    bootstrap.init_layer_runtime(model_config=config)
    runner = ModelRunner(
        model_config=config, mem_fraction_static=0.1, gpu_id=rank, nccl_port=port, server_args=arguments
    )
    return runner.model, config.hf_text_config, rank_of(get_context().config_leaf, config.hf_text_config).part
