"""Compares the kernels with the libraries of the field, bit for bit, those of them that this Python has.

A line for each recipe and library; it takes a minute. NaN codes and NaN scales of any sign and payload count as equal; matrices with NaN or infinity
are compared separately, because libraries differ about them. So are groups of MXFP8 at either end of what exponents
reach (RECIPES.md says how libraries differ there): they are not compared."""

from __future__ import annotations

import importlib.metadata
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import numpy.typing as npt

from tests.common.quantise import oracle, oracle_test, samples
from tools.real.report import Report

Array = npt.NDArray[Any]
Outputs = dict[str, Any]  # torch tensors by role


def e4m3() -> Any:
    import torch
    return getattr(torch, "float8_e4m3fn")  # Debian's torch has none, nor types for it


def torch_of(bits: Array) -> Any:
    import torch
    return torch.from_numpy(bits.astype(np.int16)).view(torch.bfloat16)


def compressed_tensors_args(**kwargs: Any) -> Any:
    from compressed_tensors.quantization import QuantizationArgs
    return QuantizationArgs(symmetric=True, **kwargs)


def compressed_tensors_codes(x: Any, scale: Any, args: Any, dtype: Any) -> Any:
    from compressed_tensors.quantization.lifecycle.forward import quantize
    return quantize(x=x, scale=scale, zero_point=None, args=args, dtype=dtype)


def compressed_tensors_fp8(strategy: str) -> Callable[[Any], Outputs]:
    def run(x: Any) -> Outputs:
        from compressed_tensors.quantization.utils import calculate_qparams
        args = compressed_tensors_args(num_bits=8, type="float", strategy=strategy)
        if strategy == "tensor":
            low, high = x.min(), x.max()
        else:
            low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
        scale, _ = calculate_qparams(low, high, args)
        codes = compressed_tensors_codes(x, scale, args, e4m3())
        return {"codes": codes, ("tensor_scale" if strategy == "tensor" else "scales"): scale}
    return run


def compressed_tensors_int4(size: int) -> Callable[[Any], Outputs]:
    def run(x: Any) -> Outputs:
        import torch
        from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
        from compressed_tensors.quantization.utils import calculate_qparams
        args = compressed_tensors_args(num_bits=4, type="int", strategy="group", group_size=size)
        groups = x.unflatten(1, (-1, size))
        scale, _ = calculate_qparams(groups.amin(2), groups.amax(2), args)
        codes = compressed_tensors_codes(x, scale, args, torch.int8)
        return {"codes": pack_to_int32(codes, 4), "scales": scale}
    return run


def compressed_tensors_nvfp4(x: Any) -> Outputs:
    from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
    args = compressed_tensors_args(num_bits=4, type="float", strategy="tensor_group", group_size=16,
                                   scale_dtype=e4m3())
    whole = generate_gparam(x.min(), x.max())
    groups = x.unflatten(1, (-1, 16))
    scale, _ = calculate_qparams(groups.amin(2), groups.amax(2), args, global_scale=whole)
    from compressed_tensors.quantization.lifecycle.forward import quantize
    values = quantize(x=x, scale=scale.float(), zero_point=None, args=args, global_scale=whole)
    return {"codes": pack_fp4_to_uint8(values), "scales": scale.to(e4m3()), "tensor_scale": whole}


def compressed_tensors_mxfp8(x: Any) -> Outputs:
    import torch
    from compressed_tensors.compressors.mx_utils import compress_mx_scale
    from compressed_tensors.quantization.utils import calculate_qparams
    args = compressed_tensors_args(num_bits=8, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8)
    groups = x.unflatten(1, (-1, 32))
    scale, _ = calculate_qparams(groups.amin(2), groups.amax(2), args)
    codes = compressed_tensors_codes(x, scale, args, e4m3())
    return {"codes": codes, "scales": compress_mx_scale(scale, torch.uint8)}


def torchao_mx(mode: str) -> Callable[[Any], Outputs]:
    def run(x: Any) -> Outputs:
        from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
        scale, codes = to_mx(x, e4m3(), 32, ScaleCalculationMode[mode])
        return {"codes": codes, "scales": scale}
    return run


def modelopt_nvfp4(x: Any) -> Outputs:
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
    quantised, scale, second = NVFP4QTensor.quantize(x, 16)
    return {"codes": quantised._quantized_data, "scales": scale, "tensor_scale": second}


def modelopt_mxfp4(x: Any) -> Outputs:
    from modelopt.torch.quantization.qtensor.mxfp4_tensor import MXFP4QTensor
    quantised, scale = MXFP4QTensor.quantize(x, 32)
    return {"codes": quantised._quantized_data, "scales": scale}


def triton_mxfp4(x: Any) -> Outputs:
    """The definition in torch that triton_kernels has beside its kernel."""
    import torch
    from vllm.utils.import_utils import import_triton_kernels
    import_triton_kernels()  # the copy that vLLM has
    from triton_kernels.numerics_details.mxfp import downcast_to_mxfp_torch
    codes, scale = downcast_to_mxfp_torch(x, torch.uint8, 1)
    return {"codes": codes, "scales": scale}


def vllm_block(use_ue8m0: bool) -> Callable[[Any], Outputs]:
    def run(x: Any) -> Outputs:
        from vllm.utils.deep_gemm import per_block_cast_to_fp8
        codes, scale = per_block_cast_to_fp8(x, [128, 128], use_ue8m0=use_ue8m0)
        return {"codes": codes, "scales": scale}
    return run


CHECKS: list[tuple[str, str, Callable[[Any], Outputs]]] = [
    ("fp8-channel/compressed-tensors", "compressed-tensors", compressed_tensors_fp8("channel")),
    ("fp8-tensor/compressed-tensors", "compressed-tensors", compressed_tensors_fp8("tensor")),
    ("int4-g32/amax7.5", "compressed-tensors", compressed_tensors_int4(32)),
    ("int4-g128/amax7.5", "compressed-tensors", compressed_tensors_int4(128)),
    ("nvfp4/compressed-tensors", "compressed-tensors", compressed_tensors_nvfp4),
    ("mxfp8/compressed-tensors", "compressed-tensors", compressed_tensors_mxfp8),
    ("mxfp8/floor", "torchao", torchao_mx("FLOOR")),
    ("mxfp8/even", "torchao", torchao_mx("EVEN")),
    ("mxfp8/rceil", "torchao", torchao_mx("RCEIL")),
    ("nvfp4/modelopt", "nvidia-modelopt", modelopt_nvfp4),
    ("mxfp4-gpt-oss/modelopt", "nvidia-modelopt", modelopt_mxfp4),
    ("mxfp4-gpt-oss/triton-kernels", "vllm", triton_mxfp4),
    ("fp8-block128/deepseek", "vllm", vllm_block(False)),
    ("fp8-block128/deepseek-ue8m0", "vllm", vllm_block(True)),
]


def bytes_of(tensor: Any) -> Array:
    """The bytes of a torch tensor, NaN as the recipes write it."""
    import torch
    dtypes: dict[Any, tuple[Any, int, int, int]] = {
        torch.float32: (np.uint32, 0x7FFFFFFF, 0x7F800000, 0x7FC00000),
        torch.bfloat16: (np.uint16, 0x7FFF, 0x7F80, 0x7FC0),
        e4m3(): (np.uint8, 0x7F, 0x7E, 0x7F),
    }
    raw = np.frombuffer(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), np.uint8)
    if tensor.dtype not in dtypes:
        return raw
    dtype, mask, largest, canonical = dtypes[tensor.dtype]
    values = raw.view(dtype)
    return np.where((values & mask) > largest, dtype(canonical), values).view(np.uint8)


def is_finite(bits: Array) -> bool:
    return bool(np.all((bits & 0x7F80) != 0x7F80))


def matrices() -> Iterator[tuple[str, Array]]:
    for name, bits in samples.cases(128, 20):
        if bits.shape[0] != 1:
            continue
        yield name, bits
        if not is_finite(bits):
            yield name + ", finite part", np.where((bits & 0x7F80) == 0x7F80, bits & 0x807F, bits).astype(np.uint16)


def compare(recipe: str, run: Callable[[Any], Outputs]) -> tuple[list[str], list[str]]:
    """What differs, on finite matrices and on others."""
    differences: tuple[list[str], list[str]] = ([], [])
    with tempfile.TemporaryDirectory() as folder:
        for name, bits in matrices():
            turned = np.ascontiguousarray(np.swapaxes(bits, 1, 2)) if oracle.is_transposed(recipe) else bits
            found = oracle_test.run(recipe, "portable", turned, Path(folder))
            theirs = run(torch_of(bits[0]))
            compared = np.array([True])
            if recipe.startswith("mxfp8"):
                exponents = np.frombuffer(found["scales"], np.uint8)
                compared = (exponents != 0) & (exponents != 255)
            for role, tensor in theirs.items():
                ours, other = np.frombuffer(found[role], np.uint8), bytes_of(tensor)
                if compared.size > 1 and ours.size == other.size:
                    ours, other = (part.reshape(compared.size, -1)[compared].reshape(-1) for part in (ours, other))
                count = int(np.sum(ours != other)) if ours.size == other.size else -1
                if count:
                    at = int(np.flatnonzero(ours != other)[0]) if count > 0 else 0
                    differences[0 if is_finite(bits) else 1].append(
                        f"{name}: {count} of {ours.size} bytes of {role}, the first is {at}")
    return differences


def main() -> int:
    report = Report("recipes")
    for recipe, library, run in CHECKS:
        try:
            version = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            report.skipped(recipe, f"{library} is not installed")
            continue
        try:
            finite, other = compare(recipe, run)
        except Exception as error:  # pylint: disable=broad-except  # any library's any failure is a line of its own
            report.failed(recipe, f"{library} {version}: {type(error).__name__}: {error}")
            continue
        say = report.failed if finite else report.ok
        say(recipe, f"{library} {version}" + (", but for NaN and infinity" if other else ""))
        for line in finite + ([f"(not finite) {line}" for line in other] if "--verbose" in sys.argv else []):
            print(f"           {line}")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
