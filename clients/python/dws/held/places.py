"""Where a module has its weights of the host after the attach: commits write that memory and no other."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, NamedTuple, Optional

from dws.held.aliases import Extent, extent_of

_SHOWN = 3


class _Place(NamedTuple):
    """Attributes:
    holder, key: the module's dict that has the tensor, and its key there.
    extent: the memory that commits write for it.
    """

    name: str
    holder: Mapping[str, Any]
    key: str
    extent: Extent


class Places:
    """The places of weights, all those of tied ones too. Threads: any."""

    def __init__(self, module: Any, views: Mapping[str, Any]) -> None:
        """Args:
        module: a torch module, whose parameters and buffers are these views.
        views: by name, tensors of the host.
        """
        extents = {extent for view in views.values() if (extent := extent_of(view)) is not None}
        self._module = module
        self._places = [
            _Place(name, holder, key, extent)
            for name, holder, key in _tables(module)
            if (extent := extent_of(holder[key])) is not None and extent in extents
        ]
        # A submodule that is replaced takes its tensors along.
        self._children = [
            (child._modules, key, below)
            for child in module.modules()
            for key, below in child._modules.items()
        ]

    def left(self) -> Optional[str]:
        """Returns in words why passes do not compute with the weights that commits write, with the
        names of the weights; None: they do."""
        found = []
        is_same = all(table.get(key) is child for table, key, child in self._children)
        for place in self._places if is_same else self._found_again():
            tensor = place.holder.get(place.key)
            if tensor is not None and _begins_at(tensor, place.extent[1]):
                continue  # nearly always
            extent = None if tensor is None else extent_of(tensor)
            if extent is None or not _is_inside(extent, place.extent):
                found.append(f"'{place.name}' ({_described(tensor)})")
        if not found:
            return None
        return (
            f"{', '.join(found[:_SHOWN])}{' ...' if len(found) > _SHOWN else ''} ({len(found)} in all): expected in the "
            "memory that commits write, as the attach has left it, and found replaced or moved since: passes would compute "
            "with old weights after a commit. Do that before the attach, or write into the parameter in place"
        )

    def _found_again(self) -> Iterator[_Place]:
        """The places in a module with other submodules. A weight that has no place under its name may be in another module,
        such as one that has been put around its own."""
        now = {name: (holder, key) for name, holder, key in _tables(self._module)}
        extents = {extent_of(holder[key]) for holder, key in now.values()}
        for place in self._places:
            if place.name in now or place.extent not in extents:
                holder, key = now.get(place.name, ({}, place.key))
                yield _Place(place.name, holder, key, place.extent)


def _tables(module: Any) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yields each name of each parameter and buffer, including further names of a tied one, with
    the dict that holds it and its key there."""
    for prefix, child in module.named_modules(remove_duplicate=False):
        for holder in (child._parameters, child._buffers):
            for key in [key for key, tensor in holder.items() if tensor is not None]:
                yield f"{prefix}.{key}" if prefix else key, holder, key


def _begins_at(tensor: Any, address: int) -> bool:
    try:
        return bool(tensor.data_ptr() == address)
    except (RuntimeError, NotImplementedError):  # wrappers
        return False


def _is_inside(extent: Extent, whole: Extent) -> bool:
    return extent[0] == whole[0] and whole[1] <= extent[1] and extent[2] <= whole[2]


def _described(tensor: Any) -> str:
    return "gone" if tensor is None else f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"
