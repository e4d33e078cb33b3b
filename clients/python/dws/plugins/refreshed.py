"""Tensors that an engine computes from weights by a call of its own, such as SGLang's post_load_weights. The call runs
again after each commit and brings them up to date.

Two trials show which tensors the call makes. Neither writes weights.

1. `adopt_made` runs the call once before the attach. A tensor that the call replaces, or writes so that torch counts it,
   is adopted, whatever it computes.
2. `adopt` tries copies of weights that trial 1 has left, or that a forward pass has made later. It writes other elements
   into them and runs the call. A copy that has its own elements again is adopted.

CUDA graphs know the tensors that the engine had at the attach. If the call replaces one, its elements are copied into the
engine's tensor, and that is put back in its place.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Iterable, Mapping

from dws.arrays import is_torch
from dws.errors import LayoutError
from dws.held.held_state import Held, put_at, tensor_at
from dws.plugins.tensor_memory import alike_for_copy, bits_of, bytes_of, copy_of, working_on

_LOG = logging.getLogger(__name__)

# By name, each with the name of its weight.
Copies = Mapping[str, tuple[Held, str]]


class Refreshed:
    """Threads: one at a time.

    Attributes:
      adopted: the tensors that `run` brings up to date, by name.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.adopted: dict[str, Held] = {}

    def adopt_made(self, beside: Iterable[Held], copies: Copies) -> None:
        """Runs the call before the attach and adopts the tensors that it replaces or writes. Copies keep their elements. If
        this raises, the engine's tensors are back in their places.

        Args:
          beside: tensors of the model that are neither weights nor copies.
          copies: a copy that gets other elements from the call than it has is not adopted.

        Raises:
          LayoutError: as `run`.
        """
        tensors = {held.name: held for held in [*beside, *(held for held, _ in copies.values())] if is_torch(held.tensor)}
        if not tensors:
            return
        elements = {name: copy_of(tensors[name].tensor) for name in copies if name in tensors}
        writes = {name: _writes_of(held.tensor) for name, held in tensors.items()}
        try:
            self._run_call(next(iter(tensors.values())).tensor.device)
            self.adopted = {name: held for name, held in tensors.items() if _is_made(held, writes[name])}
            self._put_back()
        except BaseException:
            self.adopted = {}
            for held in tensors.values():
                put_at(held.module, held.path, held.tensor)
            _restore(tensors, elements)
            raise
        other = {n: was for n, was in elements.items() if not bytes_of(tensors[n].tensor).equal(bytes_of(was))}
        _restore(tensors, other)
        self.adopted = {name: held for name, held in self.adopted.items() if name not in other}

    def adopt(self, copies: Copies) -> list[str]:
        """Tries the call, while no pass runs. Copies have the elements that they had when it returns.

        Returns:
          the names of those that the call brings up to date, and `run` from now on.
        """
        known = self.adopted
        tried = {name: held for name, (held, _) in copies.items() if is_torch(held.tensor)}
        self.adopted = {**known, **tried}
        tensors = {name: held.tensor for name, held in tried.items()}
        made = {name: copy_of(tensor) for name, tensor in tensors.items()}
        updated = []
        try:
            with working_on(next((tensor.device for tensor in tensors.values()), None)):
                for tensor in tensors.values():
                    bits = bits_of(tensor.data)
                    # Except padding, which the call may leave unchanged.
                    bits ^= (bits != 0).to(bits.dtype)
            self.run()
            updated = [name for name, tensor in tensors.items() if bytes_of(tensor).equal(bytes_of(made[name]))]
        except LayoutError as error:
            _LOG.warning("dws: %s", error)
        finally:
            for name in tensors.keys() - set(updated):
                tensors[name].data.copy_(made[name])
                put_at(tried[name].module, tried[name].path, tensors[name])
            self.adopted = {**known, **{name: tried[name] for name in updated}}
        return updated

    def run(self) -> None:
        """Brings the adopted tensors up to date with the weights.

        Raises:
          LayoutError: the call fails, or makes a tensor that does not fit the one that the engine has, by name.
        """
        if not self.adopted:
            return
        self._run_call(next(iter(self.adopted.values())).tensor.device)
        self._put_back()

    def _run_call(self, device: Any) -> None:
        with working_on(device):
            try:
                self._call()
            except Exception as error:
                raise LayoutError(
                    f"the engine's own call that brings copies of weights up to date fails: {type(error).__name__}: {error}"
                ) from error

    def _put_back(self) -> None:
        """Copies the tensors with which the call has replaced the engine's into these, and puts the engine's back."""
        for name, held in self.adopted.items():
            new = tensor_at(held.module, held.path)
            if new is held.tensor:
                continue
            if new is None or not alike_for_copy(held.tensor, new):
                raise LayoutError(f"'{name}': the engine's own call makes a tensor of another shape or type of it")
            with working_on(held.tensor.device):
                held.tensor.data.copy_(new)
            if not put_at(held.module, held.path, held.tensor):
                raise LayoutError(f"'{name}': what the engine's own call makes of it cannot be replaced where it is")


def _restore(tensors: Mapping[str, Held], elements: Mapping[str, Any]) -> None:
    for name, was in elements.items():
        tensors[name].tensor.data.copy_(was)


def _is_made(held: Held, writes: int) -> bool:
    """Returns whether another tensor is in the place of this one, or torch has seen a write since
    `writes`."""
    return tensor_at(held.module, held.path) is not held.tensor or _writes_of(held.tensor) != writes


def _writes_of(tensor: Any) -> int:
    """Returns how often torch has seen writes into it; torch does not count them for inference
    tensors."""
    return 0 if tensor.is_inference() else int(tensor._version)
