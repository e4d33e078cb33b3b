"""The tensors that the caller of a registration passed: specs, and values if there are any."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Optional, Union, cast

from dws.arrays import spec_of
from dws.errors import LayoutError
from dws.layout import Cuts, Shard, TensorSpec, with_cuts
from dws.torch_module import is_module, named_tensors

# A torch module, name -> full tensor, or specs.
Tensors = Union[Mapping[str, Any], Iterable[TensorSpec], Any]


def declared(tensors: Tensors, cuts: Optional[Cuts]) -> tuple[list[TensorSpec], dict[str, Any]]:
    """Specs with the requested cuts, and the values that were passed, by name.

    Raises:
      LayoutError: something else was passed, or cuts of an unknown tensor.
      DTypeError: an element type DWS does not know, naming the tensor.
    """
    values: dict[str, Any] = {}
    if is_module(tensors):
        values = named_tensors(tensors)
    elif isinstance(tensors, Mapping):
        values = dict(tensors)
    if values:
        specs = [spec_of(name, tensor) for name, tensor in values.items()]
    else:
        specs = list(cast(Iterable[TensorSpec], tensors))
        if not all(isinstance(spec, TensorSpec) for spec in specs):
            raise LayoutError("expected a torch module, a dict of tensors, or TensorSpecs")
    unknown = sorted(set(cuts or {}) - {spec.name for spec in specs})
    if unknown:
        raise LayoutError(f"cuts= names tensors that are not declared: {unknown}")
    return [with_cuts(spec, cuts) for spec in specs], values


def owned_part(bits: Any, shard: Shard) -> Any:
    """The shard's part of the full tensor's `bits`."""
    return bits[shard.index] if shard.tensor.shape else bits
