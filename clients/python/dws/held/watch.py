"""Looks for copies of weights in a model: before an attach, and after the first passes, when layers have made what they
make when they are first called.

A commit writes the weights, and not their copies: passes would compute with old weights, without an error.
"""

from __future__ import annotations

import fnmatch
import importlib
import logging
import threading
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

from dws.arrays import is_torch
from dws.held.aliases import Extents, extent_of
from dws.held.copies import constant_copies, find_copies
from dws.held.held_state import Held, held_by_model
from dws.torch_module import named_tensors

_LOG = logging.getLogger(__name__)

# The passes after which a model is looked at. What a later one makes is not found.
_LOOKS = frozenset({1, 2, 4, 8, 16, 32, 64})
_SHOWN = 100


class CopyWatch:
    """Threads: `after_pass` from any; everything else from one.

    Attributes:
      model: the module that is looked at.
    """

    def __init__(
        self,
        model: Any,
        weights: Callable[[], Mapping[str, Any]],
        kept: Sequence[str] = (),
        updated: Iterable[Any] = (),
        refuses: bool = True,
    ) -> None:
        """Args:
        model: a torch module.
        weights: gives what commits write, by name.
        kept: names of tensors that may stay as they are, with the wildcards of fnmatch.
        updated: tensors that the engine brings up to date after each commit.
        refuses: whether a copy is wrong; otherwise something else brings it up to date, and it is only told.
        """
        self.model = model
        self._weights = weights
        self._kept = tuple(kept)
        self._updated = list(updated)
        self._refuses = refuses
        self._guard = threading.Lock()
        self._passes = 0
        self._known: dict[str, tuple[Any, ...]] = {}  # by name, what shows that it is unchanged; no tensor is kept alive

    def holders(self) -> list[str]:
        """The modules, by name, that hold copies now: the engine may have a call that makes these again."""
        found, _ = self._look(constants=False)
        self._known = {}
        return list(dict.fromkeys(held.owner for held, _ in found.values()))

    def before_attach(self) -> dict[str, tuple[Held, str]]:
        """The copies that the model has, by name, each with its weight's name. The other tensors that it holds are told
        once, by the log."""
        found, others = self._look(constants=False)
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
        """The engine brings these tensors up to date after each commit."""
        self._updated += tensors

    def after_pass(self) -> Optional[str]:
        """To be called when a pass has ended, while no weights are written.

        Returns:
          why the engine may not go on, in words; None: it may.
        """
        with self._guard:
            self._passes += 1
            if self._passes not in _LOOKS or _is_capturing():
                return None
            try:
                found, _ = self._look(constants=True)
            except RuntimeError as error:  # another thread changes what is looked at
                _LOG.warning("dws: copies of weights could not be looked for after a pass: %s", error)
                return None
        wrong = self._wrong(found)
        return f"a forward pass has made a copy of a weight: {explained(wrong)}" if wrong else None

    def _wrong(self, found: dict[str, tuple[Held, str]]) -> dict[str, tuple[Held, str]]:
        if found and not self._refuses:
            _LOG.warning("dws: %s, or a hook that is given already does", explained(found))
            return {}
        return found

    def _look(self, constants: bool) -> tuple[dict[str, tuple[Held, str]], list[Held]]:
        """Copies by name, and the other tensors, of what was not there or had other elements the last time.

        Args:
          constants: whether a new tensor of one number counts as a copy of a weight of that number.
        """
        weights = self._weights()
        memory = Extents({**weights, **{f"updated {n}": tensor for n, tensor in enumerate(self._updated)}})
        registered = {id(tensor) for tensor in named_tensors(self.model).values()}
        buffers = {id(buffer) for buffer in self.model.buffers()}
        known, self._known = self._known, {}
        new: dict[str, Held] = {}
        for held in held_by_model(self.model):
            tensor = held.tensor
            extent = extent_of(tensor) if is_torch(tensor) and id(tensor) not in registered else None
            if extent is None or next(memory.overlapping(extent), None) is not None:
                continue
            state = (id(tensor), extent, None if tensor.is_inference() else tensor._version)
            self._known[held.name] = state
            is_kept = any(fnmatch.fnmatchcase(held.name, pattern) for pattern in self._kept)
            if not is_kept and known.get(held.name) != state:
                new[held.name] = held
        tensors = {name: held.tensor for name, held in new.items()}
        copies = find_copies(weights, tensors)
        # What was there before the attach may be a table of ones; buffers are made when a module is.
        plain = {n: t for n, t in tensors.items() if n not in copies and (constants or id(t) not in buffers)}
        copies.update(constant_copies(weights, plain, {name: new[name].owner for name in plain}))
        found = {name: (new[name], weight) for name, weight in copies.items()}
        return found, [held for name, held in new.items() if name not in copies]


def explained(copies: Mapping[str, tuple[Held, str]]) -> str:
    """What is wrong with them, and what to do."""
    shown = "; ".join(
        f"'{name}' ({type(held.module).__name__}, {held.tensor.dtype} {list(held.tensor.shape)}) is a copy of weight '{weight}'"
        for name, (held, weight) in list(copies.items())[:3]
    )
    return (
        f"{shown}{' ...' if len(copies) > 3 else ''} ({len(copies)} in all), and nothing brings it up to date after a commit: "
        "passes would compute with old weights. Turn off what makes it, give a hook that brings it up to date after each "
        "commit, or name it in kept=[...] if nothing computes with it"
    )


def _is_capturing() -> bool:
    """Whether this thread records a CUDA graph, in which nothing may be read."""
    torch: Any = importlib.import_module("torch")
    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
