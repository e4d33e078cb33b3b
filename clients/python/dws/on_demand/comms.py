"""The two communication objects that FSDP2 gets for each unit. Needs torch 2.9.

FSDP2 calls them in this order (torch.distributed.fsdp's classes AllGather and ReduceScatter have the arguments):

* all-gather: `allocate` for the output, [rank][the unit's parameters, cut and filled up], into which it puts this rank's
  part; the call; what the call returns is waited for before the output is read.
* reduce-scatter: `allocate` for the input, of the same form, with gradients of the parameters that have some; `allocate`
  for the output, one rank's part; the call. The output becomes `.grad`, or is added to it.

On a CUDA device (read in torch 2.9 and 2.13):

* all-gather: the output is allocated, and gets this rank's part, on a stream of its own. What the call returns is waited for
  on the stream of the pass, which has waited for that part; what it writes to the output is read on that stream.
* reduce-scatter: the input is allocated and written on the stream of the pass. The call is made on another stream, which has
  waited for that; the stream of the pass waits for what the call has given to that stream, before the input is freed.
* The backward pass runs on a thread of torch's, while the one that has called it waits.
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
from dws.on_demand.device_copies import DeviceCopies
from dws.on_demand.deferred import Done
from dws.on_demand.outbox import Buffer
from dws.on_demand.traffic import Traffic
from dws.on_demand.units import Unit

_MEAN: Any = getattr(dist.ReduceOp, "AVG")


class UnitGather:
    """The all-gather of one unit: has it brought into the arena, and copies it from there.

    At the first gather of a unit in each version it compares this rank's part with the parameters that FSDP2 has. On a device
    what that has found is read later, at the latest before the attempt is finished.
    """

    def __init__(
        self,
        index: int,
        unit: Unit,
        dtype: DType,
        ranks: int,
        rank: int,
        arena: SharedRegion,
        traffic: Traffic,
        copies: Optional[DeviceCopies] = None,
    ) -> None:
        """Args:
        index: the unit's number.
        dtype: of gathered parameters.
        copies: to and from the parameters' device; None: they are on the host.
        """
        self._traffic = traffic
        self._index = index
        self._unit = unit
        self._dtype = dtype
        self._ranks = ranks
        self._rank = rank
        self._arena = arena
        self._copies = copies
        self._offsets, self._bytes = unit.arena_offsets(dtype.itemsize)
        self._compared: Optional[int] = None  # the version
        self._allocated_on: Any = None  # the stream

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
        if self._copies is not None:
            self._allocated_on = self._copies.runtime.current()
        return torch.empty(tuple(size), dtype=dtype, device=device)

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False) -> Any:
        """Begins the gather. Returns the torch.distributed.Work that ends it."""
        version = self._traffic.version
        gathering = self._traffic.start_gather(self._index, self._what())

        def read(offset: int) -> Optional[Done]:
            mine = input_tensor if self._compared != version else None
            unit = self._arena.view("torch", DType.U8, (self._bytes,), offset)
            output = output_tensor.view(self._ranks, -1)
            if self._copies is not None:
                return self._read(self._copies, unit, output, mine)
            self._copy(unit, output, mine, _require_equal)
            self._compared = version
            return None

        return GatherWork(lambda: self._traffic.end_gather(gathering, read))

    def _read(self, copies: DeviceCopies, unit: Any, output: Any, mine: Optional[Any]) -> Done:
        """As _copy, by way of the device. Returns the end of the copy that reads the arena."""
        differ: dict[str, Any] = {}
        arrival = copies.bring(unit)
        try:
            self._copy(arrival.bytes, output, mine, lambda name, *both: differ.update({name: _differ(*both)}))
        finally:
            read = copies.was_read(arrival)
        # A unit that FSDP2 has fetched in vain is freed without an event of FSDP2's own.
        copies.runtime.follow(self._allocated_on, read)
        if differ:
            self._compare_later(copies, list(differ), torch.stack(list(differ.values())))
        return arrival.done

    def _copy(
        self, unit: Any, output: Any, mine: Optional[Any], compare: Callable[[str, Any, Any], None]
    ) -> None:
        """Copies the unit.

        Args:
          unit: its bytes, as in the arena.
          output: [rank, elements of its part].
          mine: this rank's part, to be compared.
          compare: gets a name, this rank's part and what is published of it.
        """
        column = 0
        for parameter, begin in zip(self._unit.parameters, self._offsets):
            row, rows = parameter.row_elements(), parameter.shape[0]
            padded = parameter.padded(self._ranks)
            whole = unit[begin : begin + rows * row * self._dtype.itemsize].view(self._dtype.torch)
            if mine is not None:  # before it is overwritten: it is a part of `output`
                low, high = parameter.rows_of(self._rank, self._ranks)
                held = mine.narrow(0, column, (high - low) * row)
                compare(parameter.name, held, whole[low * row : high * row])
            full = rows * row // padded if padded else 0  # ranks with as many rows as any
            columns = output.narrow(1, column, padded)
            if full:
                columns[:full].copy_(whole[: full * padded].view(full, padded))
            rest = rows * row - full * padded
            if rest:
                columns[full, :rest].copy_(whole[full * padded :])
            column += padded

    def _compare_later(self, copies: DeviceCopies, names: Sequence[str], differ: Any) -> None:
        """Args: differ: on the device, for each of `names`, whether this rank's part is not what it has published."""
        found, version = copies.runtime.host(differ), self._traffic.version

        def check() -> None:
            for name, differs in zip(names, found.tolist()):
                if differs:
                    raise _not_as_published(name)
            self._compared = version

        self._traffic.check_later(copies.runtime.copy_out(found, differ), check)

    def _what(self) -> str:
        return f"gathering unit '{self._unit.name}'"


def _differ(held: Any, published: Any) -> Any:
    """Returns whether any bit differs, as a tensor."""
    bits = getattr(torch, f"int{8 * held.element_size()}")
    return torch.ne(held.view(bits), published.view(bits)).any()


def _require_equal(name: str, held: Any, published: Any) -> None:
    bits = getattr(torch, f"int{8 * held.element_size()}")
    if not torch.equal(held.view(bits), published.view(bits)):
        raise _not_as_published(name)


def _not_as_published(name: str) -> StateError:
    return StateError(
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
    """The reduce-scatter of one unit: the input is memory of the outbox, or of a device, from which it is copied to the
    outbox; the output is zeros, since the sum comes with the decision."""

    def __init__(
        self,
        index: int,
        unit: Unit,
        dtype: DType,
        ranks: int,
        traffic: Traffic,
        forget: Callable[[], None],
        copies: Optional[DeviceCopies] = None,
    ) -> None:
        """Args:
        index: the unit's number.
        dtype: of what is pushed.
        forget: called when the zeros of earlier units are needed no more.
        copies: to and from the parameters' device; None: they are on the host.
        """
        self._traffic = traffic
        self._index = index
        self._unit = unit
        self._dtype = dtype
        self._ranks = ranks
        self._forget = forget
        self._copies = copies
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
        if self._copies is not None:
            return torch.empty(tuple(size), dtype=dtype, device=device)
        return self._memory(self._buffer).view(tuple(size))

    def _memory(self, buffer: Buffer) -> Any:
        """A buffer's elements, of all ranks' parts."""
        elements = self._unit.shard_elements(self._ranks) * self._ranks
        return torch.frombuffer(buffer.bytes[: elements * self._dtype.itemsize], dtype=self._dtype.torch)

    def _names(self) -> str:
        return ", ".join(f"'{each.name}'" for each in self._unit.parameters if each.trains)

    def __call__(
        self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Hands the input to the sender; that of a device, when it was copied.

        Raises:
          StateError: FSDP2 was told to divide otherwise than by the number of ranks.
          MinibatchAbandonedError: the attempt is over.
        """
        if op != _MEAN:
            raise StateError(
                f"unit '{self._unit.name}': FSDP2 reduces with {op}, expected the mean: leave set_gradient_divide_factor and "
                "set_force_sum_reduction_for_comms alone, and use Training(average=...)"
            )
        buffer, self._buffer = self._buffer, None
        assert buffer is not None
        copied = None
        if self._copies is not None:
            copied = self._copies.runtime.copy_out(self._memory(buffer), input_tensor.view(-1))
        self._traffic.push(self._index, self._unit, self._dtype, copied)
        output_tensor.zero_()
