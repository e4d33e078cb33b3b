"""An adapter in the form of its checkpoint, in memory that a receiver writes: beside the engine's own form.

Engines multiply B by its scaling, cast, pad, pack and cut an adapter when they load it. So a commit writes the
checkpoint's form, and the engine's own loading code makes its form of that again.
"""

from __future__ import annotations

import json
import os
from typing import Any, Mapping, Optional

from dws.adapters.config import PREFIX, AdapterConfig, require_shapes
from dws.dtypes import float_type, loaded_torch
from dws.errors import InvalidArgumentError, LayoutError
from dws.plugins.checkpoint import fill
from dws.plugins.checkpoint_files import CheckpointFiles

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"


class Shadow:
    """Lifecycle: made from a checkpoint's folder, with its values; `tensors` are attached, and `use` takes the views that
    the attach has returned. Threads: one at a time, inside the lease or in its pause.

    Attributes:
      folder: of the checkpoint.
      config: the checkpoint's.
      tensors: name -> torch tensor, what is attached.
    """

    def __init__(self, folder: str, dtype: Optional[Any] = None) -> None:
        """Args:
          folder: with adapter_model.safetensors and adapter_config.json, as peft saves them.
          dtype: in which the trainer publishes A and B; None: the checkpoint's.

        Raises:
          InvalidArgumentError: no such folder, or not such files.
          LayoutError: the adapter has something that is not supported, by name.
          DTypeError: dtype is no floating-point type.
        """
        self.folder = os.path.realpath(folder)
        what = f"the adapter in '{folder}'"
        self.config = AdapterConfig.of(_read_config(os.path.join(folder, CONFIG)), what)
        files = CheckpointFiles(folder, WEIGHTS)
        require_shapes(files.canonical(), self.config, what)
        torch: Any = loaded_torch()
        wanted = None if dtype is None else float_type(dtype, "dtype=")
        self.tensors: dict[str, Any] = {
            name: torch.empty(one.shape, dtype=(wanted or files.dtype(name)).torch)
            for name, one in files.canonical().items()
        }
        fill(self.tensors, {}, files)
        # First, so that they are the first that a receiver refuses.
        zeros = {name: torch.from_numpy(zero) for name, zero in self.config.tensors().items()}
        self.tensors = {**zeros, **self.tensors}

    def use(self, views: Mapping[str, Any]) -> None:
        """From now on the values are in `views`."""
        self.tensors = dict(views)

    def copies(self) -> dict[str, Any]:
        """A and B as they are now, in memory of their own: engines change what they load."""
        return {name: tensor.clone() for name, tensor in self.tensors.items() if not name.startswith(PREFIX)}

    def require_config(self, config: AdapterConfig) -> None:
        """Args:
          config: what the engine's own code has read of the folder now.

        Raises:
          LayoutError: it is another one.
        """
        if config != self.config:
            raise LayoutError(
                f"'{self.folder}/{CONFIG}' says {config}, expected {self.config}, which it said when the adapter was attached: "
                "restore it, or detach the adapter"
            )


def _read_config(path: str) -> Mapping[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"'{path}' cannot be read: {error}; expected a folder that peft has saved") from error
    if not isinstance(found, dict):
        raise InvalidArgumentError(f"'{path}' has a {type(found).__name__}, expected an object")
    return found


