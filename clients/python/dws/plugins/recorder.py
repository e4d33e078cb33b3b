"""The operations of torch that a load_weights makes, each done, recorded or refused. For dws.plugins.capture,
which says what is which.
"""

from __future__ import annotations

import importlib
from typing import Any, Callable, Iterable, Iterator

from dws.plugins.canonical import Canonical
from dws.plugins.recording import Kind, Memories, Memory, Refused
from dws.plugins.strided import Placement, Strided

# What makes new tensors with no values, or with one value.
_EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
_CONSTANT = frozenset(
    {"zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones"}
    | {"full", "full_like", "new_full"}
)
_FILLS = frozenset({"fill_", "zero_"})
_BY_PLACE = frozenset({"index", "index_select"})


def intercepting(operation: Callable[[Any, Any, Any], Any]) -> Any:
    """A context in which this thread's operations of torch are calls of `operation`."""
    base: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return operation(func, args, kwargs or {})

    return type("Intercepting", (base,), {"__torch_dispatch__": dispatch})()


class Recorder:
    """Does what load_weights asks torch for, except for writes and for what is followed."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.memories = Memories()
        self.kept_as: dict[str, Any] = {}  # canonical name -> torch type of the parameter it goes into
        self._placing: dict[str, Callable[..., None]] = {
            "clone": self._clone,
            "contiguous": self._clone,
            "_to_copy": self._clone,
            "cat": self._cat,
            "stack": self._stack,
            "index_select": self._index_select,
            "index": self._index,
            "constant_pad_nd": self._pad,
        }

    def live(self, label: str, tensor: Any) -> Memory:
        """A tensor of the model."""
        memory = Memory(Kind.LIVE, label, tensor.dtype, tensor.numel())
        return self.memories.add(tensor.detach(), memory) if tensor.numel() else memory

    def leaf(self, name: str, entry: Canonical) -> Any:
        """A new tensor without storage for a canonical one."""
        tensor = self._torch.empty(entry.shape, dtype=entry.dtype.torch, device="meta")
        self.memories.add(tensor, Memory(Kind.CANONICAL, name, tensor.dtype, tensor.numel()))
        return tensor

    def operation(self, func: Any, args: Any, kwargs: Any) -> Any:
        """One operation of torch. Raises Refused if it would change what is not followed."""
        name = func._schema.name.split("::")[-1]
        tensors = list(_tensors((*args, *kwargs.values())))
        written = list(_tensors(_written(func, args, kwargs)))
        if written:
            return self._write(name, func, args, kwargs, written, tensors)
        if not any(self._follows(tensor) for tensor in tensors):
            return self._as_always(name, func, args, kwargs)
        if name == "_unsafe_view" or any(r.alias_info is not None for r in func._schema.returns):
            return func(*args, **kwargs)  # a view
        moved = 1 if name in _BY_PLACE else len(args)  # an index needs its values
        result = func(
            *_on_meta(args[:moved], self._twin), *args[moved:], **_on_meta(kwargs, self._twin)
        )
        for tensor in _tensors([result]):
            self._made(tensor)
        place = self._placing.get(name)
        try:
            if place is None:
                raise Refused(f"computes it by {name}")
            place(result, *args, **kwargs)
        except Refused as refusal:
            for tensor in _tensors([result]):
                self._spoil(tensor, str(refusal), tensors)
        return result

    def _as_always(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation on tensors that have values."""
        if name in _EMPTY | _CONSTANT:
            # Weights only: what a loader counts with needs its values.
            twin = func(*args, **{**kwargs, "device": "meta", "pin_memory": False})
            if twin.is_floating_point() and twin.numel() > 1:
                memory = self._made(twin)
                if name in _CONSTANT:
                    memory.fill(tuple(twin.shape), Strided(0, tuple(twin.stride())))
                return twin
        result = func(*args, **kwargs)
        for tensor in _tensors([result]):
            if tensor.numel() and self.memories.find(tensor) is None:
                if not any(_shares(tensor, other) for other in _tensors((*args, *kwargs.values()))):
                    self._made(tensor)
        return result

    def _write(
        self, name: str, func: Any, args: Any, kwargs: Any, written: list[Any], tensors: list[Any]
    ) -> Any:
        target = written[0]
        if not target.numel() and len(written) == 1:
            return target
        found = self.memories.find(target)
        if found is None:
            raise Refused(f"{name} writes into a tensor that is neither a parameter nor a buffer")
        memory, at = found
        if memory.kind is Kind.CANONICAL and not (name in _FILLS and target.numel() == memory.numel):
            raise Refused(f"{name} writes into '{memory.label}'")
        own = memory.kind is Kind.MADE and memory.has_storage and len(written) == 1
        if own and not any(self._follows(tensor) for tensor in tensors):
            return func(*args, **kwargs)
        if not memory.can_be_mapped:
            raise Refused(f"{name} writes into {memory.label}, which no state_dict has")
        try:
            if len(written) > 1:
                raise Refused(f"computes it by {name}")
            if name == "copy_":
                self._copy(target, args[1] if len(args) > 1 else kwargs["src"])
            elif name in _FILLS:
                memory.fill(tuple(target.shape), at)
            else:
                raise Refused(f"computes it by {name}")
        except Refused as refusal:
            for tensor in written:
                self._spoil(tensor, str(refusal), tensors)
        return target

    def _copy(self, target: Any, source: Any) -> None:
        """Records that the elements of `source` are in `target`.

        Raises:
          Refused: they are not.
        """
        if not target.numel():
            return
        to, origin = self.memories.find(target), self.memories.find(source)
        if to is None or origin is None or not origin[0].is_followed:
            raise Refused("copies values that are in no tensor of the checkpoint")
        for tensor, memory in ((target, to[0]), (source, origin[0])):
            if tensor.dtype != memory.dtype:
                raise Refused(f"takes {memory.dtype} for {tensor.dtype}")
        if to[0].kind is Kind.LIVE:
            self.kept_as.update(dict.fromkeys(origin[0].names, target.dtype))
        steps = tuple(source.expand(target.shape).stride())
        placement = Placement(tuple(target.shape), to[1], Strided(origin[1].offset, steps))
        writes = origin[0].through(placement)
        if source.dtype != target.dtype:
            raise Refused(f"converts {source.dtype} to {target.dtype}")
        to[0].write(writes)

    def _spoil(self, tensor: Any, why: str, sources: Iterable[Any]) -> None:
        found = self.memories.find(tensor)
        if found is None:
            return
        names: dict[str, None] = {}
        for source in sources:
            origin = self.memories.find(source)
            if origin is not None and origin[0] is not found[0]:
                names.update(dict.fromkeys(origin[0].names))
        quoted = [f"'{name}'" for name in [*names][:3]]
        origin_text = f" from {', '.join(quoted)}{' ...' if len(names) > 3 else ''}" if names else ""
        found[0].spoil(f"{why}{'' if origin_text in why else origin_text}", names)

    def _follows(self, tensor: Any) -> bool:
        found = self.memories.find(tensor)
        return found is not None and found[0].is_followed

    def _made(self, tensor: Any) -> Memory:
        return self.memories.add(
            tensor, Memory(Kind.MADE, "a buffer of its own", tensor.dtype, tensor.numel())
        )

    def _twin(self, tensor: Any) -> Any:
        return self._torch.empty_strided(
            tuple(tensor.shape), tuple(tensor.stride()), dtype=tensor.dtype, device="meta"
        )

    # Operations that place elements in a new tensor.

    def _clone(self, result: Any, source: Any, **_: Any) -> None:
        self._copy(result, source)

    def _cat(self, result: Any, parts: Any, dim: int = 0) -> None:
        begin = 0
        for part in parts:
            if part.dim() != result.dim():  # torch skips tensors of shape [0]
                continue
            size = part.shape[dim]
            self._copy(result.narrow(dim, begin, size), part)
            begin += size

    def _stack(self, result: Any, parts: Any, dim: int = 0) -> None:
        for index, part in enumerate(parts):
            self._copy(result.select(dim, index), part)

    def _index_select(self, result: Any, source: Any, dim: int, index: Any) -> None:
        if index.device.type == "meta":
            raise Refused("computes it by an index without values")
        places = index.tolist()
        for begin, end in _runs(places):
            part = source.narrow(dim, places[begin], end - begin)
            self._copy(result.narrow(dim, begin, end - begin), part)

    def _index(self, result: Any, source: Any, indices: Any) -> None:
        (dim, index), *more = [(d, i) for d, i in enumerate(indices) if i is not None]
        if more or index.dim() != 1:
            raise Refused("computes it by index")
        if index.dtype == self._torch.bool and index.device.type != "meta":
            index = index.nonzero().reshape(-1)
        extent = source.shape[dim]
        self._index_select(result, source, dim, index % extent)

    def _pad(self, result: Any, source: Any, pad: Any, value: Any = 0) -> None:
        if min(pad) < 0:
            raise Refused("computes it by constant_pad_nd")
        self._fill(result)
        inside = result
        for number in range(len(pad) // 2):
            dim = result.dim() - 1 - number
            inside = inside.narrow(dim, pad[2 * number], source.shape[dim])
        self._copy(inside, source)

    def _fill(self, tensor: Any) -> None:
        found = self.memories.find(tensor)
        if found is not None:
            found[0].fill(tuple(tensor.shape), found[1])


def _runs(places: list[int]) -> Iterator[tuple[int, int]]:
    """[begin, end) of each run of places that follow each other."""
    begin = 0
    for end in range(1, len(places) + 1):
        if end == len(places) or places[end] != places[end - 1] + 1:
            yield begin, end
            begin = end


def _tensors(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif hasattr(value, "storage_offset"):
            yield value


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """The arguments that an operation writes into."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[position] if position < len(args) else kwargs.get(argument.name)


def _on_meta(values: Any, twin: Callable[[Any], Any]) -> Any:
    """The arguments of an operation, so that it computes no more than a shape."""
    if isinstance(values, dict):
        moved = {key: _on_meta(value, twin) for key, value in values.items()}
        return {**moved, **({"device": "meta"} if "device" in moved else {})}
    if isinstance(values, (list, tuple)):
        return type(values)(_on_meta(value, twin) for value in values)
    if not hasattr(values, "storage_offset") or values.device.type == "meta":
        return values
    return twin(values)


def _shares(tensor: Any, other: Any) -> bool:
    """Returns whether two tensors have one storage."""
    a, b = (
        (t.untyped_storage() if hasattr(t, "untyped_storage") else t.storage()) for t in (tensor, other)
    )
    return bool(a.data_ptr() == b.data_ptr())
