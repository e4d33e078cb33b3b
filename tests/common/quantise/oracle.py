"""What each recipe of RECIPES.md writes, in numpy: restated from the definitions, and sharing no trick with the kernels. Codes are
looked up in tables of all the values that a format has, made from the format's definition."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Outputs = dict[str, Array]  # by role: codes, scales, tensor_scale; bytes are what counts


def float_table(exponent_bits: int, mantissa_bits: int, count: int) -> Array:
    """The values of the codes 0 to count - 1 of a small float with bias 2^(exponent_bits - 1) - 1."""
    bias = 2 ** (exponent_bits - 1) - 1
    values = []
    for code in range(count):
        exponent, mantissa = code >> mantissa_bits, code % 2 ** mantissa_bits
        if exponent == 0:
            values.append(mantissa * 2.0 ** (1 - bias - mantissa_bits))
        else:
            values.append((1 + mantissa / 2 ** mantissa_bits) * 2.0 ** (exponent - bias))
    return np.array(values, np.float64)


E4M3 = float_table(4, 3, 127)  # 0x7F is NaN
E2M1 = float_table(2, 1, 8)


def nearest(table: Array, magnitudes: Array) -> Array:
    """The code of the nearest value, of two as near the even one; the largest code for what is above it."""
    exact = magnitudes.astype(np.float64)
    middles = (table[:-1] + table[1:]) / 2  # exact: a bit more than the values have
    above = np.searchsorted(middles, exact, side="left")  # of a tie: the lower code
    tie = (above < len(middles)) & (middles[np.minimum(above, len(middles) - 1)] == exact)
    return np.where(tie & (above % 2 == 1), above + 1, above).astype(np.uint8)


def e4m3(quotients: Array) -> Array:
    codes = nearest(E4M3, np.abs(np.nan_to_num(quotients, nan=0, posinf=1e9, neginf=-1e9)))
    codes |= np.where(np.signbit(quotients), 0x80, 0).astype(np.uint8)
    return np.where(np.isnan(quotients), np.uint8(0x7F), codes).astype(np.uint8)


def e4m3_value(codes: Array) -> Array:
    table = np.append(E4M3, np.nan).astype(np.float32)
    values: Array = np.where(codes & 0x80, -table[codes & 0x7F], table[codes & 0x7F])
    return values


def e2m1(quotients: Array) -> Array:
    codes = nearest(E2M1, np.abs(np.nan_to_num(quotients, nan=0, posinf=1e9, neginf=-1e9)))
    return np.where(np.isnan(quotients), 0, codes | np.where(quotients < 0, 8, 0)).astype(np.uint8)


def int4(quotients: Array) -> Array:
    numbers = np.rint(np.clip(np.nan_to_num(quotients, nan=0, posinf=7, neginf=-8), -8, 7))
    codes: Array = (numbers + 8).astype(np.uint8)
    return codes


def pack(codes: Array) -> Array:
    packed: Array = (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)
    return packed


def bf16_bits(values: Array) -> Array:
    """Nearest even, of float32; every NaN is 0x7FC0."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    low, high = bits & 0xFFFF, bits >> 16
    up = (low > 0x8000) | ((low == 0x8000) & (high % 2 == 1))
    return np.where(np.isnan(values), 0x7FC0, high + up).astype(np.uint16)


def bf16(values: Array) -> Array:
    return widen(bf16_bits(values))


def widen(bits: Array) -> Array:
    return np.ascontiguousarray(bits.astype(np.uint32) << 16).view(np.float32)


def f32_bits(values: Array) -> Array:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return np.where(np.isnan(values), np.uint32(0x7FC00000), bits).astype(np.uint32)


def amax_of(values: Array, axes: tuple[int, ...]) -> Array:
    largest: Array = np.max(np.abs(values), axis=axes, keepdims=True)  # a NaN stays one
    return largest


F32 = np.float32


def at_least(values: Array, least: Any) -> Array:
    larger: Array = np.maximum(values, F32(least))  # a NaN stays one
    return larger


def power_of_two_above(scale: Array) -> Array:
    mantissa, exponent = np.frexp(np.nan_to_num(scale.astype(np.float64), nan=2.0 ** 128, posinf=2.0 ** 128))
    exponent = np.where(mantissa == 0.5, exponent - 1, exponent)
    return np.ldexp(1.0, np.clip(exponent, -126, 127)).astype(F32)


def block(x: Array, side: int, kind: str) -> Outputs:
    matrices, rows, columns = x.shape
    down, across = -(-rows // side), -(-columns // side)
    padded = np.zeros((matrices, down * side, across * side), F32)
    padded[:, :rows, :columns] = x
    tiles = padded.reshape(matrices, down, side, across, side)
    scale = at_least(amax_of(tiles, (2, 4)), 1e-4) / F32(448)
    if kind == "deepseek-ue8m0":
        scale = power_of_two_above(scale)
    quotients = tiles / scale if kind == "deepseek-divide" else tiles * (F32(1) / scale)
    codes = e4m3(quotients).reshape(padded.shape)[:, :rows, :columns]
    return {"codes": codes, "scales": f32_bits(scale.reshape(matrices, down, across))}


def vllm_channel(x: Array) -> Outputs:
    scale = at_least(amax_of(x, (2,)) / F32(448), F32(1) / F32(448 * 512))
    return {"codes": e4m3(x / scale), "scales": f32_bits(scale)}


def compressed_scale(amax: Array, divisor: float) -> Array:
    scale = bf16(amax / F32(divisor))
    return np.where(scale == 0, F32(2.0 ** -7), scale)


def compressed_channel(x: Array) -> Outputs:
    scale = compressed_scale(amax_of(x, (2,)), 448)
    return {"codes": e4m3(bf16(x / scale)), "scales": bf16_bits(scale)}


def vllm_tensor(x: Array, amax: Array) -> Outputs:
    scale = amax / F32(448)
    reciprocal = F32(1) / scale
    reciprocal = np.where(np.isinf(reciprocal), F32(0), reciprocal)
    return {"codes": e4m3(x * reciprocal), "tensor_scale": f32_bits(scale)}


def compressed_tensor(x: Array, amax: Array) -> Outputs:
    scale = compressed_scale(amax, 448)
    return {"codes": e4m3(bf16(x / scale)), "tensor_scale": bf16_bits(scale)}


def groups_of(x: Array, size: int) -> Array:
    return x.reshape(x.shape[0], x.shape[1], x.shape[2] // size, size)


def mx_exponent(amax: Array, mode: str) -> Array:
    """Biased; 255 stands for NaN."""
    value = amax.astype(np.float64)
    if mode == "rceil":
        value = (amax * F32(1 / 448)).astype(np.float64)
    finite = np.isfinite(value)
    value = np.where(finite, value, 1)
    mantissa, exponent = np.frexp(value)  # value = mantissa * 2^exponent, mantissa in [0.5, 1), or both are 0
    floor = np.where(value == 0, -1000, exponent - 1)
    if mode == "rceil":
        result = np.where(mantissa == 0.5, floor, floor + 1) + 127
        finite = finite & (result <= 254)
        return np.where(finite, np.clip(result, 0, 254), 255)
    if mode != "floor":
        # Subnormals are below all that exponents tell apart.
        floor = np.where(mantissa * 2 >= {"even": 1.9375, "compressed-tensors": 1.75}[mode], floor + 1, floor)
        finite = finite & (floor <= 127)
    return np.where(finite, np.clip(floor - 8 + 127, 0, 254), 255)


def mx(x: Array, mode: str) -> Outputs:
    groups = groups_of(x, 32)
    exponent = mx_exponent(amax_of(groups, (3,)), mode)
    factor = np.where(exponent == 255, np.nan, np.ldexp(1.0, 127 - exponent)).astype(F32)
    return {"codes": e4m3(groups * factor).reshape(x.shape), "scales": exponent.astype(np.uint8)}


def int4_amax7(x: Array, size: int) -> Outputs:
    groups = groups_of(x, size)
    scale = at_least(amax_of(groups, (3,)) * (F32(1) / F32(7)), 1e-5)
    return {"codes": pack(int4(groups / scale).reshape(x.shape)), "scales": bf16_bits(scale)}


def int4_amax7_5(x: Array, size: int) -> Outputs:
    groups = groups_of(x, size)
    scale = compressed_scale(amax_of(groups, (3,)), 7.5)
    return {"codes": pack(int4(bf16(groups / scale)).reshape(x.shape)), "scales": bf16_bits(scale)}


def nvfp4_modelopt(x: Array, amax: Array) -> Outputs:
    groups = groups_of(x, 16)
    second = (amax / F32(2688))[..., None]
    divisor = F32(6) * second
    ratio = np.where(divisor == 0, F32(0), amax_of(groups, (3,)) / divisor)
    ratio = np.where(ratio == 0, F32(1), ratio)
    codes = e4m3(np.clip(ratio, F32(2.0 ** -9), F32(448)))
    quotients = groups / (e4m3_value(codes) * second)
    return {"codes": pack(e2m1(quotients).reshape(x.shape)), "scales": codes, "tensor_scale": f32_bits(second)}


def nvfp4_compressed(x: Array, amax: Array) -> Outputs:
    groups = groups_of(x, 16)
    whole = bf16(bf16(F32(1) / at_least(amax, 2.0 ** -126)) * F32(2688))[..., None]
    whole = np.where(np.isfinite(whole), whole, F32(1))
    codes = e4m3(whole * bf16(amax_of(groups, (3,)) / F32(6)))
    codes = np.where(codes == 0, np.uint8(0x20), codes)
    quotients = groups / (e4m3_value(codes) / whole)
    return {"codes": pack(e2m1(quotients).reshape(x.shape)), "scales": codes, "tensor_scale": f32_bits(whole)}


def mxfp4_exponent(amax: Array, mode: str) -> Array:
    """Biased, of the power of two at or above amax / 6; 255 stands for NaN."""
    value = (amax / F32(6)).astype(np.float64)
    finite = np.isfinite(value)
    mantissa, exponent = np.frexp(np.where(finite, value, 1))
    exponent = np.where(mantissa == 0.5, exponent - 1, exponent) + 127
    least = {"modelopt": 0, "triton-kernels": 1}[mode]
    return np.where(finite, np.where(mantissa == 0, 0, np.maximum(exponent, least)), 255)


def mxfp4_gpt_oss(x: Array, mode: str) -> Outputs:
    """Quantises columns: codes [matrices, columns, rows / 2]."""
    turned = np.swapaxes(x, 1, 2)
    groups = groups_of(turned, 32)
    exponent = mxfp4_exponent(amax_of(groups, (3,)), mode)
    quotients = groups * np.where(exponent == 255, np.nan, np.ldexp(1.0, 127 - exponent)).astype(F32)
    # In quarters of the value all codes and ties are whole numbers.
    quarters = np.minimum(np.nan_to_num(np.abs(quotients), nan=0, posinf=1e9).astype(np.float64), 6) * 4
    ties = np.array([1, 3, 5, 7, 10, 14, 20])
    up = mode == "triton-kernels"
    codes = np.searchsorted(ties, quarters, side="right" if up else "left")
    signs = np.signbit(quotients) if up else (quotients <= 0)
    codes = np.where(np.isnan(quotients), 0, codes | np.where(signs, 8, 0)).astype(np.uint8)
    return {"codes": pack(codes.reshape(turned.shape)), "scales": exponent.astype(np.uint8)}


def _with_amax(rule: Callable[[Array, Array], Outputs]) -> Callable[[Array], Outputs]:
    return lambda x: rule(x, amax_of(x, (1, 2)))


def _recipes() -> dict[str, Callable[[Array], Outputs]]:
    recipes: dict[str, Callable[[Array], Outputs]] = {
        "fp8-channel/vllm": vllm_channel,
        "fp8-channel/compressed-tensors": compressed_channel,
        "fp8-tensor/vllm": _with_amax(vllm_tensor),
        "fp8-tensor/compressed-tensors": _with_amax(compressed_tensor),
        "nvfp4/modelopt": _with_amax(nvfp4_modelopt),
        "nvfp4/compressed-tensors": _with_amax(nvfp4_compressed),
    }
    for side in (128, 64):
        for kind in ("deepseek", "deepseek-divide", "deepseek-ue8m0"):
            recipes[f"fp8-block{side}/{kind}"] = lambda x, side=side, kind=kind: block(x, side, kind)  # type: ignore[misc]
    for mode in ("floor", "even", "compressed-tensors", "rceil"):
        recipes[f"mxfp8/{mode}"] = lambda x, mode=mode: mx(x, mode)  # type: ignore[misc]
    for mode in ("triton-kernels", "modelopt"):
        recipes[f"mxfp4-gpt-oss/{mode}"] = lambda x, mode=mode: mxfp4_gpt_oss(x, mode)  # type: ignore[misc]
    for size in (32, 128):
        recipes[f"int4-g{size}/amax7"] = lambda x, size=size: int4_amax7(x, size)  # type: ignore[misc]
        recipes[f"int4-g{size}/amax7.5"] = lambda x, size=size: int4_amax7_5(x, size)  # type: ignore[misc]
    return recipes


RECIPES = _recipes()


def columns_unit(recipe: str) -> int:
    """What the number of columns must be a multiple of; of rows, if it is transposed."""
    units = {"mxfp8": 32, "mxfp4-gpt-oss": 32, "int4-g32": 32, "int4-g128": 128, "nvfp4": 16}
    return units.get(recipe.split("/")[0], 1)


def is_transposed(recipe: str) -> bool:
    """Returns whether it quantises columns: rows must be a multiple of columns_unit(recipe) then."""
    return recipe.startswith("mxfp4-gpt-oss/")


def quantise(recipe: str, bits: Array) -> Outputs:
    """Quantises BF16 elements given as uint16, [matrices, rows, columns]."""
    with np.errstate(all="ignore"):
        return RECIPES[recipe](widen(bits))
