"""Tensors that share the memory of tensors that are about to move: they have to move too.

Attaching moves weights of the host into shared memory. A tensor that shares memory with a weight (a
buffer that is a view of a parameter, a view in a list, in a closure or in another object) is
pointed at the same elements there, in place: code that holds the tensor keeps using the same
object. Such tensors are found among all that Python's garbage collector knows, and among all that
the module holds.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import gc
import importlib
import itertools
import logging
import weakref
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from dws.arrays import is_torch, storage_of
from dws.dtypes import loaded_torch
from dws.errors import LayoutError
from dws.held.held_state import held_by_model
from dws.memory import MARK

_LOG = logging.getLogger(__name__)

_SHOWN = 10  # names in one message

# The place of a tensor: its device, and the addresses of its first byte and behind its last one.
Extent = tuple[str, int, int]


class Follower(NamedTuple):
    """A tensor in the memory of a weight.

    Attributes:
      weight: the name of the weight.
      offset_bytes: from the weight's first element.
      is_outside: true if nothing in the module holds it.
    """

    tensor: Any
    weight: str
    offset_bytes: int
    is_outside: bool


def extent_of(tensor: Any) -> Optional[Extent]:
    """Returns where the elements of a torch tensor or numpy array are; None: it has no memory that
    can be seen."""
    if isinstance(tensor, np.ndarray):
        # numpy's own function for this has another place in each of its releases.
        steps = [(n - 1) * step for n, step in zip(tensor.shape, tensor.strides)]
        first = int(tensor.__array_interface__["data"][0])
        begin, end = first + sum(min(s, 0) for s in steps), first + sum(max(s, 0) for s in steps)
        return ("cpu", begin, end + tensor.itemsize) if tensor.size else None
    torch: Any = loaded_torch()
    try:
        with torch._C.DisableTorchFunction():
            if tensor.layout is not torch.strided or not tensor.numel() or not tensor.data_ptr():
                return None
            reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride()))
            begin = int(tensor.data_ptr())
            return str(tensor.device), begin, begin + (reach + 1) * int(tensor.element_size())
    except (RuntimeError, NotImplementedError, AttributeError):  # wrappers, fake and functional tensors
        return None


class Extents:
    """The memory of named tensors: finds the tensors to which an address belongs."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        placed = [(extent, name) for name, t in tensors.items() if (extent := extent_of(t)) is not None]
        self._placed = sorted(placed)
        # The highest end on the same device so far, where a search backwards may stop.
        self._ends: list[int] = []
        for at, ((device, _, end), _) in enumerate(self._placed):
            goes_on = at > 0 and self._placed[at - 1][0][0] == device
            self._ends.append(max(end, self._ends[-1]) if goes_on else end)

    def __len__(self) -> int:
        return len(self._placed)

    def overlapping(self, extent: Extent) -> Iterator[tuple[str, int, int]]:
        """Yields name, begin and end of each tensor that shares bytes with the extent."""
        device, begin, end = extent
        for at in range(bisect.bisect_left(self._placed, ((device, end, 0), "")) - 1, -1, -1):
            (other, low, high), name = self._placed[at]
            if other != device or self._ends[at] <= begin:
                return
            if high > begin:
                yield name, low, high


def followers(moved: Mapping[str, Any], module: Any) -> list[Follower]:
    """Tensors, other than `moved`, that have memory of these.

    Args:
      moved: row-major tensors of torch on the host, by name.
      module: a torch module that holds them. What it holds has to follow; what others hold and cannot follow is told.

    Raises:
      LayoutError: a tensor that the module holds cannot follow, by its name and the weight's.
    """
    if not moved:
        return []
    extents = Extents(moved)
    found: list[Follower] = []
    seen = {id(tensor) for tensor in moved.values()}
    named = ((held.name, held.tensor) for held in held_by_model(module))
    for name, tensor in itertools.chain(named, ((None, tensor) for tensor in _known_to_python())):
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        extent = extent_of(tensor)
        over = [] if extent is None else list(extents.overlapping(extent))
        if extent is None or not over:
            continue
        try:
            found.append(_follower(tensor, extent, over, moved, is_outside=name is None))
        except (RuntimeError, ValueError) as error:
            what = (
                f"{'a tensor outside of the module' if name is None else repr(name)}, {tensor.dtype} "
                f"{list(tensor.shape)}, shares memory with {' and '.join(repr(weight) for weight, _, _ in over[:3])}, "
                "which moves into shared memory"
            )
            if name is None:
                _LOG.warning("dws: %s: it stays where it is, and is not updated: %s", what, error)
                continue
            raise LayoutError(
                f"{what}, and cannot follow: {error}. Make it a view of one weight, or a copy that is brought up to date "
                "after each commit, or release it before the attach"
            ) from None
    return found


def _follower(
    tensor: Any, extent: Extent, over: list[tuple[str, int, int]], moved: Mapping[str, Any], is_outside: bool
) -> Follower:
    """Args:
      over: the weights whose memory it has, in the form that Extents gives.

    Raises:
      ValueError, RuntimeError: it cannot follow one of them.
    """
    _, begin, end = extent
    inside = [(weight, low) for weight, low, high in over if low <= begin and end <= high]
    if not is_torch(tensor):
        raise ValueError("an array of numpy cannot be pointed at other memory")
    if not inside:
        raise ValueError("it covers more than one weight, or more than the weight")
    weight, low = inside[0]
    follower = Follower(tensor, weight, begin - low, is_outside)
    misaligned = follower.offset_bytes % tensor.element_size()  # where the weight begins aligned
    if misaligned or tensor.is_conj() or tensor.is_neg() or _view_of(moved[weight], follower).data_ptr() != begin:
        raise ValueError("it has its elements in a form that a view of the weight has not")
    return follower


def _known_to_python() -> list[Any]:
    """All tensors of torch that Python's garbage collector knows, also those that gc.freeze() hides."""
    is_frozen, is_enabled = gc.get_freeze_count() > 0, gc.isenabled()
    if is_frozen:
        gc.unfreeze()
    gc.disable()  # a collection would move objects from one generation to another meanwhile
    try:
        return _tensors_of_collector()
    finally:
        if is_enabled:
            gc.enable()
        if is_frozen:
            gc.freeze()


def _tensors_of_collector() -> list[Any]:
    """All tensors of torch among the collector's objects.

    The collector also gives tuples that other threads are building, and tuple() fails there with SystemError if its
    result has another reference then. So the objects are looked at inside one call of list(), which lets no other
    thread run: all that it calls is written in C, and it keeps no object but tensors.
    """
    torch: Any = importlib.import_module("torch")
    kinds, found = {torch.Tensor}, [torch.Tensor]
    while found:
        found = [kind for parent in found for kind in type.__subclasses__(parent) if kind not in kinds]
        kinds.update(found)

    def objects(generation: int) -> Iterator[Any]:
        return itertools.chain.from_iterable(map(gc.get_objects, (generation,)))

    # The types are those of a second list, which has the same objects in front. The fillers let go of both lists.
    picked = [
        itertools.compress(
            itertools.chain(objects(generation), itertools.repeat(None, 1000)),
            itertools.chain(map(kinds.__contains__, map(type, objects(generation))), itertools.repeat(False)),
        )
        for generation in range(len(gc.get_count()))
    ]
    tensors = list(itertools.chain.from_iterable(picked))
    if all(issubclass(type(value), torch.Tensor) for value in tensors):
        return tensors
    return [value for value in gc.get_objects() if issubclass(type(value), torch.Tensor)]  # another kind of collector


def _view_of(weight: Any, follower: Follower) -> Any:
    """The follower's elements in the memory of `weight`, which is row-major.

    Raises:
      RuntimeError: torch has no such view.
    """
    torch: Any = importlib.import_module("torch")
    like = follower.tensor
    with torch.inference_mode(False), torch.no_grad():
        content = weight.detach().reshape(-1).view(torch.uint8)[follower.offset_bytes :]
        whole = content.numel() // like.element_size() * like.element_size()
        typed = content[:whole].view(like.dtype)
        return typed.as_strided(tuple(like.shape), tuple(like.stride()), typed.storage_offset())


def point_at(pairs: Iterable[tuple[Any, Any]], follow: Iterable[Follower], views: Mapping[str, Any]) -> None:
    """Points tensors at other memory, each in place.

    Args:
      pairs: a tensor, and a view of the same type and shape.
      follow: what has memory of these, which lie in `views` then.
      views: name of a weight -> its view.
    """
    moves = [*pairs, *((each.tensor, _view_of(views[each.weight], each)) for each in follow)]
    for tensor, view in moves:
        tensor.data = _inference_view(view) if tensor.is_inference() else view


def _inference_view(view: Any) -> Any:
    """The same elements, as a tensor made under torch.inference_mode has them."""
    torch: Any = importlib.import_module("torch")
    with torch.inference_mode():
        made = torch.empty(0, dtype=view.dtype)
        return made.set_(storage_of(view), view.storage_offset(), tuple(view.shape), tuple(view.stride()))


class OldMemory:
    """Memory that tensors are about to leave. An array of numpy or a DLPack capsule only has the
    address of the memory, and the tensor from which it was made keeps the memory allocated, even
    after that tensor has left it.
    """

    def __init__(self, moved: Mapping[str, Any], follow: Sequence[Follower]) -> None:
        """Args:
        moved: the weights by name.
        follow: the other tensors that leave their memory.
        """
        reductions: Any = importlib.import_module("torch.multiprocessing.reductions")
        self._held = {name: reductions.StorageWeakRef(storage_of(tensor)) for name, tensor in moved.items()}
        # Places in memory that more than one weight shares: tensors beside a weight may stay there.
        self._wider = {
            name: storage_of(tensor).data_ptr()
            for name, tensor in moved.items()
            if storage_of(tensor).nbytes() != tensor.numel() * tensor.element_size()
        }
        leaving = [*moved.values(), *(follower.tensor for follower in follow)]
        views = collections.Counter(id(tensor._base) for tensor in leaving if tensor._base is not None)
        self._may_be_read = {name for name, tensor in moved.items() if _is_shared(tensor, views) and _keep(tensor)}
        self._may_be_read |= {
            follower.weight
            for follower in follow
            if (_is_shared(follower.tensor, views) or (follower.is_outside and _is_exported(follower.tensor)))
            and _keep(follower.tensor)
        }

    def warn_if_held(self) -> None:
        """Call it after the tensors have left the memory. Says whether something that Python does
        not show still holds it: an array of numpy, or a library's own tensor."""
        held = [name for name, storage in self._held.items() if not storage.expired()]
        unsure = (self._wider.keys() - self._may_be_read).intersection(held)
        known = _storages_known_to_python() if unsure else set()
        names = [name for name in held if name not in unsure or self._wider[name] not in known]
        if names:
            _LOG.warning(
                "dws: something that cannot be found, such as an array of numpy, still holds memory that %d weights had "
                "before they moved, %s: it stays allocated and is not updated; if passes read it, they compute with old "
                "weights. Make such arrays again after the attach",
                len(names),
                ", ".join(f"'{name}'" for name in names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else ""),
            )


def _is_exported(tensor: Any) -> bool:
    """Returns whether `tensor` may be the base of an array of numpy: torch then refuses to resize
    its storage."""
    if hasattr(tensor, MARK):
        return False
    storage = storage_of(tensor)
    if hasattr(storage, "resizable"):
        return not storage.resizable()
    try:
        storage.untyped().resize_(-1)  # old releases: fails in any case, and says whether it could
    except RuntimeError as error:
        return "not resizable" in str(error)
    return True


def _is_shared(tensor: Any, views: Mapping[int, int]) -> bool:
    """Returns whether something outside Python, such as a DLPack capsule, holds the tensor itself.
    Releases of torch that cannot count that give a capsule a tensor of its own.

    Args:
      views: how many views each tensor has, by its identity: each holds it.
    """
    if not hasattr(tensor, "_use_count"):
        return False
    torch: Any = importlib.import_module("torch")
    explained, gradient = 1 + views.get(id(tensor), 0), None
    if tensor.requires_grad and tensor.is_leaf and not tensor.is_inference():
        # What adds up its gradient holds it too, and exists after this.
        with torch.enable_grad(), torch.inference_mode(False):
            gradient = tensor.view_as(tensor).grad_fn.next_functions[0][0]
        explained += 1
    is_shared = bool(tensor._use_count() > explained)
    del gradient
    return is_shared


def _keep(tensor: Any) -> bool:
    """The tensor's memory stays allocated as long as the tensor. Returns True."""
    weakref.finalize(tensor, id, storage_of(tensor)).atexit = False
    return True


def _storages_known_to_python() -> set[int]:
    """Returns the addresses of all memory that tensors have."""
    found = set()
    for tensor in _known_to_python():
        with contextlib.suppress(RuntimeError, NotImplementedError, AttributeError):  # wrappers, fake tensors
            found.add(storage_of(tensor).data_ptr())
    return found


def warn_of_parameters(tensors: Mapping[str, Any]) -> None:
    """Says that tensors of a dict, whose copies in shared memory are to be used, are a module's parameters too."""
    torch: Any = loaded_torch()
    extents = Extents({name: tensor for name, tensor in tensors.items() if is_torch(tensor)})
    for value in _known_to_python() if torch is not None and extents else ():
        extent = extent_of(value) if isinstance(value, torch.nn.Parameter) else None
        for name, _, _ in extents.overlapping(extent) if extent is not None else ():
            _LOG.warning(
                "dws: '%s' has the memory of a module's parameter, and a dict is attached: only the views that attach() "
                "returns are updated, the module is not. Attach the module instead",
                name,
            )
            return
