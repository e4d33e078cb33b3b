"""Looks for copies of weights in a model: before an attach, after the first passes, when layers have made what they make
when they are first called, and before the first commits. What is computed from a weight element by element counts as a
copy.

A commit writes the weights, and not their copies: passes would compute with old weights, without an error.
"""

from __future__ import annotations

import contextlib
import fnmatch
import importlib
import logging
import threading
import weakref
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

from dws.arrays import is_torch
from dws.errors import InvalidArgumentError
from dws.held.aliases import Extents, extent_of
from dws.held.computed import find_computed
from dws.held.copies import constant_copies, equal_copies, find_copies, sample_of
from dws.held.held_state import Held, held_by_model
from dws.torch_module import named_tensors

_LOG = logging.getLogger(__name__)

# The passes after which a model is checked, and the commits before which it is, counting those that passes have preceded.
# What is made after both is not found.
_LOOKS = frozenset({1, 2, 4, 8, 16, 32, 64})
# Looks that may fail; each is made again after the next pass.
_FAILURES = 16
_SHOWN = 100


class CopyWatch:
    """Threads: any may call `after_pass`, `counts_pass`, `look` and `before_commit`; one calls everything else.

    Attributes:
      model: the module that is checked.
      beside: the tensors that are neither weights nor copies of weights, as before_attach has found
        them.
      adopt: gets copies, and returns the names of those that are kept up to date from now on; None:
        nobody does that.
    """

    def __init__(
        self,
        model: Any,
        weights: Callable[[], Mapping[str, Any]],
        kept: Sequence[str] = (),
        updated: Iterable[Any] = (),
        refuses: Callable[[str], bool] = lambda name: True,
    ) -> None:
        """Args:
        model: a torch module.
        weights: gives what commits write, by name.
        kept: names of tensors that may stay as they are, with the wildcards of fnmatch.
        updated: tensors that the engine brings up to date after each commit.
        refuses: whether a copy of this name is wrong; otherwise something else brings it up to date, and it is only told.
          "": what could not be looked at.
        """
        self.model = model
        self.beside: list[Held] = []
        self.adopt: Optional[Callable[[Mapping[str, tuple[Held, str]]], Sequence[str]]] = None
        self._weights = weights
        self._kept = tuple(kept)
        self._updated = list(updated)
        self._refuses = refuses
        self._guard = threading.Lock()
        self._passes = 0
        self._passes_committed = 0  # before the last commit
        self._commits = 0
        self._is_due = False
        self._failures = 0
        self._everything = True  # at the next look after a pass
        self._stream: Any = None  # of the last pass: what it has started there comes before a look
        # By name, a state that shows that a tensor is unchanged; it keeps no tensor alive. None:
        # nothing was checked yet.
        self._known: Optional[dict[str, tuple[Any, ...]]] = None
        self._first_weights = _FirstTensors()
        self._first_registered = _FirstTensors()

    def holders(self) -> list[str]:
        """The modules, by name, that hold copies now: the engine may have a call that makes these again.

        Raises:
          InvalidArgumentError: a name in `kept` that nothing has.
        """
        found, _ = self._look(everything=True)
        self._known = None
        return list(dict.fromkeys(held.owner for held, _ in found.values()))

    def before_attach(self) -> dict[str, tuple[Held, str]]:
        """The copies that the model has, by name, each with what it is in words. The other tensors that it holds are told
        once, by the log.

        Raises:
          InvalidArgumentError: a name in `kept` that nothing has.
        """
        found, others = self._look(everything=True)
        self.beside = others
        if others:
            shown = ", ".join(f"{held.name} {str(held.tensor.dtype)[6:]} {list(held.tensor.shape)}" for held in others[:_SHOWN])
            _LOG.info(
                "dws: %d tensors beside the weights have no elements of these: %s%s",
                len(others),
                shown,
                " ..." if len(others) > _SHOWN else "",
            )
        return self._wrong(found)

    def updates(self, tensors: Iterable[Any]) -> None:
        """These are brought up to date after each commit: they are not looked at."""
        self._updated += tensors

    def not_adopted(self, copies: dict[str, tuple[Held, str]]) -> dict[str, tuple[Held, str]]:
        """Those of `copies` that nothing brings up to date after a commit."""
        taken = set(self.adopt(copies)) if copies and self.adopt is not None else set()
        self.updates(copies[name][0].tensor for name in taken)
        return {name: each for name, each in copies.items() if name not in taken}

    def after_pass(self) -> Optional[str]:
        """Call it after a pass, while no weights are written.

        Returns:
          why the engine may not go on, in words; None: it may.
        """
        return self.look() if self.counts_pass() else None

    def counts_pass(self) -> bool:
        """As after_pass, without the look. Returns whether it is due."""
        torch: Any = importlib.import_module("torch")
        with self._guard:
            self._stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None
            self._passes += 1
            self._is_due = self._is_due or self._passes in _LOOKS
            return self._is_due and not _is_capturing()

    def before_commit(self) -> Optional[str]:
        """As after_pass, before a commit, while no pass runs: of copies that passes have made that were not looked at."""
        with self._guard:
            if self._passes == self._passes_committed:
                return None
            self._passes_committed = self._passes
            self._commits += 1
            self._is_due = self._is_due or self._commits in _LOOKS
        return self.look()

    def look(self) -> Optional[str]:
        """As after_pass, of a pass that is counted. On any thread, before weights are written."""
        torch: Any = importlib.import_module("torch")
        with self._guard, torch.cuda.stream(self._stream):
            if not self._is_due:  # another thread has looked since the pass was counted
                return None
            try:
                # A kernel may have written into a tensor that existed before, without torch knowing
                # it.
                found, _ = self._look(self._everything)
            except Exception as error:  # for example, another thread changes the checked objects
                self._failures += 1
                if self._failures <= _FAILURES or not self._refuses(""):
                    self._is_due = self._failures <= _FAILURES
                    _LOG.warning("dws: copies of weights could not be looked for after a pass: %s", error)
                    return None
                return (
                    f"copies of weights cannot be looked for after forward passes: {type(error).__name__}: {error}. Make "
                    "sure that nothing changes what the model holds at the end of a pass"
                )
            self._is_due = self._everything = False
        wrong = self._wrong(found)
        wrong = self.not_adopted(wrong)
        return f"a forward pass has made a tensor from a weight: {explained(wrong)}" if wrong else None

    def _wrong(self, found: dict[str, tuple[Held, str]]) -> dict[str, tuple[Held, str]]:
        wrong = {name: each for name, each in found.items() if self._refuses(name)}
        told = {name: each for name, each in found.items() if name not in wrong}
        if told:
            _LOG.warning("dws: %s, or a hook that is given already does", explained(told))
        return wrong

    def _look(self, everything: bool) -> tuple[dict[str, tuple[Held, str]], list[Held]]:
        """Copies by name, and the other tensors that were compared.

        Args:
          everything: whether tensors are compared that were there at the last look, and seem unchanged.
        """
        weights = self._first_weights.among(self._weights())
        memory = Extents({**weights, **{f"updated {n}": tensor for n, tensor in enumerate(self._updated)}})
        registered = {id(tensor) for tensor in self._first_registered.among(named_tensors(self.model)).values()}
        known, states = self._known, dict[str, tuple[Any, ...]]()
        compared: dict[str, Held] = {}
        names = set[str]()  # all that a pattern in `kept` may mean
        for held in held_by_model(self.model, names if known is None else None):
            tensor = held.tensor
            names.add(held.name)
            extent = None if id(tensor) in registered else extent_of(tensor)
            if extent is None or next(memory.overlapping(extent), None) is not None:
                continue
            # Torch does not count what is written into arrays, inference tensors, and by kernels.
            is_kept = any(fnmatch.fnmatchcase(held.name, pattern) for pattern in self._kept)
            counts = is_torch(tensor) and not tensor.is_inference() and not is_kept
            state = (id(tensor), extent, (tensor._version, sample_of(tensor)) if counts else None)
            states[held.name] = state
            if not is_kept and (everything or known is None or not counts or known.get(held.name) != state):
                compared[held.name] = held
        if known is None:
            self._require_known(names)
        self._known = states
        tensors = {n: t for n, held in compared.items() if (t := _as_torch(held.tensor)) is not None}
        copies = find_copies(weights, tensors)
        # Buffers that were made with the module may be tables of ones.
        buffers = {id(buffer) for buffer in self.model.buffers()}
        tables = {
            name
            for name, held in compared.items()
            if id(held.tensor) in buffers and (known is None or known.get(name) == states[name])
        }
        plain = {name: tensor for name, tensor in tensors.items() if name not in copies.keys() | tables}
        owners = {name: compared[name].owner for name in plain}
        new = set() if known is None else {n for n in plain if n not in known or known[n][0] != states[n][0]}
        copies.update({**equal_copies(weights, plain, owners, new), **constant_copies(weights, plain, owners)})
        rest = {name: tensor for name, tensor in tensors.items() if name not in copies}
        found = {name: (compared[name], f"a copy of weight '{weight}'") for name, weight in copies.items()}
        for name, weight in find_computed(weights, rest).items():
            found[name] = (compared[name], f"computed from weight '{weight}', element by element")
        return found, [held for name, held in compared.items() if name not in found]

    def _require_known(self, names: set[str]) -> None:
        for pattern in self._kept:
            if any(_may_mean(pattern, name) for name in names):
                continue
            raise InvalidArgumentError(
                f"kept has '{pattern}', expected the name of a tensor that {type(self.model).__name__} holds, or of an "
                "attribute that is None until a pass fills it, and found none: correct the name, or leave it out (messages "
                "about copies have the names). Of an attribute that does not exist before the first pass, run one before "
                "the attach"
            )


class _FirstTensors:
    """The tensors that a model had at the first look: one that a pass registers later may be a copy of them."""

    def __init__(self) -> None:
        self._held: Optional[dict[str, Any]] = None  # weak references by name

    def among(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Returns those of `tensors` that are among the first tensors, or have the name of one; the
        first call determines these."""
        if self._held is None:
            self._held = {name: weakref.ref(tensor) for name, tensor in tensors.items()}
        alive = {id(tensor) for held in self._held.values() if (tensor := held()) is not None}
        return {name: tensor for name, tensor in tensors.items() if name in self._held or id(tensor) in alive}


def _may_mean(pattern: str, name: str) -> bool:
    """Args:
    name: of a tensor or attribute, or a container's with ".*".
    """
    if fnmatch.fnmatchcase(name, pattern):
        return True
    container, inside = name[:-2], pattern.rpartition(".")[0]
    # An asterisk stands for dots too: "layers.*.typo" is not inside each container of a layer.
    is_inside = container.count(".") == inside.count(".") and fnmatch.fnmatchcase(container, inside)
    return name.endswith(".*") and (is_inside or fnmatch.fnmatchcase(pattern, name))


def explained(copies: Mapping[str, tuple[Held, str]]) -> str:
    """Returns in words what is wrong with them, and what to do."""
    shown = "; ".join(
        f"'{name}' ({type(held.module).__name__}, {held.tensor.dtype} {list(held.tensor.shape)}) is {what}"
        for name, (held, what) in list(copies.items())[:3]
    )
    return (
        f"{shown}{' ...' if len(copies) > 3 else ''} ({len(copies)} in all), and nothing brings it up to date after a commit: "
        "passes would compute with old weights. Turn off what makes it, give a hook that brings it up to date after each "
        "commit, or name it in kept=[...] if nothing computes with it"
    )


def _as_torch(tensor: Any) -> Optional[Any]:
    """Returns the tensor, or a view of an array of numpy; None: torch cannot have one."""
    if is_torch(tensor):
        return tensor
    torch: Any = importlib.import_module("torch")
    with contextlib.suppress(TypeError, ValueError):
        # torch warns of arrays that must not be written.
        return torch.from_numpy(tensor if tensor.flags.writeable else tensor.copy())
    return None


def _is_capturing() -> bool:
    """Returns whether this thread records a CUDA graph, in which nothing may be read."""
    torch: Any = importlib.import_module("torch")
    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
