"""Decides the element type with which each weight is published. All code that casts uses it.

With dtype= floating-point weights are cast to that type, but these keep a wider type that the module has:

* buffers: a trainer has them as checkpoints and engines do;
* the router's e_score_correction_bias, also where it is a parameter: eight biases may be one number in BF16;
* what the model says, as from_pretrained of transformers reads it: _keep_in_fp32_modules_strict, and for torch.float16
  _keep_in_fp32_modules.

dtypes= comes first, and spares nothing: it has the types of single weights, by patterns of their names, or names a checkpoint
whose weights have them.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import re
from typing import Any, Collection, Iterable, Mapping, Optional, Union

from dws.dtypes import FLOATS, DType, float_type
from dws.errors import DTypeError, InvalidArgumentError, LayoutError
from dws.plugins.checkpoint_files import CheckpointFiles

# Checkpoints and engines of DeepSeek-V3 and later models have it in FP32.
_ROUTER_BIAS = "*e_score_correction_bias"

# Patterns (fnmatch) of canonical names, each with a type, of which the first that matches counts; or the folder of a checkpoint.
Types = Union[Mapping[str, Any], str, "os.PathLike[str]"]


@dataclasses.dataclass(frozen=True)
class PublishedTypes:
    """Attributes:
    dtype: the type in which floating-point weights are published; None: each as the trainer has it.
    dtypes: those of single weights, which come before `dtype`.

    Raises:
      InvalidArgumentError, DTypeError: on construction: dtype= or dtypes= has a type that is no floating-point type, or dtypes= is
        neither of Types, or has the pattern "*"; or as CheckpointFiles.
    """

    dtype: Any = None
    dtypes: Types = dataclasses.field(default_factory=lambda: dict[str, Any]())
    _patterns: Mapping[str, DType] = dataclasses.field(default_factory=dict, init=False, repr=False)
    _checkpoint: Optional[Mapping[str, DType]] = dataclasses.field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.dtype is not None:
            float_type(self.dtype, "dtype=")
        if isinstance(self.dtypes, Mapping):
            patterns = {pattern: _pattern_type(pattern, dtype) for pattern, dtype in self.dtypes.items()}
            object.__setattr__(self, "_patterns", patterns)
        elif isinstance(self.dtypes, (str, os.PathLike)):
            headers = CheckpointFiles(os.fspath(self.dtypes)).canonical()
            object.__setattr__(self, "_checkpoint", {name: entry.dtype for name, entry in headers.items()})
        else:
            raise InvalidArgumentError(
                f"dtypes= is a {type(self.dtypes).__name__}, expected a dict of patterns with types, or the folder of a checkpoint"
            )

    def of(self, name: str, tensor: Any, keeps: bool) -> DType:
        """Args:
          name: canonical.
          tensor: has the element type, as torch's do.
          keeps: true if it is a buffer, or the model keeps it.

        Raises:
          DTypeError: DWS does not know the element type; with the name.
          LayoutError: the checkpoint of dtypes= does not have it, or has it quantised and there is no dtype=.
        """
        try:
            own = DType.of(tensor.dtype)
        except DTypeError as error:
            raise DTypeError(f"tensor '{name}': {error}") from None
        if not tensor.is_floating_point():
            return own
        named = self._named(name)
        if named is not None:
            return named
        wanted = own if self.dtype is None else DType.of(self.dtype)
        kept = keeps or fnmatch.fnmatchcase(name, _ROUTER_BIAS)
        return own if kept and own.itemsize > wanted.itemsize else wanted

    def _named(self, name: str) -> Optional[DType]:
        """Returns what dtypes= says; None: nothing."""
        if self._checkpoint is None:
            return next((t for pattern, t in self._patterns.items() if fnmatch.fnmatchcase(name, pattern)), None)
        found = self._checkpoint.get(name)
        if found is None:
            raise LayoutError(
                f"dtypes= names checkpoint '{self.dtypes}', which has no tensor '{name}': expected the checkpoint of this model, with "
                "every floating-point weight"
            )
        if found in FLOATS:
            return found
        if self.dtype is None:
            raise LayoutError(
                f"dtypes= names checkpoint '{self.dtypes}', which has '{name}' quantised ({found.name}): pass dtype= for such "
                "weights, or name a checkpoint that is not quantised"
            )
        return None

    def require_used(self, published: Mapping[str, DType]) -> None:
        """Args:
          published: by canonical name, of all processes.

        Raises:
          LayoutError: a pattern has no effect, because it matches no name, or none that is published so.
        """
        for pattern, wanted in self._patterns.items():
            found = {n: t for n, t in published.items() if fnmatch.fnmatchcase(n, pattern)}
            if wanted not in found.values():
                of_them = ", ".join(f"'{n}' {t.name}" for n, t in sorted(found.items())[:3])
                raise LayoutError(
                    f"dtypes= has '{pattern}', expected the pattern of a weight that is published as {wanted.name}, found "
                    f"{of_them or 'no weight of such a name'}"
                )


def _pattern_type(pattern: str, dtype: Any) -> DType:
    found = float_type(dtype, f"dtypes= has '{pattern}'")
    if pattern == "*":
        raise InvalidArgumentError(
            "dtypes= has '*', which spares no weight: pass dtype= for the others, which leaves alone what must not be cast"
        )
    return found


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
