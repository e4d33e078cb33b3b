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


_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _mxfp4_weights(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[experts, rows, columns] of what _compute_mxfp4 has packed."""
    codes = packed.flip(1)
    magnitudes = torch.tensor([*_E2M1, *(-value for value in _E2M1)])
    values = magnitudes[torch.stack([codes & 15, codes >> 4], -1).long()].reshape(*scales.shape, 32)
    return torch.ldexp(values, scales.flip(1).int().unsqueeze(-1) - 127).flatten(2)


def _compute_mxfp4() -> None:
    """vLLM's kernel of MXFP4 for the CPU needs AMX. In its place: torch, with an order of its own that vLLM's code for AMX
    packs the weights in."""
    experts = cpu_moe.CPUExpertsMxfp4
    signature = inspect.signature(experts.apply)

    def packed(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.flip(1).contiguous() for tensor in tensors)

    def computed(self: Any, *arguments: Any, **named: Any) -> None:
        given = signature.bind(self, *arguments, **named).arguments
        up, down = _mxfp4_weights(given["w1"], self.w1_scale), _mxfp4_weights(given["w2"], self.w2_scale)
        up_bias, down_bias = self.quant_config.w1_bias.float(), self.quant_config.w2_bias.float()
        for token, tokens in enumerate(given["hidden_states"].float()):
            total = torch.zeros(down.shape[1])
            for weight, expert in zip(given["topk_weights"][token].tolist(), given["topk_ids"][token].tolist()):
                both = torch.mv(up[expert], tokens) + up_bias[expert]
                gate, linear = both[0::2].clamp(max=7.0), both[1::2].clamp(-7.0, 7.0)
                inner = (linear + 1) * gate * torch.sigmoid(1.702 * gate)
                total += weight * (torch.mv(down[expert], inner) + down_bias[expert])
            given["output"][token].copy_(total)

    experts._supports_current_device = staticmethod(lambda: True)
    experts.apply = computed
    cpu_moe.prepare_mxfp4_moe_layer_for_cpu = packed


_keep_experts()
_compute_fp8()
_compute_mxfp4()
