"""A model of transformers without memory, wrappers and sharding: what transformers' own functions get to see.

Their rules go by the names of modules and by classes, which FSDP1, FSDP2, torch.compile and checkpointing change. A skeleton has
the modules that are models of transformers, of the classes that they had before, under the names that they had before, and
tensors of the meta device. All else of a model is shared with the skeleton, such as its config.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Collection, Iterator, Mapping, Optional

from dws.dtypes import loaded_torch
from dws.torch_module import canonical_name


def pretrained_class() -> Optional[Any]:
    """The class of all models of transformers; None: no such module can be in this process."""
    return getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)


class SavedNames:
    """Under which name save_pretrained writes a tensor of a model that has several names, or none."""

    def __init__(self, model: Any) -> None:
        """Args:
        model: of transformers.
        """
        self._names: dict[int, list[str]] = {}  # by tensor
        self._tensors: dict[str, int] = {}
        self._ignored = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
        tied = []
        for prefix, part in model.named_modules(remove_duplicate=False):
            prefix = canonical_name(f"{prefix}.") if prefix else ""
            tied += [prefix + key for key in getattr(part, "_tied_weights_keys", None) or ()]
            for key, tensor in [*part._parameters.items(), *part._buffers.items()]:
                if tensor is not None:
                    self._names.setdefault(id(tensor), []).append(prefix + key)
                    self._tensors[prefix + key] = id(tensor)
        self._tied = [re.compile(pattern) for pattern in tied]

    def of(self, name: str) -> Optional[str]:
        """None: it is not saved."""
        names = self._names.get(self._tensors.get(name, 0), [name])
        names = [each for each in names if each not in self._ignored]
        if len(names) < 2:
            return names[0] if names else None
        own = [each for each in names if not any(tied.search(each) for tied in self._tied)]
        return own[0] if own else max(names)


def skeleton_of(model: Any, tensors: Mapping[str, Any], buffers: Collection[str]) -> Any:
    """Args:
    model: of transformers.
    tensors: those of the meta device, by name without wrappers.
    buffers: the names of those that are buffers; the others are parameters.
    """
    torch = loaded_torch()
    assert torch is not None
    base = pretrained_class()
    assert base is not None
    root = _shell(model)
    for path, part in model.named_modules():
        name = canonical_name(path)
        if name and isinstance(part, base):
            parent, _, key = name.rpartition(".")
            _module_at(root, parent)._modules[key] = _shell(part)
    for name, tensor in tensors.items():
        parent, _, key = name.rpartition(".")
        holder = _module_at(root, parent)
        if name in buffers:
            holder._buffers[key] = tensor
        else:
            holder._parameters[key] = torch.nn.Parameter(tensor, requires_grad=False)
    return root


def tensors_of(skeleton: Any) -> Iterator[tuple[str, Any]]:
    """Its tensors by name."""
    for prefix, part in skeleton.named_modules():
        for key, tensor in [*part._parameters.items(), *part._buffers.items()]:
            yield f"{prefix}.{key}" if prefix else key, tensor


def _shell(model: Any) -> Any:
    """A module of the same class and attributes, without modules and tensors."""
    # fully_shard and replicate make a class of torch's from the model's.
    kind: Any = next(each for each in type(model).__mro__ if not each.__module__.startswith("torch."))
    found = kind.__new__(kind)
    found.__dict__.update(model.__dict__)
    found.__dict__.update(_modules={}, _parameters={}, _buffers={})
    return found


def _module_at(root: Any, path: str) -> Any:
    """The module of that name, which is made where it is missing."""
    torch = loaded_torch()
    assert torch is not None
    found = root
    for key in filter(None, path.split(".")):
        if found._modules.get(key) is None:
            found._modules[key] = torch.nn.Module()
        found = found._modules[key]
    return found
