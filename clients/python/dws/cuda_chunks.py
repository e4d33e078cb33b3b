"""Finds the chunks of device memory that hold tensors, and how each of them can be handed over.

The kind of each address, as the driver reports it, decides:

1. cudaMalloc: an IPC handle of the whole allocation.
2. Virtual memory (expandable segments, memory savers): each mapped chunk that holds tensors, as a
   descriptor if its creator allowed that, else as a fabric handle. Adjacent chunks form one region;
   each is handed over once, however many tensors share it.
3. An explicit memory pool that can be exported: its descriptor, sent with the first of several
   allocations in a row, and the allocation's pointer.
4. Anything else is refused, naming the tensor and the remedy. Nothing is copied instead.
"""

from __future__ import annotations

import bisect
import dataclasses
import enum
from typing import Iterable, Optional

from dws.cuda_api import MEMORY_OF_DEVICE, Attribute, HandleType
from dws.cuda_driver import CudaDriver
from dws.device_tensor import DeviceTensor
from dws.errors import CudaError, LayoutError

# Unique for each allocation in the life of this process, never reused. The second exists in newer
# drivers, and for memory mapped into a reserved range, where the first may be the range's.
IDENTITIES = (Attribute.BUFFER_ID, Attribute.MEMORY_BLOCK_ID)


class ChunkKind(enum.Enum):
    """How a chunk is handed over."""

    IPC = enum.auto()
    DESCRIPTOR = enum.auto()
    FABRIC = enum.auto()
    POOL = enum.auto()


@dataclasses.dataclass(frozen=True)
class Chunk:
    """One allocation of the driver, or one mapped piece of virtual memory.

    Attributes:
      pool: the driver's handle of its pool, else 0.
      identity: distinguishes it from a later allocation at the same address.
    """

    base: int
    size_bytes: int
    ordinal: int
    kind: ChunkKind
    pool: int
    identity: tuple[Optional[int], ...]

    @property
    def end(self) -> int:
        return self.base + self.size_bytes

    def continues(self, other: "Chunk") -> bool:
        """Returns whether it directly follows `other` and one region can hold both."""
        return (other.end, other.ordinal, other.kind) == (
            self.base,
            self.ordinal,
            self.kind,
        ) and self.kind in (ChunkKind.DESCRIPTOR, ChunkKind.FABRIC)


def joined(chunks: list[Chunk]) -> list[list[Chunk]]:
    """Joins chunks into regions, in the order of their addresses."""
    regions: list[list[Chunk]] = []
    for chunk in chunks:
        if regions and chunk.continues(regions[-1][-1]):
            regions[-1].append(chunk)
        else:
            regions.append([chunk])
    return regions


def first_of_pools(regions: list[list[Chunk]]) -> set[int]:
    """The bases of pooled chunks whose pool differs from that of the pooled chunk before: the
    pool's descriptor is sent with these."""
    opening = set()
    pool = 0
    for chunk in (chunk for region in regions for chunk in region):
        if chunk.kind is ChunkKind.POOL and chunk.pool != pool:
            pool = chunk.pool
            opening.add(chunk.base)
    return opening


def chunks_of(driver: CudaDriver, tensors: Iterable[DeviceTensor]) -> list[Chunk]:
    """All chunks that hold the tensors, each once, in the order of their addresses.

    Raises:
      CudaError: the driver failed.
      LayoutError: memory that cannot be handed over; names the tensor and the remedy.
    """
    found: list[Chunk] = []
    for tensor in sorted(tensors, key=lambda t: t.address):
        at = tensor.address
        while at < tensor.end:
            # Tensors and so chunks are in order: `at` is in a known chunk, or after all of them.
            index = bisect.bisect_right(found, at, key=lambda chunk: chunk.base) - 1
            if index < 0 or at >= found[index].end:
                found.append(_chunk_at(driver, tensor, at))
                index = len(found) - 1
            at = found[index].end
    return found


def _identity(driver: CudaDriver, address: int) -> tuple[Optional[int], ...]:
    return tuple(driver.attribute(attribute, address) for attribute in IDENTITIES)


def _chunk_at(driver: CudaDriver, tensor: DeviceTensor, address: int) -> Chunk:
    ordinal = driver.attribute(Attribute.DEVICE_ORDINAL, address)
    memory_type = driver.attribute(Attribute.MEMORY_TYPE, address)
    if ordinal is None or memory_type is None:
        raise LayoutError(
            f"tensor '{tensor.name}': no memory of a CUDA device lies at {address:#x}; was it freed, "
            "or are the weights asleep? Attach them when they are on the device"
        )
    if memory_type != MEMORY_OF_DEVICE or driver.attribute(Attribute.IS_MANAGED, address):
        raise LayoutError(
            f"tensor '{tensor.name}' lies in host or managed memory at {address:#x}, which cannot "
            "be shared: allocate it with cudaMalloc, or pass a CPU tensor"
        )
    with driver.context(ordinal):
        base, size_bytes = driver.address_range(address)
        kind, pool = _kind_of(driver, tensor, base)
    if not base <= address < base + size_bytes:
        raise CudaError(
            f"tensor '{tensor.name}': the driver reports that {address:#x} lies in the allocation "
            f"of {size_bytes} bytes at {base:#x}, which does not contain it"
        )
    return Chunk(base, size_bytes, ordinal, kind, pool, _identity(driver, base))


def _kind_of(driver: CudaDriver, tensor: DeviceTensor, base: int) -> tuple[ChunkKind, int]:
    """How the allocation can be handed over, and its pool."""
    if driver.attribute(Attribute.IS_LEGACY_IPC_CAPABLE, base):
        return ChunkKind.IPC, 0
    pool = driver.attribute(Attribute.POOL, base) or 0
    if pool:
        allowed = driver.attribute(Attribute.ALLOWED_HANDLE_TYPES, base) or 0
        if allowed & HandleType.DESCRIPTOR:
            return ChunkKind.POOL, pool
        raise _refusal(
            tensor,
            "comes from a memory pool that cannot be shared between processes, such as the default "
            "pool of cudaMallocAsync",
            "PYTORCH_CUDA_ALLOC_CONF=backend:native, or a pool made with POSIX descriptors",
        )
    virtual = driver.virtual_allocation(base)
    if virtual is None or not virtual.on_device:
        raise _refusal(
            tensor,
            "is memory of a kind that the driver cannot share",
            "allocate it with cudaMalloc (PYTORCH_CUDA_ALLOC_CONF=backend:native)",
        )
    for type_, kind in (
        (HandleType.DESCRIPTOR, ChunkKind.DESCRIPTOR),
        (HandleType.FABRIC, ChunkKind.FABRIC),
    ):
        if virtual.handle_types & type_:
            return kind, 0
    raise _refusal(
        tensor,
        "is virtual memory that was created without permission to be shared",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False or a newer torch; for an engine's sleep "
        "mode or memory saver, turn it off for weights or have it ask for POSIX descriptors",
    )


def _refusal(tensor: DeviceTensor, reason: str, remedy: str) -> LayoutError:
    return LayoutError(
        f"tensor '{tensor.name}' {list(tensor.shape)} cannot be handed over in place: it {reason}. "
        f"Remedy: {remedy}"
    )
