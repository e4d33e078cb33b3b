"""Collects what an object holds, through all objects that it holds: its tensors by their places,
and a way to put everything back.

Attributes, slots, dicts, lists, tuples, sets, queues, closures, default arguments, partial
functions and bound methods are followed. Modules of Python, classes, and the submodules of the
torch module that it begins with are not.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import gc
import importlib
import logging
import types
import weakref
from typing import Any, Collection, Iterator, Mapping, NamedTuple, Optional

import numpy as np

from dws.arrays import is_torch
from dws.errors import LayoutError

_LOG = logging.getLogger(__name__)

# Objects that one layer may hold. A layer and its kernels have some hundred.
_OBJECTS_MAX = 20_000
# Objects that a whole model may hold.
_MODEL_OBJECTS_MAX = 2_000_000
# Tables that every torch module has and that hold no state of it.
_HOOKS = frozenset({"_modules", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_state_dict_hooks"})
_SHOWN_AS_MEMBERS = frozenset({"_parameters", "_buffers", "_modules"})
_VALUES = (int, float, complex, str, bytes, bool, type(None), enum.Enum)
_CLOSED = (types.ModuleType, type, types.BuiltinFunctionType, types.CodeType)
# The globals of a module are reached by frames.
_NEVER_OPENED = (types.ModuleType, type, types.CodeType, types.FrameType, types.TracebackType)
_SEQUENCES = (list, tuple, collections.deque)
_CONTAINERS = (dict, set, frozenset, *_SEQUENCES)
# Types without hidden parts; functions refer to the globals of their module.
_OPEN = frozenset({list, tuple, set, frozenset, collections.deque, types.FunctionType, types.MethodType, functools.partial})

Path = tuple[str, ...]


class HeldState:
    """The state of an object at the time when this was made.

    Attributes:
      tensors: by path.
      values: everything else that has no parts, by path: numbers, names, and objects that cannot be
        looked into.
    """

    def __init__(self, root: Any, others: Collection[int] = ()) -> None:
        """Args:
          others: objects that are not looked into, by identity.

        Raises:
          LayoutError: it holds too much to be followed.
        """
        self.tensors: dict[Path, Any] = {}
        self.values: dict[Path, Any] = {}
        self._tables: list[tuple[Any, Any]] = []  # a container that can change, and a copy of it
        self._seen: dict[int, Any] = {}  # kept, so that no other object gets the number
        todo: list[tuple[Path, Any]] = [((), root)]
        while todo:
            path, value = todo.pop()
            if is_torch(value):
                self.tensors[path] = value
                attributes = getattr(value, "__dict__", None)
                if attributes and id(value) not in self._seen:
                    self._seen[id(value)] = value
                    self._tables.append((attributes, dict(attributes)))
                continue
            if isinstance(value, _VALUES):
                self.values[path] = value
                continue
            if id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            if len(self._seen) > _OBJECTS_MAX:
                raise LayoutError(f"a layer holds more than {_OBJECTS_MAX} objects")
            closed = isinstance(value, _CLOSED) or (id(value) in others and value is not root)
            table = value if isinstance(value, (dict, list, set)) else getattr(value, "__dict__", None)
            if not closed and isinstance(table, (dict, list, set)):
                self._tables.append((table, table.copy()))
            parts = None if closed else _parts(value, value is root)
            if parts is None:
                self.values[path] = value
                continue
            # In an order of its own: an object of several places has the same path each time.
            todo += [((*path, key), part) for key, part in sorted(parts, key=lambda part: part[0])]

    def again(self) -> None:
        """As it is now, of what was held when this was made: other tensors and values may be in the same tables."""
        self._tables = [(table, table.copy()) for table, _ in self._tables]

    def restore(self) -> None:
        """Puts the old contents back. Elements of tensors do not change."""
        for table, before in self._tables:
            if isinstance(table, list):
                table[:] = before
                continue
            table.clear()
            table.update(before)


def value_at(root: Any, path: Path) -> Any:
    """Returns what a HeldState of `root` would have there now; None: nothing."""
    value = root
    for key in path:
        parts = dict(_parts_if_any(value))
        if key not in parts:
            return None
        value = parts[key]
    return value


def tensor_at(root: Any, path: Path) -> Any:
    """Like value_at, for tensors; None: there is no tensor."""
    value = value_at(root, path)
    return value if is_torch(value) else None


class Held(NamedTuple):
    """A tensor of torch or an array of numpy.

    Attributes:
      name: for users, such as "layers.0.attention.cache.1".
      module, path: of the module that holds it, and where it is in that, for tensor_at and put_at.
      owner: the module's name.
    """

    name: str
    tensor: Any
    module: Any
    path: Path
    owner: str


def held_by_model(model: Any, unfilled: Optional[set[str]] = None) -> Iterator[Held]:
    """What a model, its submodules and their classes hold; hooks of modules count as held, and so do modules that are no
    submodules, with theirs. An object of several places has its first name.

    Args:
      model: a torch module.
      unfilled: gets the names of where later passes may put tensors: of what is None, and of containers with ".*".
    """
    modules = dict(model.named_modules())
    others = {id(module) for module in modules.values()}
    seen: dict[int, Any] = {}  # kept, so that no other object gets the number
    for owner, module in modules.items():
        todo: list[tuple[Path, Any]] = [*_of_class(module), ((), module)]
        while todo:
            path, value = todo.pop()
            if unfilled is not None and (value is None or isinstance(value, _CONTAINERS)):
                if value is None:
                    unfilled.add(_name_of(owner, path))
                elif path and path[-1] not in _tables_of_torch():
                    unfilled.add(_name_of(owner, (*path, "*")))
            if isinstance(value, _VALUES) or id(value) in seen:
                continue
            if value is not module and id(value) in others:
                continue
            seen[id(value)] = value
            if len(seen) > _MODEL_OBJECTS_MAX:
                _LOG.warning("dws: the model holds more than %d objects: the rest is not looked at", len(seen) - 1)
                return
            if is_torch(value) or isinstance(value, np.ndarray):
                yield Held(_name_of(owner, path), value, module, path, owner)
                # A loader, and what the loader holds.
                value = getattr(value, "__dict__", None) or {}
            todo += [((*path, key), part) for key, part in reversed(_parts_if_any(value))]


@functools.lru_cache(maxsize=None)
def _tables_of_torch() -> frozenset[str]:
    """The attributes that every module has."""
    torch: Any = importlib.import_module("torch")
    return frozenset(vars(torch.nn.Module()))


def _name_of(owner: str, path: Path) -> str:
    return ".".join((*filter(None, (owner,)), *(key for key in path if key not in _SHOWN_AS_MEMBERS)))


def _of_class(module: Any) -> list[tuple[Path, Any]]:
    """What the class of a module holds for all of its modules; torch's own classes hold nothing."""
    kinds = [kind for kind in type(module).__mro__ if not kind.__module__.startswith("torch.")]
    return [
        ((name,), value)
        for kind in kinds
        for name, value in list(vars(kind).items())
        if not name.startswith("__") and (is_torch(value) or isinstance(value, (dict, list, tuple, np.ndarray)))
    ]


def _parts_if_any(value: Any) -> list[tuple[str, Any]]:
    """All that can be found in an object, also by means that HeldState does not use."""
    if isinstance(value, _NEVER_OPENED):
        return []
    parts: list[tuple[str, Any]] = []
    try:
        if not isinstance(value, _CLOSED):
            parts = _parts(sorted(value, key=id) if isinstance(value, (set, frozenset)) else value, False) or []
    except Exception as error:  # raised by an object that does not allow inspection
        _LOG.debug("dws: a %s cannot be looked into: %r", type(value).__name__, error)
    return parts if type(value) in _OPEN else parts + _hidden_parts(value, parts)


def _hidden_parts(value: Any, parts: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """What an object holds beside its parts: submodules, keys, and what only the garbage collector sees, such as the
    results in a functools.lru_cache and the variables of a generator."""
    held = None
    with contextlib.suppress(Exception):  # an object that does not allow inspection
        held = value.__dict__
    known = {id(held), *(id(part) for _, part in parts)}
    hidden: list[tuple[str, Any]] = []
    if isinstance(held, dict) and "_modules" in held:
        hidden = [("_modules", held["_modules"])]
    elif held and isinstance(value, _CONTAINERS):
        hidden = [("__dict__", held)]
    known.update(id(part) for _, part in hidden)
    if isinstance(value, weakref.KeyedRef):  # of a WeakValueDictionary
        hidden.append(("value", value()))
    referents = [part for part in gc.get_referents(value) if not isinstance(part, (*_VALUES, *_NEVER_OPENED))]
    return hidden + [(f"<{at}>", part) for at, part in enumerate(referents) if id(part) not in known]


def put_at(root: Any, path: Path, tensor: Any) -> bool:
    """Puts a tensor where tensor_at finds another one. Returns False if it cannot be replaced
    there."""
    holder = value_at(root, path[:-1])
    table = holder if isinstance(holder, (dict, list)) else getattr(holder, "__dict__", None)
    if isinstance(table, list):
        table[int(path[-1])] = tensor
        return True
    keys = [key for key in table if str(key) == path[-1]] if isinstance(table, dict) else []
    for key in keys[:1]:
        assert isinstance(table, dict)
        table[key] = tensor
    return bool(keys)


def _parts(value: Any, is_root: bool) -> Optional[list[tuple[str, Any]]]:
    """None: it has none that can be looked into."""
    if isinstance(value, dict):
        return [(str(key), part) for key, part in list(value.items())]
    if isinstance(value, _SEQUENCES):
        return [(str(index), part) for index, part in enumerate(list(value))]
    if isinstance(value, types.MethodType):
        return [("__self__", value.__self__), ("__func__", value.__func__)]
    if isinstance(value, types.FunctionType):
        cells = [cell for cell in value.__closure__ or () if _is_full(cell)]
        inside = [(str(index), cell.cell_contents) for index, cell in enumerate(cells)]
        usual = [("__defaults__", value.__defaults__), ("__kwdefaults__", value.__kwdefaults__)]
        attributes = list(vars(value).items())
        return [("__code__", value.__code__), *inside, *usual, *attributes]
    if isinstance(value, functools.partial):
        return [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
    held = getattr(value, "__dict__", None)
    kind: Any = type(value)
    slots = [(slot, getattr(value, slot)) for slot in _slots(kind) if hasattr(value, slot)]
    if not isinstance(held, dict):
        return slots or None
    skipped = _HOOKS if is_root else frozenset({"_modules"}) if "_modules" in held else frozenset()
    return [(str(key), part) for key, part in list(held.items()) if key not in skipped] + slots


@functools.lru_cache(maxsize=None)
def _slots(kind: Any) -> tuple[str, ...]:
    """Returns the names of the slots that a class and its base classes in Python have."""
    found: list[str] = []
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        private = f"_{base.__name__.lstrip('_')}"  # Python puts it before names such as "__cache"
        for name in [names] if isinstance(names, str) else names:
            found.append(f"{private}{name}" if name.startswith("__") and not name.endswith("__") else name)
    return tuple(name for name in found if name not in ("__dict__", "__weakref__"))


def changed_values(before: Mapping[Path, Any], after: Mapping[Path, Any]) -> Iterator[Path]:
    """Where something that is no tensor is another one than before."""
    for path in [*before, *(path for path in after if path not in before)]:
        old, new = before.get(path, before), after.get(path, before)
        if old is not new and not _equal(old, new):
            yield path


def _equal(old: Any, new: Any) -> bool:
    if type(old) is not type(new) or getattr(type(old), "__eq__") is object.__eq__:
        return False
    try:
        return bool(old == new)
    except (TypeError, ValueError, RuntimeError):  # of types that compare by element
        return False


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
