"""Weights that a framework cuts as if each, or all of a module, were one flat array: those of torch's FullyShardedDataParallel
(FSDP1) and of DeepSpeed's ZeRO-3.

A process has one range of a tensor's elements, in row-major order, which may begin and end inside
of rows. The range is read from the frameworks' own records beside their parameters, and checked
against the memory. The frameworks do not document these: the attributes are those of torch 2.12 and
DeepSpeed 0.19.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Iterator

from dws.arrays import require_plain
from dws.declare.pieces import Piece
from dws.dtypes import loaded_torch
from dws.errors import LayoutError
from dws.layout import Range
from dws.torch_module import FSDP1_WRAPPER, named_tensors


@dataclasses.dataclass(frozen=True)
class FlatTensor:
    """The part of a tensor that this process has now; it stands in the place of the module's own
    tensor.

    Attributes:
      shape: of the whole tensor.
      dtype: torch's; the forward pass computes with it.
      held: [begin, end) of the tensor's elements; (0, 0) for none.
      elements: those, one-dimensional, in the type that the optimizer has; not a copy.
    """

    shape: tuple[int, ...]
    dtype: Any
    held: Range
    elements: Any

    def is_floating_point(self) -> bool:
        return bool(self.dtype.is_floating_point)

    @property
    def place(self) -> tuple[Any, ...]:
        """All but the values."""
        return self.shape, self.dtype, self.held

    def part(self, name: str, piece: Piece) -> FlatTensor:
        """What this process has of a piece of the tensor.

        Args:
          name: of the tensor, for errors.

        Raises:
          LayoutError: the elements of the piece are not one range.
        """
        if not piece.index:
            return self
        elements = piece.elements(self.shape)
        if elements is None:
            raise LayoutError(
                f"'{piece.name}' is not one range of the elements of '{name}' {list(self.shape)}, which is cut flat: use FSDP2"
            )
        first, last = (min(max(at, elements[0]), elements[1]) for at in self.held)
        held = (first - elements[0], last - elements[0]) if first < last else (0, 0)
        mine = self.elements[first - self.held[0] : last - self.held[0]] if first < last else self.elements[:0]
        return FlatTensor(piece.shape(self.shape), self.dtype, held, mine)


def module_tensors(module: Any) -> dict[str, Any]:
    """As named_tensors, with a FlatTensor for each weight that FSDP1 or ZeRO-3 has cut.

    Args:
      module: a torch module, itself or in any of its parts FullyShardedDataParallel, with or without use_orig_params; or
        of an engine of DeepSpeed.

    Raises:
      LayoutError: a weight is gathered now, or in a form that is not supported; by name.
    """
    try:
        return _module_tensors(module)
    except AttributeError as error:
        raise LayoutError(
            f"expected what FSDP1 of torch 2.12 and ZeRO-3 of DeepSpeed 0.19 have beside their parameters: {error}"
        ) from error


def _module_tensors(module: Any) -> dict[str, Any]:
    found = named_tensors(module)
    for prefix, unit in module.named_modules():
        if FSDP1_WRAPPER not in unit._modules:
            continue
        if unit._handle is not None:
            flat = unit._handle.flat_param
            # The module has either all original parameters or the flat one.
            own = {id(each) for each in (flat, *(flat._params or ()), *(flat._shared_params or ()))}
            found = {name: tensor for name, tensor in found.items() if id(tensor) not in own}
            found.update(_of_fsdp1(f"{prefix}.{FSDP1_WRAPPER}" if prefix else FSDP1_WRAPPER, unit))
    return {
        name: _of_zero_3(name, tensor) if hasattr(tensor, "ds_id") else tensor
        for name, tensor in found.items()
    }


def _of_fsdp1(prefix: str, unit: Any) -> Iterator[tuple[str, FlatTensor]]:
    """Yields them by their own names.

    Args:
      prefix: the prefix of the wrapped module.
      unit: a unit with a handle.
    """
    handle, flat = unit._handle, unit._handle.flat_param
    replicas = getattr(unit, "_inter_node_pg", None)
    for i, (name, place) in enumerate(zip(flat._fqns, flat._shard_param_infos)):
        name = f"{prefix}.{name}"
        _check_group(name, handle.world_size * (replicas.size() if replicas else 1))
        if flat._param_extensions[i] is not None:
            raise LayoutError(f"'{name}' is a DTensor in FSDP1: use FSDP2 (fully_shard)")
        if not flat._contiguities[i]:
            raise LayoutError(
                f"'{name}' is not row-major in FSDP1: make it contiguous() before it is wrapped"
            )
        held, at = (0, 0), 0
        if place.in_shard:
            held = (place.intra_param_start_idx, place.intra_param_end_idx + 1)
            at = place.offset_in_shard
        if flat._params is not None:
            elements = flat._params[i].detach().reshape(-1)
        else:
            elements = flat.detach()[at : at + held[1] - held[0]]
        found = tuple(elements.shape), tuple(flat.shape), elements.dtype
        wanted = (held[1] - held[0],), tuple(flat._sharded_size), flat.dtype
        if found != wanted:
            raise LayoutError(
                f"'{name}': FSDP1 has {found[0]} elements of a flat parameter of {found[1]} as {found[2]} here, expected "
                f"{wanted[0]} of {wanted[1]} as {wanted[2]}: publish after the optimizer step, outside of summon_full_params"
            )
        yield name, _flat(name, flat._shapes[i], handle._fwd_bwd_param_dtype, held, elements)


def _of_zero_3(name: str, parameter: Any) -> FlatTensor:
    part = parameter.ds_tensor
    if part is None or part.final_location == "nvme":
        where = "nowhere" if part is None else "on NVMe"
        raise LayoutError(f"'{name}' is {where} in ZeRO-3: publish partitions that are in memory")
    if part.dtype != parameter.dtype:
        raise LayoutError(
            f"'{name}': ZeRO-3 has {part.dtype} of a weight of {parameter.dtype}, such as of a quantised one; "
            "expected the same"
        )
    torch = loaded_torch()
    assert torch is not None
    ranks = torch.distributed.get_world_size(parameter.ds_process_group)
    _check_group(name, ranks)
    elements = math.prod(parameter.ds_shape)
    size = -(-elements // ranks)  # the last ones are padded
    if tuple(part.shape) != (size,):
        raise LayoutError(
            f"'{name}' {list(parameter.ds_shape)}: ZeRO-3 has {list(part.shape)} elements here, expected {[size]}, for "
            f"{ranks} equal parts"
        )
    begin = min(size * torch.distributed.get_rank(parameter.ds_process_group), elements)
    held = (begin, min(begin + size, elements)) if begin < elements else (0, 0)
    return _flat(name, parameter.ds_shape, part.dtype, held, part.detach()[: held[1] - held[0]])


def _flat(name: str, shape: Any, dtype: Any, held: Range, elements: Any) -> FlatTensor:
    require_plain(name, elements)
    return FlatTensor(tuple(int(extent) for extent in shape), dtype, held, elements)


def _check_group(name: str, ranks: int) -> None:
    """Raises LayoutError unless all processes cut the same tensor: others, as of tensor parallelism, may have another
    one of that name."""
    torch = loaded_torch()
    assert torch is not None
    processes = torch.distributed.get_world_size()
    if ranks != processes:
        raise LayoutError(
            f"'{name}' is cut over {ranks} of {processes} processes: expected all of them, or FSDP1's HYBRID_SHARD"
        )
