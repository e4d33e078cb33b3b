"""A stand-in for what dws.declare takes of transformers 5: its class of models, and the function by which save_pretrained makes
a checkpoint's tensors of theirs. Operations have the names of transformers' own.
"""

from __future__ import annotations

import contextlib
import re
import sys
import types
from typing import Any, Iterator, Mapping, Optional, Sequence
from unittest import mock

import torch

Tensors = dict[str, torch.Tensor]


class PreTrainedModel(torch.nn.Module):
    """Attributes:
    config: the model_type, renamings of the checkpoint (pattern: text), and operations by a pattern of names.
    """

    _tied_weights_keys: Optional[Mapping[str, str]] = None
    _keys_to_ignore_on_save: Optional[Sequence[str]] = None

    def __init__(
        self,
        renames: Optional[Mapping[str, str]] = None,
        operations: Optional[Mapping[str, Sequence[Operation]]] = None,
    ) -> None:
        super().__init__()
        self.config = types.SimpleNamespace(
            model_type="stand_in", renames=renames or {}, operations=operations or {}
        )


class Operation:
    reverse_op: Any = None

    def convert(self, name: str, tensor: torch.Tensor) -> Tensors:
        raise NotImplementedError


class Chunk(Operation):
    """gate_up_proj: gate_proj and up_proj."""

    def __init__(self, dim: int = 1) -> None:
        self.dim = dim

    def convert(self, name: str, tensor: torch.Tensor) -> Tensors:
        halves = [half.contiguous() for half in torch.chunk(tensor, 2, dim=self.dim)]
        return {name.replace("gate_up", of): half for of, half in zip(("gate", "up"), halves)}


class SplitModulelist(Operation):
    """experts.x: experts.N.x.weight."""

    def convert(self, name: str, tensor: torch.Tensor) -> Tensors:
        return {
            f"{name.replace('experts', f'experts.{number}')}.weight": each.squeeze(0)
            for number, each in enumerate(torch.chunk(tensor, len(tensor)))
        }


class Concatenate(Operation):
    def convert(self, name: str, tensor: torch.Tensor) -> Tensors:
        return {name: torch.cat([tensor, tensor])}


class Transpose(Operation):
    def convert(self, name: str, tensor: torch.Tensor) -> Tensors:
        return {name: tensor.transpose(0, 1).contiguous()}


class Interleave(Operation):
    """Changes the tensor in its place."""

    def convert(self, name: str, tensor: torch.Tensor) -> Tensors:
        return {name: tensor.mul_(2)}


class MergeModulelist(Operation):
    """Loses the last row."""

    def convert(self, name: str, tensor: torch.Tensor) -> Tensors:
        return {name: tensor[:-1]}


class Rotate(Operation):
    """Not known to dws.declare; it looks whether a tensor has values."""

    def convert(self, name: str, tensor: torch.Tensor) -> Tensors:
        return {name: tensor if tensor.is_meta else tensor.flip(0)}


class PermuteForRope(Operation):
    def convert(self, name: str, tensor: torch.Tensor) -> Tensors:
        raise ValueError("it has no heads")


EXPERTS: Mapping[str, Sequence[Operation]] = {
    "gate_up_proj": (Chunk(), SplitModulelist()),
    "experts.down_proj": (SplitModulelist(),),
}


def revert_weight_conversion(model: PreTrainedModel, state: Tensors) -> Tensors:
    """Also checks what it is given: a whole model under its own class, with its tensors."""
    assert type(model).__module__ != "torch.distributed.fsdp", type(model)
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    found = {}
    for name, tensor in state.items():
        assert own[name] is tensor, name
        parts = {name: tensor}
        for pattern, operations in model.config.operations.items():
            for operation in operations if re.search(pattern, name) else ():
                converted = [operation.convert(key, part) for key, part in parts.items()]
                parts = {key: part for each in converted for key, part in each.items()}
        for key, part in parts.items():
            for pattern, text in model.config.renames.items():
                key = re.sub(pattern, text, key)
            found[key] = part
    return found


@contextlib.contextmanager
def loaded() -> Iterator[None]:
    """A block in which this transformers is in the process."""
    modules = {name: types.ModuleType(name) for name in ("modeling_utils", "core_model_loading")}
    modules["modeling_utils"].PreTrainedModel = PreTrainedModel  # type: ignore[attr-defined]
    modules["core_model_loading"].revert_weight_conversion = revert_weight_conversion  # type: ignore[attr-defined]
    with mock.patch.dict(sys.modules, {f"transformers.{name}": each for name, each in modules.items()}):
        yield
