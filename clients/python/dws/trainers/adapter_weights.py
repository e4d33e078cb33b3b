"""An adapter of LoRA in a model of peft, as a module by itself: A and B by the names that peft saves.

The module holds the model's own parameters, so that whatever is sharded, cast or moved into shared memory is so in the
model too. It has dws.adapters.AdapterConfig.tensors as buffers beside them.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Mapping

from dws.adapters.config import AdapterConfig, require_shapes
from dws.errors import InvalidArgumentError, LayoutError, StateError
from dws.torch_module import WRAPPERS, canonical_name

# peft's name of the model that it wraps.
_BASE = "base_model.model."


class AdapterWeights:
    """Lifecycle: made when the model is as the training uses it: on its devices, sharded. Threads: one.

    Attributes:
      module: a torch module, for ModuleWeights.
    """

    def __init__(self, model: Any, name: str) -> None:
        """Args:
          model: a PeftModel.
          name: of the adapter; peft's own is "default".

        Raises:
          InvalidArgumentError: the model has no such adapter, or it has something that is not supported, by name.
        """
        self._model = model
        self._name = name
        self._config = _config(model, name)
        self._parameters = _parameters(model, name)
        what = f"adapter '{name}'"
        if not all(full.startswith(_BASE) for full in self._parameters):
            raise LayoutError(f"{what}: the model is a {type(model).__name__}, expected a PeftModel (get_peft_model)")
        require_shapes(self._parameters, self._config, what)
        _require_saved(model, name, self._parameters)
        _require_alone(model, what)
        _require_scaling(model, name, self._config)
        torch: Any = importlib.import_module("torch")
        self.module: Any = torch.nn.Module()
        for full, parameter in self._parameters.items():
            holder, last = self._holder(full)
            holder.register_parameter(last, parameter)
        for full, zeros in self._config.tensors().items():
            holder, last = self._holder(full)
            holder.register_buffer(last, torch.from_numpy(zeros))

    def _holder(self, full: str) -> tuple[Any, str]:
        *path, last = full.split(".")
        holder = self.module
        for part in path:
            holder = holder._modules.setdefault(part, type(self.module)())
        return holder, last

    def require_same(self) -> None:
        """Raises StateError: the model has another adapter of this name than when this was made. Call it before each
        version."""
        try:
            config, now = _config(self._model, self._name), _parameters(self._model, self._name)
            _require_scaling(self._model, self._name, config)
        except InvalidArgumentError as error:
            raise StateError(f"{error}; it was otherwise when it was registered") from None
        if config != self._config:
            raise StateError(f"adapter '{self._name}' had {self._config} when it was registered, and has {config} now: register it again")
        changed = [full for full in {**now, **self._parameters} if now.get(full) is not self._parameters.get(full)]
        if changed:
            raise StateError(
                f"adapter '{self._name}' has another parameter '{changed[0]}' than when it was registered: do not load, add or delete "
                "it during the training; register it again"
            )


def unwrapped(model: Any) -> Any:
    """A model without the wrappers of DistributedDataParallel, DeepSpeed and torch.compile."""
    while type(model).__name__ in WRAPPERS or hasattr(model, "_orig_mod"):
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
    return model


def _config(model: Any, name: str) -> AdapterConfig:
    configs: Mapping[str, Any] = getattr(model, "peft_config", None) or {}
    if name not in configs:
        raise LayoutError(f"the model has no adapter '{name}', found {sorted(configs)} in its peft_config")
    return AdapterConfig.of(configs[name].to_dict(), f"adapter '{name}'")


def _parameters(model: Any, name: str) -> dict[str, Any]:
    """The adapter's, by the names that peft saves."""
    found = {}
    for own, parameter in model.named_parameters():
        parts = canonical_name(own).split(".")
        at = next((i for i, part in enumerate(parts[:-1]) if part.startswith("lora_") and parts[i + 1] == name), None)
        if at is not None:
            full = ".".join([*parts[: at + 1], *parts[at + 2 :]])
            found[full] = parameter
    return found


def _require_saved(model: Any, name: str, found: Mapping[str, Any]) -> None:
    """Raises LayoutError: peft itself would save the adapter with other names."""
    peft = sys.modules.get("peft")
    if peft is None:
        return
    saved = peft.get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    differ = sorted(set(saved) ^ set(found))
    if differ:
        own, other = ("", "no ") if differ[0] in saved else ("no ", "a ")
        raise LayoutError(
            f"adapter '{name}': peft saves {own}'{differ[0]}', and the model has {other}parameter of that name: publish its merged weights"
        )


def _require_alone(model: Any, what: str) -> None:
    """Raises LayoutError: parameters of the base model are trained too, which engines would not get."""
    for own, parameter in model.named_parameters():
        if parameter.requires_grad and ".lora_" not in own:
            raise LayoutError(
                f"'{own}' is trained beside {what}, and engines would keep the base model's: freeze it (requires_grad=False), or publish "
                "merged weights"
            )


def _require_scaling(model: Any, name: str, config: AdapterConfig) -> None:
    for path, layer in model.named_modules():
        scaling = getattr(layer, "scaling", None)
        if isinstance(scaling, Mapping) and name in scaling and scaling[name] != config.scaling:
            raise LayoutError(
                f"adapter '{name}' is scaled by {scaling[name]} in '{path}', and its config ({config}) says {config.scaling}, which "
                "engines would take: restore it (unscale_layer), or publish merged weights"
            )
