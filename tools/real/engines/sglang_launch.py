"""sglang.launch_server with experts and linear layers in FP8, which it has for processors with AMX: with AMX's kernels for them
in torch. Processes that the server spawns import this module, too.

Its own code packs weights after loading, for these kernels; only they know the order. Other layers compute as on any
processor."""

from __future__ import annotations

import runpy
from typing import Optional, Sequence

import torch
from sglang.srt.layers import amx_utils
from sglang.srt.layers.quantization import fp8

_ROWS, _COLUMNS = 16, 4  # of the blocks of a packed weight
_SIGNATURES = (
    "convert_weight_packed(Tensor weight) -> Tensor",
    "fp8_scaled_mm_cpu(Tensor x, Tensor weight, Tensor scales, int[] block, Tensor? bias, ScalarType dtype, "
    "bool packed) -> Tensor",
    "fused_experts_cpu(Tensor x, Tensor w13, Tensor w2, Tensor weights, Tensor experts, bool inplace, int method, "
    "Tensor? scales13, Tensor? scales2, Tensor? zeros13, Tensor? zeros2, int[]? block, Tensor? bias13, "
    "Tensor? bias2, float? alpha, float? limit, bool packed, str activation) -> Tensor",
)


def convert_weight_packed(weight: torch.Tensor) -> torch.Tensor:
    """Packs blocks of 16 rows: 4 columns of each row after the other."""
    bits = weight.view(torch.uint8)
    *stack, rows, columns = bits.shape
    blocks = bits.reshape(-1, rows // _ROWS, _ROWS, columns // _COLUMNS, _COLUMNS)
    return blocks.transpose(2, 3).reshape(*stack, rows, columns).view(weight.dtype)


def _unpacked(packed: torch.Tensor) -> torch.Tensor:
    bits = packed.view(torch.uint8)
    rows, columns = bits.shape
    blocks = bits.reshape(rows // _ROWS, columns // _COLUMNS, _ROWS, _COLUMNS)
    return blocks.transpose(1, 2).reshape(rows, columns).view(packed.dtype)


def fp8_scaled_mm_cpu(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    block: Sequence[int],
    bias: Optional[torch.Tensor],
    dtype: torch.dtype,
    packed: bool,
) -> torch.Tensor:
    rows, columns = weight.shape
    tiles = scales.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]
    values = (_unpacked(weight) if packed else weight).float() * tiles
    product = x.float() @ values.T
    return (product if bias is None else product + bias.float()).to(dtype)


def fused_experts_cpu(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    inplace: bool,
    method: int,
    scales13: torch.Tensor,
    scales2: torch.Tensor,
    zeros13: None,
    zeros2: None,
    block: Sequence[int],
    bias13: None,
    bias2: None,
    alpha: None,
    limit: None,
    packed: bool,
    activation: str,
) -> torch.Tensor:
    made = torch.zeros_like(x, dtype=torch.float32)
    for expert in experts.unique().tolist():
        if expert < 0:
            continue
        token, place = (experts == expert).nonzero(as_tuple=True)
        both = fp8_scaled_mm_cpu(
            x[token], w13[expert], scales13[expert], block, None, torch.float32, packed
        )
        gate, up = both.chunk(2, -1)
        middle = torch.nn.functional.silu(gate) * up
        out = fp8_scaled_mm_cpu(middle, w2[expert], scales2[expert], block, None, torch.float32, packed)
        made.index_add_(0, token, out * weights[token, place].unsqueeze(-1).float())
    return made.to(x.dtype)


_library = torch.library.Library("sgl_kernel", "FRAGMENT")
for _kernel, _signature in zip(
    (convert_weight_packed, fp8_scaled_mm_cpu, fused_experts_cpu), _SIGNATURES
):
    _library.define(_signature)
    _library.impl(_kernel.__name__, _kernel, "CPU")
amx_utils.cpu_has_amx_support = lambda: True
fp8._is_cpu_amx_available = True

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")
