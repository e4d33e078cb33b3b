"""What must be known of a model's layers before its parameters are written in place.

An engine may keep weights in another form than the checkpoint (quantised, halves swapped, shuffled
for a kernel), and tensors derived from them (MLA's absorbed projections). The checkpoint's bytes
would be wrong in the first; the second would keep the values of the previous version. Both are
refused by name, unless the engine can process them again (dws.plugins.processed), or a hook for the model's
class rebuilds them after each commit.
"""

from __future__ import annotations

import importlib
import re
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence, Union, cast

from dws.errors import InvalidArgumentError, LayoutError
from dws.lease_stream import PostCommitHook

# Methods of vLLM and SGLang that keep weights as the checkpoint has them.
_PLAIN_METHODS = frozenset(
    {
        "UnquantizedLinearMethod",
        "UnquantizedEmbeddingMethod",
        "UnquantizedFusedMoEMethod",
    }
)
# Methods of the attention for the KV cache: no weights.
_NO_WEIGHTS = frozenset({"BaseKVCacheMethod"})
# Flags of methods that swap or shuffle an expert stack after loading, or load it that way.
_REORDERING = (
    "flashinfer_cutlass_moe_enabled",
    "rocm_aiter_moe_enabled",
    "load_up_proj_weight_first",
    "use_flashinfer_trtllm_moe",
    "use_flashinfer_cutlass",
    "use_triton_kernels",
    "w13_swiglu_interleaved",
)
_PLAIN_BACKENDS = frozenset({"NONE", "TRITON", "BATCHED_TRITON"})
# Tensors that engines derive from weights after loading them.
DERIVED = ("w_kc", "w_vc", "w_scale", "W_UK", "W_UV", "W_UK_T", "W_QR")

# INT4 layers have the extents of their weight beside it, in one parameter for all fused tensors:
# loaders write it several times, and no version changes it.
_CONSTANT = re.compile(r"(^|[._])weight_shape$")


def is_constant(name: str) -> bool:
    """Returns whether no version changes the tensor of this name, of a checkpoint or of a layer."""
    return bool(_CONSTANT.search(name))


Hook = Union[str, Callable[[Any], None]]
# By the name of the model's class: a function of the model that rebuilds what is derived, or its
# location, "package.module:function".
Hooks = Mapping[str, Hook]


class Need(NamedTuple):
    """Why a layer cannot be written in place, in words."""

    layer: str
    reason: str


def what_needs_a_hook(model: Any) -> list[Need]:
    """Returns the need of each layer that is not plain.

    Args:
      model: a torch module, as the engine has it.
    """
    return [Need(name, reason) for name, layer in model.named_modules() for reason in _reasons(layer)]


def _reasons(layer: Any) -> Iterator[str]:
    for attribute in DERIVED:
        # vLLM's attention keeps them in its implementation, SGLang's in the layer.
        for owner in (layer, getattr(layer, "impl", None)):
            if getattr(owner, attribute, None) is not None:
                yield f"keeps {attribute}, derived from weights"
    # A function that has captured a tensor keeps a copy of the weight in another form. It counts
    # even if the weight itself still exists.
    if getattr(getattr(layer, "cpu_linear", None), "__closure__", None):
        yield "keeps its weight packed for the CPU (cpu_linear)"
    # SGLang puts the packed form in the place of the parameter, also of models without quant_method.
    if getattr(layer, "use_intel_amx_backend", False):
        yield "keeps its weight packed for the CPU (use_intel_amx_backend)"
    method = getattr(layer, "quant_method", None)
    method = getattr(method, "old_quant_method", method)  # vLLM's modular kernels wrap it
    kind = type(method).__name__
    if method is None or any(base.__name__ in _NO_WEIGHTS for base in type(method).__mro__):
        return
    if kind not in _PLAIN_METHODS:
        yield f"has weights in the form of {kind}"
        return
    for flag in _REORDERING:
        if getattr(method, flag, None):
            yield f"reorders its weights ({kind}.{flag})"
    backend = getattr(method, "unquantized_backend", None)
    if backend is not None and getattr(backend, "name", str(backend)) not in _PLAIN_BACKENDS:
        yield f"may reorder its weights for {getattr(backend, 'name', backend)}"


def refuse(model: Any, needs: Sequence[Need]) -> None:
    """Raises LayoutError if there are any."""
    if not needs:
        return
    kind = type(model).__name__
    shown = "; ".join(f"'{need.layer}' {need.reason}" for need in needs[:3])
    raise LayoutError(
        f"model {kind}: {shown}{' ...' if len(needs) > 3 else ''} ({len(needs)} in all), and the engine has no "
        "call that makes it again. Written in place, it would compute with weights that differ from the "
        f"trainer's: choose a plain backend, or pass hooks={{'{kind}': 'package.module:function'}} that brings "
        "all of it up to date after a commit"
    )


def post_commit_hook(model: Any, hooks: Optional[Hooks]) -> Optional[PostCommitHook]:
    """Returns the post_commit= for attach(); None for a model whose class has no entry in `hooks`.

    Raises:
      InvalidArgumentError: the path of a hook names no function.
    """
    hook = (hooks or {}).get(type(model).__name__)
    if hook is None:
        return None
    rebuild = cast(Callable[[Any], None], resolve(hook) if isinstance(hook, str) else hook)

    def after_commit(version: int) -> None:
        rebuild(model)

    return after_commit


def resolve(path: str) -> Callable[..., Any]:
    """Returns the function that "package.module:function" names.

    Raises:
      InvalidArgumentError: there is none.
    """
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgumentError(
            f"'{path}': expected 'package.module:function' that can be imported here: {error}"
        ) from error
    if not callable(function):
        raise InvalidArgumentError(f"'{path}' is a {type(function).__name__}, expected a function")
    found: Callable[..., Any] = function
    return found
