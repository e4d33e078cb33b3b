"""Parameters that an engine keeps in another form than its checkpoint has: in FP32 of BF16, such as the router of
GLM-4-MoE, or transposed, such as the experts of gpt-oss.

The engine's loader casts or transposes them. A commit writes the trainer's bits in the checkpoint's order, so each such
parameter gets a twin in the checkpoint's form, which commits write in its place and whose digests prove it. After a
commit, inside the pause, the twin is copied into the parameter, and the result is read back.

    agreed.casts                                           # parameter -> the type in which its tensors are published
    types = {**turned_types(target, mapping), **agreed.casts}
    casts = CastParameters(target, mapping, types)
    engine.attach(casts.target, casts.mapping, rebuild=casts.write)

The receiver attaches a twin only if the trainer publishes its type.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
from typing import Any, Iterable, Mapping, Optional

from dws.dtypes import DType
from dws.errors import LayoutError
from dws.mapping import Mapped, Source, Viewed, as_viewed, boxes_of, tensors_of
from dws.plugins.canonical import Canonical
from dws.plugins.tensor_memory import alike_for_copy, bits_of, working_on
from dws.torch_module import holders, named_tensors

_LOG = logging.getLogger(__name__)
_FLOATS = frozenset({DType.F16, DType.BF16, DType.F32})
# Twins of parameters that are cast take at most this part of the memory of all parameters; routers take a thousandth.
_TWINS_PART = 4
_SHOWN = 3


def casts_of(
    tensors: Mapping[str, Any], mapping: Mapped, canonical: Mapping[str, Canonical], given: Iterable[str] = ()
) -> dict[str, DType]:
    """The parameters that a loader casts, each with the type that its tensors have in the checkpoint.

    Args:
      tensors: of the engine, by name.
      canonical: the checkpoint's.
      given: names of which load_weights was not asked: only a cast that loses nothing counts.
    """
    found = {}
    for name, tensor in tensors.items():
        sources = tensors_of(mapping[name])
        types = {canonical[source].dtype for source in sources if source in canonical}
        if len(types) != 1 or not tensor.is_floating_point():
            continue
        (published,), own = types, DType.of(tensor.dtype)
        exact = own is DType.F32 or name not in set(given)
        if own is not published and {own, published} <= _FLOATS and exact:
            found[name] = published
    return found


@dataclasses.dataclass(frozen=True)
class _Cast:
    """Attributes:
    holder, key: the module's dict that has the parameter, and its key there.
    like: the parameter at the attach.
    twin: in the type of the trainer, and in the form of `source`.
    boxes: the indexes in it of what the mapping writes; the rest is padding.
    source: what the parameter is made of.
    """

    name: str
    holder: Mapping[str, Any]
    key: str
    like: Any
    twin: Any
    boxes: tuple[tuple[Any, ...], ...]
    source: Source

    @property
    def is_turned(self) -> bool:
        return isinstance(self.source, Viewed) and self.source.is_turned

    def parameter(self) -> Any:
        """The parameter with which passes compute now.

        Raises:
          LayoutError: it has another type or shape than at the attach, or is gone.
        """
        now = self.holder.get(self.key)
        if now is None or not alike_for_copy(now, self.like):
            raise LayoutError(
                f"parameter '{self.name}': expected {self.like.dtype} {list(self.like.shape)} on {self.like.device}, as the "
                f"attach has found it, and found {'none' if now is None else f'{now.dtype} {list(now.shape)} on {now.device}'}"
            )
        return now.data

    def write(self, now: Any) -> None:
        viewed = as_viewed(now, self.source)
        for box in self.boxes:
            viewed[box].copy_(self.twin.data[box])

    def is_written(self, now: Any) -> bool:
        """Returns whether the parameter has the bits of the twin's elements in its own type."""
        viewed = as_viewed(now, self.source)
        return all(bits_of(viewed[box]).equal(_bits_as(self.twin.data[box], now.dtype)) for box in self.boxes)


class CastParameters:
    """Lifecycle: made; its target is attached in the place of the one that it was made from; then write after each commit.
    Threads: one at a time.

    Attributes:
      target: a torch module with the tensors of the other one, and the twins beside them.
      mapping: of the target.
    """

    def __init__(self, target: Any, mapping: Mapped, types: Mapping[str, DType]) -> None:
        """Args:
        target: a torch module; not changed.
        types: of the twins, as casts_of gives them.
        """
        torch: Any = importlib.import_module("torch")
        tensors, held_by = named_tensors(target), holders(target)
        self._casts = []
        self.target = torch.nn.Module()
        self.mapping: dict[str, Source] = dict(mapping)
        for name, published in types.items():
            tensor, (holder, key) = tensors[name], held_by[name]
            source = mapping[name]
            viewed = as_viewed(tensor.detach(), source)
            twin = torch.empty(tuple(viewed.shape), dtype=published.torch, device=tensor.device)
            twin.copy_(viewed)
            boxes = tuple(box for _, box in boxes_of(name, source, tuple(viewed.shape)))
            self._casts.append(_Cast(name, holder, key, tensor, twin, boxes, source))
            # Not by register_buffer, which takes no dots: messages of the receiver have the name.
            self.target._buffers[f"{name} ({published.name})"] = twin
            self.mapping[f"{name} ({published.name})"] = source.source if isinstance(source, Viewed) else source
            self.mapping[name] = None
        # The tensors of a submodule with no name keep their names. Tables are the module's own, so that what is replaced
        # there is noticed.
        self.target._modules[""] = target

    def twins(self) -> list[Any]:
        return [cast.twin for cast in self._casts]

    def how(self) -> str:
        """For the line that an attach logs."""
        cast = [one for one in self._casts if not one.is_turned]
        types = [f"{one.name} {DType.of(one.like.dtype).name} of {DType.of(one.twin.dtype).name}" for one in cast]
        turned = [one for one in self._casts if one.is_turned]
        return _said("cast", types, cast) + _said("transposed", [one.name for one in turned], turned)

    def write(self, changed: Optional[frozenset[str]]) -> None:
        """Brings the parameters up to date with the twins, and reads all of them back.

        Args:
          changed: canonical tensors that may have changed since it last returned; None: all.

        Raises:
          LayoutError: a parameter is not as it was attached, or does not keep what is written into it, by name.
        """
        torch: Any = importlib.import_module("torch")
        for cast in self._casts:
            now = cast.parameter()
            # Tensors that were made in inference mode are written in it alone.
            with working_on(now.device), torch.inference_mode(now.is_inference()):
                known = changed is not None and changed.isdisjoint(tensors_of(cast.source))
                if known and cast.is_written(now):
                    continue
                if known:
                    _LOG.warning(
                        "dws: something else than a commit has changed parameter '%s' since the last one: it is written again",
                        cast.name,
                    )
                cast.write(now)
                if not cast.is_written(now):
                    raise LayoutError(
                        f"parameter '{cast.name}' {now.dtype}: expected the elements of {cast.twin.dtype} that were just copied "
                        "into it, and read others"
                    )


def turned_types(target: Any, mapping: Mapped) -> dict[str, DType]:
    """The parameters whose tensors are transposed in the checkpoint, each with its own type."""
    tensors = named_tensors(target)
    turned = [name for name, source in mapping.items() if isinstance(source, Viewed) and source.is_turned]
    return {name: DType.of(tensors[name].dtype) for name in turned}


def within_limit(target: Any, types: Mapping[str, DType]) -> dict[str, DType]:
    """Returns `types`; nothing if the twins would take too much memory, as of an engine that runs in another type than its
    checkpoint."""
    tensors = named_tensors(target)
    twins = sum(tensors[name].numel() * published.itemsize for name, published in types.items())
    whole = sum(_bytes(tensor) for tensor in tensors.values())
    return dict(types) if twins * _TWINS_PART <= whole else {}


def _bits_as(elements: Any, dtype: Any) -> Any:
    """The bits of `elements` in another type. Those of BF16 in FP32 are computed from the bits alone: no cast of torch
    decides."""
    torch: Any = importlib.import_module("torch")
    if elements.dtype is torch.bfloat16 and dtype is torch.float32:
        return bits_of(elements).to(torch.int32) << 16
    return bits_of(elements.to(dtype))


def _said(done: str, names: list[str], casts: list[_Cast]) -> str:
    if not casts:
        return ""
    return (
        f"; {len(names)} parameters are {done} after each commit that changes them ({', '.join(names[:_SHOWN])}"
        f"{' ...' if len(names) > _SHOWN else ''}; {sum(_bytes(cast.twin) for cast in casts) >> 20} MiB kept for that)"
    )


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())
