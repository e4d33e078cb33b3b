"""Device memory as regions that a daemon can import. dws.cuda_chunks decides how each allocation is
handed over."""

from __future__ import annotations

import bisect
import contextlib
from typing import Any, Callable, Iterable, Optional

from dws.cuda_chunks import (
    IDENTITIES,
    Chunk,
    ChunkKind,
    chunks_of,
    first_of_pools,
    joined,
)
from dws.cuda_driver import CudaDriver
from dws.device_tensor import DeviceTensor
from dws.errors import CudaError, LayoutError
from dws.mapping import Place


class CudaMemory:
    """The allocations that hold some tensors. Frees nothing: they belong to their owner.

    Attributes:
      regions: each a list of adjacent chunks.
      ordinals: their devices' numbers in this process.
    """

    def __init__(
        self, tensors: Iterable[DeviceTensor], driver: Optional[CudaDriver] = None
    ) -> None:
        """Args:
          tensors: those without elements have no place and are left out.
          driver: by default this machine's.

        Raises:
          CudaError: no driver, or it failed.
          LayoutError: memory that cannot be handed over; names the tensor and the remedy.
        """
        self._driver = driver or CudaDriver.load()
        present = [tensor for tensor in tensors if tensor.elements]
        with self._driver.any_context() if present else contextlib.nullcontext():
            self.regions = joined(chunks_of(self._driver, present))
        self._bases = [region[0].base for region in self.regions]
        for tensor in present:
            self._require_one_region(tensor)
        self.ordinals = sorted({region[0].ordinal for region in self.regions})
        self._opening = first_of_pools(self.regions)
        self._uuids = {ordinal: self._driver.device_uuid(ordinal) for ordinal in self.ordinals}
        # For `unchanged`: for each attribute, (address, value) of the chunks that have it.
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
            for number, attribute in enumerate(IDENTITIES)
        ]

    def place(self, tensor: DeviceTensor, first_region: int) -> Place:
        """The place of a tensor; one without elements is at the start of the first region.

        Args:
          first_region: the number of regions[0] among all regions of the registration.
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
            message.pool.opens_pool = chunk.base in self._opening

    def _export_fabric(self, chunk: Chunk) -> bytes:
        try:
            return self._driver.export_fabric(chunk.base)
        except CudaError as error:
            raise CudaError(
                f"{error}: the chunk at {chunk.base:#x} can be shared as a fabric handle only, "
                "which needs the IMEX service (nvidia-imex) and access to its channels; or "
                "have the allocator ask for POSIX descriptors"
            ) from error

    def descriptors(self) -> list[Callable[[], int]]:
        """Returns, for each descriptor of the regions, in order, the call that makes it. They are
        made one at a time, because a large model has more chunks than a process may have
        descriptors."""
        return [
            lambda chunk=chunk: self._open(chunk)  # type: ignore[misc]
            for region in self.regions
            for chunk in region
            if chunk.kind is ChunkKind.DESCRIPTOR or chunk.base in self._opening
        ]

    def _open(self, chunk: Chunk) -> int:
        with self._driver.context(chunk.ordinal):
            if chunk.kind is ChunkKind.POOL:
                return self._driver.export_pool(chunk.pool)
            return self._driver.export_descriptor(chunk.base)

    def unchanged(self) -> bool:
        """Returns whether the same allocations are still at all the addresses."""
        if not self.regions:
            return True
        with self._driver.any_context():
            return all(self._driver.all_are(*identity) for identity in self._identities)

    def synchronize(self) -> None:
        """Returns when all the devices have finished the work of this process.

        Raises:
          CudaError: a device failed, or is gone.
        """
        for ordinal in self.ordinals:
            self._driver.synchronize(ordinal)
