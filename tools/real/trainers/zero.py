"""DeepSpeed on the CPU, for the programs that train with it. Importing this imports it."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed

# Its shared-memory collectives would have to be compiled; gloo needs no compiler. deepspeed.comm.torch is torch itself.
setattr(sys.modules["deepspeed.comm.torch"], "build_shm_op", lambda: None)


def configuration(stage: int, **zero: Any) -> dict[str, Any]:
    """The configuration for BF16 weights and batches of 2. In stage 3 some small weights stay gathered.

    Args:
      zero: further options of zero_optimization.
    """
    if stage == 3:
        zero.update(stage3_param_persistence_threshold=40)
        zero.update(stage3_gather_16bit_weights_on_model_save=True)
    return {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, **zero},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def gathered(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The full state. A collective call."""
    cut = [parameter for parameter in module.parameters() if hasattr(parameter, "ds_id")]
    with deepspeed.zero.GatheredParameters(cut):
        return {name: tensor.clone() for name, tensor in module.state_dict().items()}
