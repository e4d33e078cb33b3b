"""SGLang's processing of a layer after loading, in the form that dws.plugins.processed needs.

SGLang keeps no record of the form that loaders take, so this module makes one, with a hook, when a
model is built.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, ContextManager, Mapping, Optional

from dws.plugins.layers import DERIVED, is_constant
from dws.plugins.processed import Processing

# The function that the hook follows.
BUILT = "sglang.srt.model_loader.loader._initialize_model"
_RECORD = "_dws_loaded"  # attribute of a model: by layer, its tensors as loaders take them


def record(model: Any, *args: Any, **kwargs: Any) -> None:
    """The model has been built, and nothing is loaded."""
    # Not in the module's own tables, so that no code of the model sees it.
    object.__setattr__(
        model,
        _RECORD,
        {
            name: {
                key: _without_storage(tensor)
                for key, tensor in {**layer._parameters, **layer._buffers}.items()
                if tensor is not None
            }
            for name, layer in model.named_modules()
            if hasattr(getattr(layer, "quant_method", None), "process_weights_after_loading")
        },
    )


def _without_storage(tensor: Any) -> Any:
    """On the meta device, with the class and the attributes of the tensor, its loader among them."""
    made = tensor.detach().to("meta")
    made.__class__ = type(tensor)
    vars(made).update(vars(tensor))
    return made


class SglangProcessing:
    """An EngineProcessing."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def of(self, name: str, layer: Any) -> Optional[Processing]:
        """See EngineProcessing."""
        method: Any = getattr(layer, "quant_method", None)
        recorded: Mapping[str, Mapping[str, Any]] = getattr(self._model, _RECORD, {})
        if recorded.get(name):
            run = functools.partial(method.process_weights_after_loading, layer)
            own = {**layer._parameters, **layer._buffers}
            same = {n: own[n] for n in filter(is_constant, recorded[name]) if own.get(n) is not None}
            return Processing(run, {**recorded[name], **same})
        derives = any(getattr(layer, derived, None) is not None for derived in DERIVED)
        if derives and hasattr(self._model, "post_load_weights") and hasattr(layer, "kv_b_proj"):
            names = [f"{name}.kv_b_proj.weight"]
            run = functools.partial(self._model.post_load_weights, weight_names=names)
            own = {**layer._parameters, **layer._buffers}
            return Processing(run, {n: own[n] for n in own if own[n] is not None}, derives=True)
        return None

    def loading(self) -> ContextManager[Any]:
        """See EngineProcessing."""
        return _nothing_derived(self._model)

    def refresh(self) -> Optional[Callable[[], Any]]:
        """See EngineProcessing: what SGLang calls when it has loaded weights."""
        found: Optional[Callable[[], Any]] = getattr(self._model, "post_load_weights", None)
        return found

    def context(self) -> ContextManager[Any]:
        """See EngineProcessing."""
        return contextlib.nullcontext()


@contextlib.contextmanager
def _nothing_derived(model: Any) -> Any:
    """load_weights ends with post_load_weights, which computes."""
    if not hasattr(model, "post_load_weights"):
        yield
        return
    own = vars(model).get("post_load_weights")  # set on this model alone
    object.__setattr__(model, "post_load_weights", lambda *args, **kwargs: None)
    try:
        yield
    finally:
        del vars(model)["post_load_weights"]
        if own is not None:
            object.__setattr__(model, "post_load_weights", own)
