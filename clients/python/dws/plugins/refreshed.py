"""Copies of weights that an engine brings up to date by a call of its own, such as SGLang's post_load_weights.

A trial shows which of them the call brings up to date: the weights that they are copies of get other values, the call
runs, and the copies are compared with the weights. After a commit the call runs again. A tensor that the call makes anew
is copied into the one that the engine has had all the time, which CUDA graphs know, and that is put back.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping

from dws.arrays import is_torch
from dws.errors import LayoutError
from dws.held.copies import find_copies
from dws.held.held_state import Held, put_at, tensor_at
from dws.plugins.tensor_memory import alike_for_copy, bytes_of, copy_of, filled_like, working_on


class RefreshedCopies:
    """Threads: one at a time.

    Attributes:
      copies: those that the call brings up to date, by name, each with the name of its weight.
    """

    def __init__(
        self, call: Callable[[], Any], copies: Mapping[str, tuple[Held, str]], weights: Mapping[str, Any]
    ) -> None:
        """Tries the call. Weights and copies have the values that they had when it returns.

        Args:
          call: of the engine.
          copies: by name, each with the name of its weight.
          weights: of the model, by name.

        Raises:
          LayoutError: the call fails, or makes something else of the weights than the engine has, by name.
        """
        self._call = call
        copies = {name: (held, weight) for name, (held, weight) in copies.items() if is_torch(held.tensor)}
        self.copies = dict(copies)
        sources = {weight: weights[weight] for _, weight in copies.values()}
        self._device = next((tensor.device for tensor in sources.values()), None)
        with working_on(self._device):
            before = {weight: copy_of(tensor) for weight, tensor in sources.items()}
            made = {name: copy_of(held.tensor) for name, (held, _) in copies.items()}
            try:
                for tensor in sources.values():
                    tensor.data.copy_(filled_like(tensor, tensor.device))
                self.run()
                updated = find_copies(sources, {name: held.tensor for name, (held, _) in copies.items()})
            finally:
                for weight, tensor in sources.items():
                    tensor.data.copy_(before[weight])
                self.run()
        for name, (held, _) in copies.items():
            if name in updated and not bytes_of(held.tensor).equal(bytes_of(made[name])):
                raise LayoutError(
                    f"'{name}': the engine's own call makes other elements of it than the engine has, so that it was not "
                    "made like this: give a hook that brings it up to date"
                )
        self.copies = {name: copies[name] for name in updated}

    def run(self) -> None:
        """Brings the copies up to date with the weights.

        Raises:
          LayoutError: the call fails, or makes a tensor that does not fit the one that the engine has, by name.
        """
        with working_on(self._device):
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
