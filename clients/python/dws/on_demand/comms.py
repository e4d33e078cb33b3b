"""The two communication objects that FSDP2 gets for each unit. Needs torch 2.9.

FSDP2 calls them in this order (torch.distributed.fsdp's classes AllGather and ReduceScatter have the arguments):

* all-gather: `allocate` for the output, [rank][the unit's parameters, cut and filled up], into which it puts this rank's
  part; the call; what the call returns is waited for before the output is read.
* reduce-scatter: `allocate` for the input, of the same form, with gradients of the parameters that have some; `allocate`
  for the output, one rank's part; the call. The output becomes `.grad`, or is added to it.
"""

from __future__ import annotations

import datetime
import math
from typing import Any, Callable, Optional, Sequence

import torch
import torch.distributed as dist

from dws.dtypes import DType
from dws.errors import DTypeError, LayoutError, StateError
from dws.memory import SharedRegion
from dws.on_demand.outbox import Buffer
from dws.on_demand.traffic import Traffic
from dws.on_demand.units import Unit

_MEAN: Any = getattr(dist.ReduceOp, "AVG")


class UnitGather:
    """The all-gather of one unit: has it brought into the arena, and copies it from there.

    At the first gather of a unit in each version it compares this rank's part with the parameters that FSDP2 has.
    """

    def __init__(
        self, index: int, unit: Unit, dtype: DType, ranks: int, rank: int, arena: SharedRegion, traffic: Traffic
    ) -> None:
        """Args:
        index: the unit's number.
        dtype: of gathered parameters.
        """
        self._traffic = traffic
        self._index = index
        self._unit = unit
        self._dtype = dtype
        self._ranks = ranks
        self._rank = rank
        self._arena = arena
        self._offsets, _ = unit.arena_offsets(dtype.itemsize)
        self._compared: Optional[int] = None  # the version

    def allocate(self, size: Sequence[int], *, dtype: Any, device: Any) -> Any:
        """Memory for the output.

        Raises:
          DTypeError, LayoutError, StateError: it is not the unit that was declared.
        """
        wanted = self._unit.gathered_elements(self._ranks) * self._ranks
        if dtype != self._dtype.torch:
            raise DTypeError(
                f"{self._what()}: FSDP2 gathers {dtype}, expected {self._dtype.torch} for all its parameters: do not "
                "convert the model after od.fully_shard"
            )
        if math.prod(size) != wanted:
            raise LayoutError(
                f"{self._what()}: FSDP2 gathers {math.prod(size)} elements, expected {wanted}: do not add, remove or "
                "replace parameters after od.fully_shard"
            )
        return torch.empty(tuple(size), dtype=dtype, device=device)

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False) -> Any:
        """Begins the gather. Returns the torch.distributed.Work that ends it."""
        version = self._traffic.version
        gathering = self._traffic.start_gather(self._index, self._what())

        def read(offset: int) -> None:
            mine = input_tensor if self._compared != version else None
            self._copy(offset, output_tensor.view(self._ranks, -1), mine)
            self._compared = version

        return GatherWork(lambda: self._traffic.end_gather(gathering, read))

    def _copy(self, offset: int, output: Any, mine: Optional[Any]) -> None:
        """Copies the unit from the arena.

        Args:
          output: [rank, elements of its part].
          mine: this rank's part, to be compared.
        """
        column = 0
        for parameter, begin in zip(self._unit.parameters, self._offsets):
            row, rows = parameter.row_elements(), parameter.shape[0]
            padded = parameter.padded(self._ranks)
            whole = self._arena.view("torch", self._dtype, (rows * row,), offset + begin)
            if mine is not None:  # before it is overwritten: it is a part of `output`
                low, high = parameter.rows_of(self._rank, self._ranks)
                held = mine.narrow(0, column, (high - low) * row)
                _require_equal(parameter.name, held, whole[low * row : high * row])
            full = rows * row // padded if padded else 0  # ranks with as many rows as any
            columns = output.narrow(1, column, padded)
            if full:
                columns[:full].copy_(whole[: full * padded].view(full, padded))
            rest = rows * row - full * padded
            if rest:
                columns[full, :rest].copy_(whole[full * padded :])
            column += padded

    def _what(self) -> str:
        return f"gathering unit '{self._unit.name}'"


def _require_equal(name: str, held: Any, published: Any) -> None:
    bits = getattr(torch, f"int{8 * held.element_size()}")
    if not torch.equal(held.view(bits), published.view(bits)):
        raise StateError(
            f"'{name}': this rank's part is not what it has published: change parameters only between attempt.finish() and "
            "od.publish(), or before od.start()"
        )


class GatherWork(dist.Work):
    """What FSDP2 waits for before it reads a gathered unit."""

    def __init__(self, end: Callable[[], None]) -> None:
        super().__init__()
        self._end: Optional[Callable[[], None]] = end

    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        """Ends the gather; again, it returns at once. The time is that of the Training."""
        end, self._end = self._end, None
        if end is not None:
            end()
        return True


class UnitReduce:
    """The reduce-scatter of one unit: the input is memory of the outbox; the output is zeros, since the sum comes with
    the decision."""

    def __init__(
        self, index: int, unit: Unit, dtype: DType, ranks: int, traffic: Traffic, forget: Callable[[], None]
    ) -> None:
        """Args:
        index: the unit's number.
        dtype: of what is pushed.
        forget: called when the zeros of earlier units are needed no more.
        """
        self._traffic = traffic
        self._index = index
        self._unit = unit
        self._dtype = dtype
        self._ranks = ranks
        self._forget = forget
        self._buffer: Optional[Buffer] = None

    def allocate(self, size: Sequence[int], *, dtype: Any, device: Any) -> Any:
        """Memory for the input, then for the output; waits for room in the outbox.

        Raises:
          DTypeError, LayoutError, StateError: it is not what was declared, or some parameters have no gradient.
          MinibatchAbandonedError: the attempt is over.
        """
        what, shard = f"the gradients of unit '{self._unit.name}'", self._unit.shard_elements(self._ranks)
        if dtype != self._dtype.torch:
            raise DTypeError(f"{what}: FSDP2 reduces {dtype}, expected {self._dtype.torch}")
        elements = math.prod(size)
        if elements == shard and self._buffer is not None:
            return torch.empty(tuple(size), dtype=dtype, device=device)
        if elements != shard * self._ranks:
            raise LayoutError(
                f"{what}: {elements} elements with what fills them up, expected {shard * self._ranks}: all parameters of a "
                f"unit that train need a gradient in each backward pass, or none of them: {self._names()}. Make what is "
                "not always used a unit of its own"
            )
        self._forget()
        self._buffer = self._traffic.allocate(self._index, what)
        memory = self._buffer.bytes[: elements * self._dtype.itemsize]
        return torch.frombuffer(memory, dtype=dtype).view(tuple(size))

    def _names(self) -> str:
        return ", ".join(f"'{each.name}'" for each in self._unit.parameters if each.trains)

    def __call__(
        self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Hands the input to the sender.

        Raises:
          StateError: FSDP2 was told to divide otherwise than by the number of ranks.
          MinibatchAbandonedError: the attempt is over.
        """
        if op != _MEAN:
            raise StateError(
                f"unit '{self._unit.name}': FSDP2 reduces with {op}, expected the mean: leave set_gradient_divide_factor and "
                "set_force_sum_reduction_for_comms alone, and use Training(average=...)"
            )
        self._buffer = None
        self._traffic.push(self._index, self._unit, self._dtype)
        output_tensor.zero_()
