"""Device memory as regions that a daemon can import: how each allocation is handed over.

The driver is asked about every address, and chooses:

1. cudaMalloc: an IPC handle of the whole allocation.
2. Virtual memory (expandable segments, memory savers): each chunk mapped where the tensors lie, as
   a descriptor where its maker allowed that, else as a fabric handle. Chunks side by side are one
   region; each is handed over once, whatever tensors share it.
3. An explicit memory pool that may leave the process: its descriptor and the allocation's pointer.
4. Anything else is refused, by tensor, with what to do. Nothing is copied instead.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import enum
from typing import Any, Callable, Iterable, Optional

from dws.cuda_api import MEMORY_OF_DEVICE, Attribute, HandleType
from dws.cuda_driver import CudaDriver
from dws.device_tensor import DeviceTensor
from dws.errors import CudaError, LayoutError
from dws.mapping import Place

# Distinct for every allocation of this process's life, reused by none. The second one is of newer
# drivers, and of what is mapped into a reserved range where the first may be the range's.
_IDENTITIES = (Attribute.BUFFER_ID, Attribute.MEMORY_BLOCK_ID)


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
      pool: the driver's handle of the pool it is of, else 0.
      identity: what tells it from an allocation that lies there later.
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
        """Whether it lies right behind `other` and one region can hold both."""
        return (other.end, other.ordinal, other.kind) == (
            self.base,
            self.ordinal,
            self.kind,
        ) and self.kind in (ChunkKind.DESCRIPTOR, ChunkKind.FABRIC)


class CudaMemory:
    """The allocations that some tensors lie in. Frees nothing: they stay their owner's.

    Attributes:
      regions: each a list of chunks side by side.
      ordinals: of the devices they are on, in this process.
    """

    def __init__(
        self, tensors: Iterable[DeviceTensor], driver: Optional[CudaDriver] = None
    ) -> None:
        """Args:
          tensors: those without elements lie nowhere and are left out.
          driver: by default the one of this machine.

        Raises:
          CudaError: no driver, or it failed.
          LayoutError: memory that cannot be handed over, naming the tensor and the remedy.
        """
        self._driver = driver or CudaDriver.load()
        present = [tensor for tensor in tensors if tensor.elements]
        with self._driver.any_context() if present else contextlib.nullcontext():
            self.regions = _joined(_chunks_of(self._driver, present))
        self._bases = [region[0].base for region in self.regions]
        for tensor in present:
            self._require_one_region(tensor)
        self.ordinals = sorted({region[0].ordinal for region in self.regions})
        self._uuids = {ordinal: self._driver.device_uuid(ordinal) for ordinal in self.ordinals}
        # What `unchanged` asks: for each attribute (address, value) of the chunks that have it.
        self._identities = [
            (
                attribute,
                [
                    (chunk.base, value)
                    for region in self.regions
                    for chunk in region
                    if (value := chunk.identity[number]) is not None
                ],
            )
            for number, attribute in enumerate(_IDENTITIES)
        ]

    def place(self, tensor: DeviceTensor, first_region: int) -> Place:
        """Where a tensor lies; one without elements lies at the start of the first region.

        Args:
          first_region: the number that regions[0] has among all of the registration.
        """
        if not tensor.elements:
            return Place(0, 0)
        index = self._region_of(tensor)
        return Place(first_region + index, tensor.address - self._bases[index])

    def _region_of(self, tensor: DeviceTensor) -> int:
        return bisect.bisect_right(self._bases, tensor.address) - 1

    def _require_one_region(self, tensor: DeviceTensor) -> None:
        end = self.regions[self._region_of(tensor)][-1].end
        if tensor.end > end:
            raise LayoutError(
                f"tensor '{tensor.name}' {list(tensor.shape)} reaches beyond its allocation, which "
                f"ends at {end:#x}, into one that cannot be handed over together with it: put it "
                "into memory of its own"
            )

    def describe(self, regions: Any) -> None:
        """Appends a Region message for each to the repeated field `regions`."""
        for chunks in self.regions:
            message = regions.add(size_bytes=sum(chunk.size_bytes for chunk in chunks))
            message.cuda.device_uuid = self._uuids[chunks[0].ordinal]
            with self._driver.context(chunks[0].ordinal):
                for chunk in chunks:
                    self._describe_chunk(chunk, message.cuda.chunks.add())

    def _describe_chunk(self, chunk: Chunk, message: Any) -> None:
        message.size_bytes = chunk.size_bytes
        if chunk.kind is ChunkKind.IPC:
            message.ipc = self._driver.ipc_handle(chunk.base)
        elif chunk.kind is ChunkKind.DESCRIPTOR:
            message.posix_descriptor = True
        elif chunk.kind is ChunkKind.FABRIC:
            message.fabric = self._export_fabric(chunk)
        else:
            message.pool.pointer = self._driver.export_pool_pointer(chunk.base)
            message.pool.opens_pool = True

    def _export_fabric(self, chunk: Chunk) -> bytes:
        try:
            return self._driver.export_fabric(chunk.base)
        except CudaError as error:
            raise CudaError(
                f"{error}: the chunk at {chunk.base:#x} can leave this process as a fabric handle "
                "only, which needs the IMEX service (nvidia-imex) and access to its channels; or "
                "have the allocator ask for POSIX descriptors"
            ) from error

    def descriptors(self) -> list[Callable[[], int]]:
        """For each descriptor of the regions, in order, the call that makes it. One at a time: a
        large model has more chunks than a process may have descriptors."""
        return [
            lambda chunk=chunk: self._open(chunk)  # type: ignore[misc]
            for region in self.regions
            for chunk in region
            if chunk.kind in (ChunkKind.DESCRIPTOR, ChunkKind.POOL)
        ]

    def _open(self, chunk: Chunk) -> int:
        with self._driver.context(chunk.ordinal):
            if chunk.kind is ChunkKind.POOL:
                return self._driver.export_pool(chunk.pool)
            return self._driver.export_descriptor(chunk.base)

    def unchanged(self) -> bool:
        """Whether the same allocations still lie at all the addresses."""
        if not self.regions:
            return True
        with self._driver.any_context():
            return all(self._driver.all_are(*identity) for identity in self._identities)

    def synchronize(self) -> None:
        """Returns when all the devices have done what this process asked of them.

        Raises:
          CudaError: a device failed, or is gone.
        """
        for ordinal in self.ordinals:
            self._driver.synchronize(ordinal)


def _joined(chunks: list[Chunk]) -> list[list[Chunk]]:
    """Regions of chunks in the order of their addresses."""
    regions: list[list[Chunk]] = []
    for chunk in chunks:
        if regions and chunk.continues(regions[-1][-1]):
            regions[-1].append(chunk)
        else:
            regions.append([chunk])
    return regions


def _chunks_of(driver: CudaDriver, tensors: Iterable[DeviceTensor]) -> list[Chunk]:
    """All chunks that the tensors lie in, each once, in the order of their addresses."""
    found: list[Chunk] = []
    for tensor in sorted(tensors, key=lambda t: t.address):
        at = tensor.address
        while at < tensor.end:
            # The tensors come in order, so chunks do: `at` lies in a known one or behind them all.
            index = bisect.bisect_right(found, at, key=lambda chunk: chunk.base) - 1
            if index < 0 or at >= found[index].end:
                found.append(_chunk_at(driver, tensor, at))
                index = len(found) - 1
            at = found[index].end
    return found


def _identity(driver: CudaDriver, address: int) -> tuple[Optional[int], ...]:
    return tuple(driver.attribute(attribute, address) for attribute in _IDENTITIES)


def _chunk_at(driver: CudaDriver, tensor: DeviceTensor, address: int) -> Chunk:
    ordinal = driver.attribute(Attribute.DEVICE_ORDINAL, address)
    memory_type = driver.attribute(Attribute.MEMORY_TYPE, address)
    if ordinal is None or memory_type is None:
        raise LayoutError(
            f"tensor '{tensor.name}': no memory of a CUDA device lies at {address:#x}; was it freed, "
            "or are the weights asleep? Attach them when they are there"
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
            f"tensor '{tensor.name}': the driver says that {address:#x} lies in the allocation of "
            f"{size_bytes} bytes at {base:#x}"
        )
    return Chunk(base, size_bytes, ordinal, kind, pool, _identity(driver, base))


def _kind_of(driver: CudaDriver, tensor: DeviceTensor, base: int) -> tuple[ChunkKind, int]:
    """How the allocation may be handed over, and the pool it is of."""
    if driver.attribute(Attribute.IS_LEGACY_IPC_CAPABLE, base):
        return ChunkKind.IPC, 0
    pool = driver.attribute(Attribute.POOL, base) or 0
    if pool:
        allowed = driver.attribute(Attribute.ALLOWED_HANDLE_TYPES, base) or 0
        if allowed & HandleType.DESCRIPTOR:
            return ChunkKind.POOL, pool
        raise _refusal(
            tensor,
            "comes from a memory pool that may not leave its process, as the default pool of "
            "cudaMallocAsync",
            "PYTORCH_CUDA_ALLOC_CONF=backend:native, or a pool made with POSIX descriptors",
        )
    virtual = driver.virtual_allocation(base)
    if virtual is None or not virtual.on_device:
        raise _refusal(
            tensor,
            "is memory of a kind the driver shares in no way",
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
        "is virtual memory that was made without leave to be shared",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False or a newer torch; for an engine's sleep "
        "mode or memory saver, turn it off for weights or have it ask for POSIX descriptors",
    )


def _refusal(tensor: DeviceTensor, reason: str, remedy: str) -> LayoutError:
    return LayoutError(
        f"tensor '{tensor.name}' {list(tensor.shape)} cannot be handed over in place: it {reason}. "
        f"Remedy: {remedy}"
    )
