"""Small checkpoints with random weights, as transformers saves them. Run by an engine's Python."""

from __future__ import annotations

import os

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tools.real.capture.cases import MODELS


def make(folder: str, name: str) -> str:
    """The folder of a model's checkpoint in `folder`, made unless it is there."""
    path = os.path.join(folder, name)
    if os.path.isdir(path):
        return path
    config = AutoConfig.for_model(name.partition("-")[0], **MODELS[name])
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        # Everything that is saved; no two elements that could be taken for each other.
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point() and tensor.dim():
                tensor.copy_(torch.randn(tensor.shape))
    model.save_pretrained(path)
    return path
