"""The sums of gradients as `.grad` of the parameters: in shared memory, or copies on their device. Needs torch 2.9."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import torch
from torch import nn

from dws.dtypes import DType
from dws.on_demand.device_copies import DeviceCopies
from dws.on_demand.rank_memory import RankMemory
from dws.on_demand.units import RECORD_BYTES, Unit


class Gradients:
    """Lifecycle: made once. Threads: one at a time."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        units: Sequence[Unit],
        ranks: int,
        memory: RankMemory,
        copies: Optional[DeviceCopies] = None,
    ) -> None:
        """Args:
        parameters: cut ones, by the names under which they are published.
        copies: to and from the parameters' device; None: they are on the host.
        """
        # All of them, FP32, with what fills units up.
        self._shared = memory.gradients.view(
            "torch", DType.F32, (memory.gradient_elements,), RECORD_BYTES
        )
        self._copies = copies
        self._flat: Any = None  # what `.grad` are views of; None: nothing is attached
        self._places: list[tuple[nn.Parameter, int]] = []  # where each parameter's begin
        for unit, begin in zip(units, memory.gradient_offsets):
            for each in unit.parameters:
                if each.trains:
                    self._places.append((parameters[each.name], begin))
                    begin += each.padded(ranks)

    def attach(self, factor: float) -> None:
        """Makes them, times a factor, `.grad` of all parameters that train."""
        from torch.distributed.tensor import DTensor  # older torches lack it

        self._flat = self._shared if self._copies is None else self._copies.runtime.copied(self._shared)
        self.scale(factor)
        for parameter, begin in self._places:
            cut: Any = parameter  # a DTensor
            local = cut.to_local()
            part = self._flat[begin : begin + local.numel()].view(local.shape)
            parameter.grad = DTensor.from_local(
                part,
                cut.device_mesh,
                cut.placements,
                run_check=False,
                shape=cut.shape,
                stride=cut.stride(),
            )

    def detach(self) -> None:
        """Sets `.grad` of all parameters that train to None. Copies on a device are freed."""
        self._flat = None
        for parameter, _ in self._places:
            parameter.grad = None

    def scale(self, factor: float) -> None:
        """Multiplies all of them; they are attached."""
        if factor != 1.0:
            with torch.no_grad():
                self._flat.mul_(factor)
