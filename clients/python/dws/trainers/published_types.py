"""Decides the element type with which each weight is published. All code that casts uses it; pure.

Weights that keep_in_fp32= names are published in FP32, whatever the module has: for engines that
keep them so. With dtype= the other floating-point weights are cast, but these keep a wider type
that the module has, unless cast= names them:

* buffers: a trainer has them as checkpoints and engines do;
* the router's e_score_correction_bias, also where it is a parameter: eight biases may be one number in BF16;
* what the model says, as from_pretrained of transformers reads it: _keep_in_fp32_modules_strict, and for torch.float16
  _keep_in_fp32_modules.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from typing import Any, Collection, Iterable, Mapping, Sequence

from dws.dtypes import DType
from dws.errors import DTypeError, InvalidArgumentError, LayoutError

# Checkpoints and engines of DeepSeek-V3 and later models have it in FP32.
_ROUTER_BIAS = ("*e_score_correction_bias",)


@dataclasses.dataclass(frozen=True)
class PublishedTypes:
    """Attributes:
    dtype: the type in which floating-point weights are published; None: each as the trainer has it.
    keep_in_fp32: patterns (fnmatch) of canonical names that are published in FP32.
    cast: patterns of canonical names that are cast although they are buffers, or the model keeps them.

    Raises:
      InvalidArgumentError: cast= without dtype=, or a pattern in both.
    """

    dtype: Any = None
    keep_in_fp32: Sequence[str] = ()
    cast: Sequence[str] = ()

    def __post_init__(self) -> None:
        for option in ("keep_in_fp32", "cast"):
            if isinstance(getattr(self, option), str):
                raise InvalidArgumentError(f"{option}= is a text, expected a list of patterns")
        if self.dtype is None and self.cast:
            raise InvalidArgumentError("cast= names exceptions of dtype=: pass that too")
        both = sorted(set(self.keep_in_fp32) & set(self.cast))
        if both:
            raise InvalidArgumentError(f"{both} are in keep_in_fp32= and in cast=: expected one of them")

    def of(self, name: str, tensor: Any, keeps: bool) -> DType:
        """Args:
          name: canonical.
          tensor: has the element type, as torch's do.
          keeps: true if it is a buffer, or the model keeps it.

        Raises:
          DTypeError: DWS does not know the element type; with the name.
        """
        try:
            own = DType.of(tensor.dtype)
        except DTypeError as error:
            raise DTypeError(f"tensor '{name}': {error}") from None
        if not tensor.is_floating_point():
            return own
        if _matches(name, self.keep_in_fp32):
            return DType.F32
        wanted = own if self.dtype is None else DType.of(self.dtype)
        kept = (keeps or _matches(name, _ROUTER_BIAS)) and not _matches(name, self.cast)
        return own if kept and own.itemsize > wanted.itemsize else wanted

    def require_used(self, published: Mapping[str, DType]) -> None:
        """Args:
          published: by canonical name, of all processes.

        Raises:
          LayoutError: a pattern has no effect, because it matches no name, or none of such a type.
        """
        for option, patterns, wanted in (
            ("keep_in_fp32", self.keep_in_fp32, DType.F32),
            ("cast", self.cast, self.dtype and DType.of(self.dtype)),
        ):
            for pattern in patterns:
                found = {n: t for n, t in published.items() if fnmatch.fnmatchcase(n, pattern)}
                if wanted not in found.values():
                    of_them = ", ".join(f"'{n}' {t.name}" for n, t in sorted(found.items())[:3])
                    raise LayoutError(
                        f"{option}= has '{pattern}', expected the pattern of a weight that is published as "
                        f"{wanted.name}, found {of_them or 'no weight of such a name'}"
                    )


def kept_by_model(module: Any, dtype: Any, names: Iterable[str]) -> Collection[str]:
    """Which of `names` the models of transformers in `module` keep in FP32, as its from_pretrained(dtype=) matches them."""
    if dtype is None:
        return ()
    lists = ["_keep_in_fp32_modules_strict"]
    if DType.of(dtype) is DType.F16:
        lists.append("_keep_in_fp32_modules")
    patterns = {
        pattern
        for part in module.modules()
        for each in lists
        for pattern in getattr(part, each, None) or ()
    }
    if not patterns:
        return ()
    found = re.compile("|".join(pattern.replace("*", ".*") for pattern in sorted(patterns)))
    return {name for name in names if found.search(name)}


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
