"""Copies of weights that an engine brings up to date by a call of its own, such as SGLang's post_load_weights.

A trial shows which of them the call brings up to date: copies get other elements, the call runs, and those that have their
elements again are made by it. Weights are not written, so that a copy that a pass has made can be tried too. After a commit
the call runs again. A tensor that the call makes anew is copied into the one that the engine has had all the time, which
CUDA graphs know, and that is put back.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Mapping

from dws.arrays import is_torch
from dws.errors import LayoutError
from dws.held.held_state import Held, put_at, tensor_at
from dws.plugins.tensor_memory import alike_for_copy, bits_of, bytes_of, copy_of, working_on

_LOG = logging.getLogger(__name__)

# By name, each with the name of its weight.
Copies = Mapping[str, tuple[Held, str]]


class RefreshedCopies:
    """Threads: one at a time.

    Attributes:
      copies: those that the call brings up to date.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.copies: dict[str, tuple[Held, str]] = {}

    def adopt(self, copies: Copies) -> list[str]:
        """Tries the call, while no pass runs. Copies have the elements that they had when it returns.

        Returns:
          the names of those that the call brings up to date, and `run` from now on.
        """
        known = self.copies
        tried = {name: each for name, each in copies.items() if is_torch(each[0].tensor)}
        self.copies = {**known, **tried}
        tensors = {name: held.tensor for name, (held, _) in tried.items()}
        made = {name: copy_of(tensor) for name, tensor in tensors.items()}
        updated = []
        try:
            with working_on(next((tensor.device for tensor in tensors.values()), None)):
                for tensor in tensors.values():
                    bits = bits_of(tensor.data)
                    bits ^= (bits != 0).to(bits.dtype)  # not of padding, which the call may leave as it is
            self.run()
            updated = [name for name, tensor in tensors.items() if bytes_of(tensor).equal(bytes_of(made[name]))]
        except LayoutError as error:
            _LOG.warning("dws: %s", error)
        finally:
            for name in tensors.keys() - set(updated):
                tensors[name].data.copy_(made[name])
                put_at(tried[name][0].module, tried[name][0].path, tensors[name])
            self.copies = {**known, **{name: tried[name] for name in updated}}
        return updated

    def run(self) -> None:
        """Brings the copies up to date with the weights.

        Raises:
          LayoutError: the call fails, or makes a tensor that does not fit the one that the engine has, by name.
        """
        if not self.copies:
            return
        with working_on(next(held.tensor.device for held, _ in self.copies.values())):
            try:
                self._call()
            except Exception as error:
                raise LayoutError(
                    f"the engine's own call that brings copies of weights up to date fails: {type(error).__name__}: {error}"
                ) from error
            for name, (held, _) in self.copies.items():
                new = tensor_at(held.module, held.path)
                if new is held.tensor:
                    continue
                if new is None or not alike_for_copy(held.tensor, new):
                    raise LayoutError(f"'{name}': the engine's own call makes a tensor of another shape or type of it")
                held.tensor.data.copy_(new)
                if not put_at(held.module, held.path, held.tensor):
                    raise LayoutError(f"'{name}': what the engine's own call makes of it cannot be replaced where it is")
