"""Element types of DWS and their names in numpy and torch.

Torch is never imported here: an object can be a torch one only if its caller has imported torch.
"""

from __future__ import annotations

import enum
import sys
from typing import Any, Optional

import numpy as np

from dws.errors import DTypeError


def loaded_torch() -> Optional[Any]:
    """The torch module if the process has imported it, else None."""
    return sys.modules.get("torch")


class DType(enum.Enum):
    """An element type. Values are the numbers of dws.v1.DType; names are those of safetensors."""

    BOOL = 1
    U8 = 2
    I8 = 3
    F8_E4M3 = 4
    F8_E5M2 = 5
    F8_E8M0 = 6
    U16 = 7
    I16 = 8
    F16 = 9
    BF16 = 10
    U32 = 11
    I32 = 12
    F32 = 13
    U64 = 14
    I64 = 15
    F64 = 16

    @property
    def itemsize(self) -> int:
        """Bytes of one element: 1, 2, 4 or 8."""
        return int(self.numpy.itemsize)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy type of a view. In views, BF16 and the F8 types are unsigned integers: raw
        bits."""
        return _NUMPY[self]

    @property
    def raw(self) -> np.dtype[Any]:
        """The unsigned integer of the same size, for moving bits."""
        return np.dtype(f"u{self.itemsize}")

    @property
    def torch(self) -> Any:
        """The torch type.

        Raises:
          DTypeError: torch is not imported, or this version of it has no such type.
        """
        torch = loaded_torch()
        if torch is None:
            raise DTypeError(f"{self.name} as a torch type: import torch first")
        found = getattr(torch, _TORCH_NAMES[self], None) if self in _TORCH_NAMES else None
        if found is None:
            raise DTypeError(
                f"torch {torch.__version__} has no type for {self.name}: use numpy views"
            )
        return found

    @classmethod
    def of(cls, dtype: Any) -> "DType":
        """The type given as a DType, a name ("BF16", "bfloat16"), a numpy type or a torch type.

        Raises:
          DTypeError: it is not a type of DWS.
        """
        if isinstance(dtype, cls):
            return dtype
        if dtype is None:  # numpy takes it for float64
            return cls._named("None", dtype)
        if isinstance(dtype, str) and dtype.upper() in cls.__members__:
            return cls[dtype.upper()]
        torch = loaded_torch()
        if torch is not None and isinstance(dtype, torch.dtype):
            return cls._named(str(dtype).split(".")[-1], dtype)
        if isinstance(dtype, str) and dtype in _BY_TORCH_NAME:
            return _BY_TORCH_NAME[dtype]
        try:
            name = np.dtype(dtype).name
        except TypeError:
            name = str(dtype)
        return cls._named(name, dtype)

    @classmethod
    def _named(cls, name: str, original: Any) -> "DType":
        if name not in _BY_TORCH_NAME:
            raise DTypeError(
                f"element type {original!r} is unknown; DWS has {', '.join(cls.__members__)} "
                "(pass packed formats as U8)"
            )
        return _BY_TORCH_NAME[name]


# The types that weights are cast to.
FLOATS = (DType.F16, DType.BF16, DType.F32, DType.F64)


def float_type(dtype: Any, what: str) -> DType:
    """The type in which floating-point weights are to be kept or published.

    Args:
      what: who names the type, for messages: "dtype=".

    Raises:
      DTypeError: it is no type, or none that such weights can be cast to.
    """
    try:
        found = DType.of(dtype)
    except DTypeError as error:
        raise DTypeError(f"{what}: {error}") from None
    if found not in FLOATS:
        raise DTypeError(f"{what}: {found.name}, expected one of {', '.join(each.name for each in FLOATS)}")
    return found


_TORCH_NAMES = {
    DType.BOOL: "bool",
    DType.U8: "uint8",
    DType.I8: "int8",
    DType.F8_E4M3: "float8_e4m3fn",
    DType.F8_E5M2: "float8_e5m2",
    DType.F8_E8M0: "float8_e8m0fnu",
    DType.U16: "uint16",
    DType.I16: "int16",
    DType.F16: "float16",
    DType.BF16: "bfloat16",
    DType.U32: "uint32",
    DType.I32: "int32",
    DType.F32: "float32",
    DType.U64: "uint64",
    DType.I64: "int64",
    DType.F64: "float64",
}
# numpy uses the same names for its own types; ml_dtypes adds the others with torch's names.
_BY_TORCH_NAME = {name: dtype for dtype, name in _TORCH_NAMES.items()}

_RAW_IN_NUMPY = {
    DType.F8_E4M3: "uint8",
    DType.F8_E5M2: "uint8",
    DType.F8_E8M0: "uint8",
    DType.BF16: "uint16",
}
_NUMPY = {dtype: np.dtype(_RAW_IN_NUMPY.get(dtype, name)) for dtype, name in _TORCH_NAMES.items()}
