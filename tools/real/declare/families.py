"""Compares dws.declare with transformers, which this Python has.

A small random model of each family is saved by transformers itself. Its checkpoint must have the names that
dws.declare.from_module gives for the module, and the same bits. A family whose experts dws.declare does not know
must be refused."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

import dws
from dws.declare.experts import FAMILIES
from tools.real.report import Report

# Sizes that replace those of a family's config, if it has them.
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 16,
    "vocab_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DENSE = ("gemma3_text", "llama", "mistral", "phi3", "qwen2", "qwen3")
UNKNOWN = ("granitemoe", "llama4_text", "phimoe")


def random_model(family: str) -> Any:
    """Makes a model whose tensors are all random, including those that start as zeros."""
    config = AutoConfig.for_model(family)
    for name, value in SIZES.items():
        if hasattr(config, name):
            setattr(config, name, value)
    for name in ("layer_types", "mlp_layer_types"):  # one for each layer
        kinds = getattr(config, name, None)
        if kinds:
            setattr(config, name, [kinds[0], kinds[-1]])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in dws.named_tensors(model).values():
            tensor.copy_(torch.randn(tensor.shape, generator=random))
    return model


def saved(model: Any) -> dict[str, torch.Tensor]:
    """The checkpoint that transformers writes."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(os.path.join(folder, "model.safetensors"))


def difference(declared: dws.declare.ModuleTensors, checkpoint: dict[str, torch.Tensor]) -> str:
    """Describes the first difference; empty if there is none."""
    names = sorted(set(declared) ^ set(checkpoint))
    if names:
        return f"{len(names)} names are on one side only, the first is '{names[0]}'"
    for name, tensor in declared.items():
        expected = checkpoint[name]
        if (tensor.dtype, tensor.shape) != (expected.dtype, expected.shape):
            return f"'{name}': {tensor.dtype} {list(tensor.shape)}, saved {expected.dtype} {list(expected.shape)}"
        if not torch.equal(tensor, expected):
            return f"'{name}' has other values"
    return ""


def known(family: str, report: Report) -> None:
    """Checks that dws.declare gives the family as transformers saves it."""
    model = random_model(family)
    checkpoint = saved(model)
    declared = dws.declare.from_module(model)
    found = difference(declared, checkpoint)
    if found:
        report.failed(family, found)
    else:
        report.ok(family, f"{len(checkpoint)} tensors equal")


def refused(family: str, report: Report) -> None:
    """Checks that dws.declare refuses the family by name."""
    try:
        dws.declare.from_module(random_model(family))
    except dws.LayoutError as error:
        report.ok(family, f"refused: {str(error).split(' has ')[0]}")
    else:
        report.failed(family, "is not refused")


def main() -> int:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    report = Report(f"transformers {transformers.__version__}, torch {torch.__version__}")
    for family in (*FAMILIES, *DENSE):
        known(family, report)
    for family in UNKNOWN:
        refused(family, report)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
