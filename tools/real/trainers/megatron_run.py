"""A GPTModel of Megatron-Core on the CPU, by torchrun: every rank publishes its share of the checkpoint's tensors through
its own sender. The engine has to have the bits that all ranks together declare, and a model of transformers with these
weights has to compute what Megatron computes. Between versions each weight becomes a function of itself: nothing is
trained.

    qwen3          tensor and pipeline parallelism of 2 each, tied words
    qwen3-tp4      tensor parallelism of 4, for 2 key-value heads; tied words
    qwen3-moe      pipeline and expert parallelism of 2 each
    qwen3-moe-etp  tensor and expert parallelism of 2 each, each expert cut in 2
"""

from __future__ import annotations

import argparse
import contextlib
import zlib
from typing import Any

import torch
import torch.distributed as dist

# Before Megatron is imported, which needs CUDA devices in a few places.
torch.cuda.current_device = lambda: torch.device("cpu")
torch.Tensor.cuda = lambda tensor, *_, **__: tensor

from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig

import dws
from dws.trainers.megatron_weights import MegatronWeights, copy_piece
from dws.trainers.publisher import Publisher
from dws.trainers.shares import shares_of
from tools.real.trainers import models
from tools.real.trainers.comparison import Comparison

STEPS = 3
TOKENS = 8
PADDED_WORDS = 72  # every number of ranks here divides it
DIFFERENCE_MAX = 1e-4  # of logits, which are of size 1
# (tp, pp, ep, etp); experts if the name has moe.
LAYOUTS = {
    "qwen3": (2, 2, 1, 1),
    "qwen3-moe": (1, 2, 2, 1),
    "qwen3-tp4": (4, 1, 1, 1),
    "qwen3-moe-etp": (2, 1, 2, 2),
}


def make(layout: str, config: Any) -> Any:
    """This rank's GPTModel, without CUDA's generators and kernels."""
    tp, pp, ep, etp = LAYOUTS[layout]
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
    )
    megatron_random.CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
    moe_utils.te_general_gemm = None
    experts = getattr(config, "num_experts", None)
    of_experts = {
        "num_moe_experts": experts,
        "moe_ffn_hidden_size": getattr(config, "moe_intermediate_size", None),
        "moe_router_topk": getattr(config, "num_experts_per_tok", 2),
        "moe_router_pre_softmax": True,
        "moe_router_load_balancing_type": "none",
        "moe_token_dispatcher_type": "allgather",
    }
    transformer = TransformerConfig(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        num_query_groups=config.num_key_value_heads,
        kv_channels=config.head_dim,
        ffn_hidden_size=config.intermediate_size,
        normalization="RMSNorm",
        layernorm_epsilon=config.rms_norm_eps,
        qk_layernorm=True,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        pipeline_dtype=torch.float32,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
        **(of_experts if experts else {}),
    )
    spec = get_gpt_layer_local_spec(
        num_experts=experts, moe_grouped_gemm=False, qk_layernorm=True, normalization="RMSNorm"
    )
    return GPTModel(
        transformer,
        spec,
        vocab_size=PADDED_WORDS,
        max_sequence_length=32,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=config.tie_word_embeddings,
        position_embedding_type="rope",
    ).eval()


def place(layout: str) -> dws.declare.Parallel:
    return dws.declare.Parallel(
        *LAYOUTS[layout],
        tp_rank=parallel_state.get_tensor_model_parallel_rank(),
        pp_rank=parallel_state.get_pipeline_model_parallel_rank(),
        ep_rank=parallel_state.get_expert_model_parallel_rank(),
        etp_rank=parallel_state.get_expert_tensor_parallel_rank(),
    )


def initialise(model: Any, at: dws.declare.Parallel) -> None:
    """Gives replicas equal values, and all other ranks different ones."""
    for name, parameter in model.named_parameters():
        first = model.decoder.layers[0].layer_number
        if name == "output_layer.weight" and model.share_embeddings_and_output_weights:
            name = "embedding.word_embeddings.weight"
        rank = at.tp_rank if getattr(parameter, "tensor_model_parallel", False) else 0
        if ".experts." in name:
            rank = (at.ep_rank, at.etp_rank)
        seed = zlib.crc32(f"{name} {first if 'layers' in name else ''} {rank}".encode())
        values = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
        parameter.data.copy_(1 + 0.1 * values if "norm" in name else 0.1 * values)


def step(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.sin(parameter * 100), alpha=0.02)


def logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """The logits of the whole vocabulary, equal on all ranks of the last stage. A collective call."""
    count = tokens.shape[1]
    positions = torch.arange(count)[None].expand(*tokens.shape)
    mask = torch.ones(count, count, dtype=torch.bool).triu(1)[None, None]
    with torch.no_grad():
        if not model.pre_process:
            hidden = torch.empty(count, tokens.shape[0], model.config.hidden_size)
            dist.recv(hidden, parallel_state.get_pipeline_model_parallel_prev_rank())
            model.set_input_tensor(hidden)
        found = model(tokens, positions, mask)
        if not model.post_process:
            dist.send(found.contiguous(), parallel_state.get_pipeline_model_parallel_next_rank())
            return found
        group = parallel_state.get_tensor_model_parallel_group()
        parts = [torch.empty_like(found) for _ in range(group.size())]
        dist.all_gather(parts, found.contiguous(), group=group)
    return torch.cat(parts, -1)[..., : models.VOCABULARY]


def checkpoint(model: Any, tensors: dws.declare.MegatronTensors) -> dict[str, torch.Tensor]:
    """Puts together what all ranks declare. A collective call."""
    declared: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(declared, MegatronWeights(tensors).declared)
    own = dict(model.named_parameters())
    mine = {}
    for name, share in shares_of(declared)[dist.get_rank()].items():
        shape = [end - begin for begin, end in share.ranges]
        part = torch.full(shape, torch.nan)
        for source in tensors.held[name].sources:
            copy_piece(source.piece, own[source.name].detach(), part, share)
        mine[name] = (share, part)
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, mine)
    whole: dict[str, torch.Tensor] = {}
    for each in gathered:
        for name, (share, part) in each.items():
            into = whole.setdefault(name, torch.full(share.spec.shape, torch.nan))
            into[tuple(slice(*each) for each in share.ranges)].copy_(part)
    return whole


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("sender", "receiver", "job-id", "seen", "dtype", "layout"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    kind = "qwen3-moe" if "moe" in options.layout else "qwen3"
    reference = models.make(kind, seed=5)
    model = make(options.layout, reference.config)
    initialise(model, place(options.layout))
    tensors = dws.declare.from_megatron(model, reference.config, place(options.layout))
    publisher = Publisher(options.sender, options.job_id)
    publisher.register(tensors)
    comparison = Comparison(options.seen, options.dtype)
    tokens = torch.randint(
        models.VOCABULARY, (2, TOKENS), generator=torch.Generator().manual_seed(7)
    )
    last, worst = dist.get_world_size() - 1, torch.zeros(1)
    for version in range(1, STEPS + 1):
        publisher.publish(version)
        publisher.wait(version, "all", timeout=60)
        whole = checkpoint(model, tensors)
        found = logits(model, tokens)
        if dist.get_rank() == 0:
            comparison.check(version, whole)
        if dist.get_rank() == last:
            for name, tensor in dws.declare.from_module(reference).items():
                tensor.detach().copy_(whole[name])
            wanted = reference(tokens).logits.detach()
            worst = torch.maximum(worst, (wanted - found).abs().max().reshape(1))
        dist.broadcast(worst, src=last)
        assert worst.item() <= DIFFERENCE_MAX, f"logits differ by {worst.item()}"
        step(model)
    publisher.close()
    if dist.get_rank() == 0:
        print(f"ok: {comparison.report()}, logits differ by at most {worst.item():.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
