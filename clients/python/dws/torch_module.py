"""Torch modules: their tensors by name, and how to put them into shared memory."""

from __future__ import annotations

from typing import Any, Iterator, Mapping

from dws.dtypes import loaded_torch
from dws.errors import LayoutError

# The dict that holds a tensor, and the key in it.
Holder = tuple[Mapping[str, Any], str]


def is_module(target: Any) -> bool:
    """Whether `target` is a torch.nn.Module."""
    torch = loaded_torch()
    return torch is not None and isinstance(target, torch.nn.Module)


def named_tensors(module: Any) -> dict[str, Any]:
    """Parameters and persistent buffers by name, the same for trainer and engine.

    Tied parameters appear once, under the first of their names. Buffers that state_dict() leaves
    out (tables that a module computes itself) do not appear.

    Args:
      module: a torch.nn.Module.

    Returns:
      name -> the live tensor.
    """
    found = dict(module.named_parameters())
    for prefix, child in module.named_modules():
        for name, buffer in child.named_buffers(recurse=False):
            if name not in child._non_persistent_buffers_set:
                full = f"{prefix}.{name}" if prefix else name
                if not any(buffer is known for known in found.values()):
                    found[full] = buffer
    return found


def holders(module: Any) -> dict[str, Holder]:
    """For each name in named_tensors, the dict that holds the tensor, and the key in it.

    Shows cheaply whether a module still has the same tensors.
    """
    found = {}
    for prefix, child in module.named_modules():
        for held in (child._parameters, child._buffers):
            for key in held:
                found[f"{prefix}.{key}" if prefix else key] = (held, key)
    return {name: found[name] for name in named_tensors(module)}


def bind(module: Any, views: Mapping[str, Any]) -> None:
    """Makes the module's parameters and buffers views of other memory, tied ones included.

    Values are not copied: the views must have them already.

    Args:
      module: a torch.nn.Module.
      views: name -> a torch tensor of the same type and shape; names not in it stay as they are,
        and so do tensors that are their own view.

    Raises:
      LayoutError: a name the module does not have, or another shape or type.
    """
    torch = loaded_torch()
    assert torch is not None
    tensors = named_tensors(module)
    for name, view in views.items():
        if name not in tensors:
            raise LayoutError(f"the module has no parameter or buffer '{name}'")
        old = tensors[name]
        if old is view:
            continue
        if old.shape != view.shape or old.dtype != view.dtype:
            raise LayoutError(
                f"'{name}' is {old.dtype} {list(old.shape)}, its view "
                f"{view.dtype} {list(view.shape)}"
            )
        if isinstance(old, torch.nn.Parameter):
            old.data = view  # one object for all tied names
            continue
        for owner, key in _buffer_places(module, old):
            owner._buffers[key] = view


def _buffer_places(module: Any, buffer: Any) -> Iterator[tuple[Any, str]]:
    for child in module.modules():
        for key, value in list(child._buffers.items()):
            if value is buffer:
                yield child, key
