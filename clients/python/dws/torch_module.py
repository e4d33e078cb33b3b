"""Torch modules: their tensors by name, and how to put them into shared memory."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from dws.dtypes import loaded_torch
from dws.errors import LayoutError
from dws.held.aliases import OldMemory, followers, point_at

# The dict that holds a tensor, and the key in it.
Holder = tuple[Mapping[str, Any], str]

# Classes of wrappers that have the training's model in `module`.
WRAPPERS = ("DistributedDataParallel", "DeepSpeedEngine")
FSDP1_WRAPPER = "_fsdp_wrapped_module"
# Prefixes that wrappers add to names; checkpoints and engines do not have them.
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", FSDP1_WRAPPER)


def canonical_name(own_name: str) -> str:
    """What a module names `own_name`, without the names of wrappers."""
    return ".".join(part for part in own_name.split(".") if part not in _WRAPPERS)


def is_module(target: Any) -> bool:
    """Returns whether `target` is a torch.nn.Module."""
    torch = loaded_torch()
    return torch is not None and isinstance(target, torch.nn.Module)


def named_tensors(module: Any) -> dict[str, Any]:
    """Returns parameters and persistent buffers by name, the same for trainer and engine.

    Tied parameters appear once, under the first of their names. Buffers that state_dict() leaves
    out (tables that a module computes itself) do not appear.

    Args:
      module: a torch.nn.Module.

    Returns:
      name -> the live tensor.
    """
    found = dict(module.named_parameters())
    known = {id(tensor) for tensor in found.values()}
    for prefix, child in module.named_modules():
        for name, buffer in child.named_buffers(recurse=False):
            if name not in child._non_persistent_buffers_set:
                full = f"{prefix}.{name}" if prefix else name
                if id(buffer) not in known:
                    known.add(id(buffer))
                    found[full] = buffer
    return found


def holders(module: Any) -> dict[str, Holder]:
    """Returns, for each name in named_tensors, the dict that holds the tensor, and the key in it.

    It shows cheaply whether a module still has the same tensors.
    """
    found = {}
    for prefix, child in module.named_modules():
        for held in (child._parameters, child._buffers):
            for key in held:
                found[f"{prefix}.{key}" if prefix else key] = (held, key)
    return {name: found[name] for name in named_tensors(module)}


def bind(module: Any, views: Mapping[str, Any], holder: Optional[Any] = None) -> None:
    """Makes the module's parameters and buffers views of other memory, and with them all tensors
    that share memory with these: tied ones, and views of them wherever Python has them. Each stays
    the same object.

    Values are not copied: the views must have them already.

    Args:
      module: a torch.nn.Module.
      views: name -> a torch tensor of the same type and shape; names not in it stay as they are,
        and so do tensors that are their own view.
      holder: the module that computes with these tensors, if `module` is another one; for messages.

    Raises:
      LayoutError: a name that the module does not have, or another shape or type; or a tensor
        shares memory with one that moves and cannot follow it (the message names it). Then nothing
        is changed.
    """
    tensors = named_tensors(module)
    moved: dict[str, Any] = {}
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
        moved[name] = old
    follow = followers(moved, module if holder is None else holder)
    before = OldMemory(moved, follow)
    point_at(((old, views[name]) for name, old in moved.items()), follow, views)
    before.warn_if_held()
