"""vLLM's processing of a layer after loading, in the form that dws.plugins.processed needs. It uses
what vLLM itself records for reloading (vllm.model_executor.model_loader.reload) when it has built a
model."""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import Any, ContextManager, Optional

from dws.plugins.layers import is_constant
from dws.plugins.processed import Processing

_RELOAD = "vllm.model_executor.model_loader.reload"


# Some methods set this on a layer, and do nothing the next time.
_PROCESSED = "_already_called_process_weights_after_loading"


def _process(method: Any, layer: Any) -> None:
    vars(layer).pop(_PROCESSED, None)
    method.process_weights_after_loading(layer)


class VllmProcessing:
    """An EngineProcessing."""

    def __init__(self, config: Any) -> None:
        """Args:
        config: a VllmConfig.
        """
        self._config = config

    def of(self, name: str, layer: Any) -> Optional[Processing]:
        """See EngineProcessing."""
        try:
            layerwise: Any = importlib.import_module(f"{_RELOAD}.layerwise")
            meta: Any = importlib.import_module(f"{_RELOAD}.meta")
            is_attention = importlib.import_module(
                "vllm.model_executor.layers.attention"
            ).is_deferred_attention_layer
        except (ImportError, AttributeError):
            return None
        recorded = layerwise.LAYERWISE_INFO.get(layer)
        if recorded is None:
            return None
        parameters, buffers = recorded.restore_metadata
        tensors = {**parameters, **buffers}
        held = {**layer._parameters, **layer._buffers}
        if is_attention(layer):
            run = functools.partial(
                layer.process_weights_after_loading, self._config.model_config.dtype
            )
            own = {n: held[n] for n in tensors if held.get(n) is not None}
            return Processing(run, own, derives=True)
        method = getattr(layer, "quant_method", None)
        method = getattr(method, "old_quant_method", method)  # as dws.plugins.layers
        if not tensors or not hasattr(method, "process_weights_after_loading"):
            return None
        loaded = {
            name: meta.restore_layer_refs(meta.to_meta_tensor(tensor), layer)
            for name, tensor in tensors.items()
        }
        # The first are not recorded: processing does not change them.
        same = [*meta.SKIP_TENSORS, *filter(is_constant, loaded)]
        loaded.update((n, held[n]) for n in same if held.get(n) is not None)
        return Processing(functools.partial(_process, method, layer), loaded)

    def loading(self) -> ContextManager[Any]:
        """See EngineProcessing."""
        return contextlib.nullcontext()

    def refresh(self) -> None:
        """See EngineProcessing: vLLM's models have no such call."""

    def context(self) -> ContextManager[Any]:
        """See EngineProcessing."""
        found: ContextManager[Any] = importlib.import_module("vllm.config").set_current_vllm_config(
            self._config
        )
        return found
