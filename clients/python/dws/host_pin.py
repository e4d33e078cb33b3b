"""Page-locks shared memory for the GPU, so that the trainer's own copies to it run at full speed.
Optional: everything works without it."""

from __future__ import annotations

import logging
from typing import Optional

from dws.cuda_driver import CudaDriver
from dws.errors import CudaError
from dws.memory import SharedRegion

_log = logging.getLogger("dws")


class HostPin:
    """Page-locks one region, once the process uses a device, until close.

    Keeps the memory alive, so that it is unlocked before it is unmapped.
    """

    def __init__(self, region: SharedRegion) -> None:
        self._bytes = region.bytes()
        self._driver: Optional[CudaDriver] = None
        self._tried = False

    @property
    def pinned(self) -> bool:
        return self._driver is not None

    def try_pin(self) -> None:
        """Does nothing if no device is in use; try again later. A failure is logged once."""
        if self._tried:
            return
        driver = CudaDriver.in_use()
        if driver is None:
            return
        self._tried = True
        try:
            driver.register_host(self._bytes.ctypes.data, self._bytes.nbytes)
            self._driver = driver
        except CudaError as error:
            _log.warning(
                "shared memory of %d bytes is not page-locked, copies from the GPU to it are "
                "slower: %s",
                self._bytes.nbytes,
                error,
            )

    def close(self) -> None:
        """Unlocks the memory. Idempotent."""
        driver, self._driver, self._tried = self._driver, None, True
        if driver is not None:
            try:
                driver.unregister_host(self._bytes.ctypes.data)
            except CudaError as error:
                _log.warning("shared memory stays page-locked: %s", error)

    def __del__(self) -> None:
        self.close()
