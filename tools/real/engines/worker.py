"""dws.vllm's extension, in worker processes of vLLM on the CPU. Importing it, which happens before the model is
built, keeps vLLM's weights where builds for GPUs have them, experts and FP8 too: as parameters."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from vllm.model_executor.kernels.linear.scaled_mm import cpu as linear
from vllm.model_executor.layers.fused_moe.experts import cpu_moe

from tools.real.vllm_worker import WorkerExtension

__all__ = ["WorkerExtension"]


def _keep_experts() -> None:
    """The experts' kernel takes packed weights in place of the parameters. Here every call packs them."""
    experts = cpu_moe.CPUUnquantizedExperts
    compute, signature = experts.apply, inspect.signature(experts.apply)

    def loaded(self: Any, layer: torch.nn.Module) -> None:
        self._use_zentorch = False
        self._pad_moe_intermediate(layer)

    def computed(self: Any, *arguments: Any, **named: Any) -> None:
        bound = signature.bind(self, *arguments, **named)
        for name in ("w1", "w2"):
            packed = cpu_moe.cpu_prepack_moe_weight(bound.arguments[name], self.isa)
            bound.arguments[name] = packed
        compute(*bound.args, **bound.kwargs)

    experts.process_weights_after_loading = loaded
    experts.apply = computed


def _compute_fp8() -> None:
    """The kernels of FP8 pack their weights, which is to be checked. They are chosen on processors with tile
    instructions only, and run on others too."""
    linear.CPUFp8BlockScaledMMKernel.is_supported = classmethod(lambda cls, capability=None: (True, None))
    cpu_moe.CPUExpertsFp8._supports_current_device = staticmethod(lambda: True)


_keep_experts()
_compute_fp8()
