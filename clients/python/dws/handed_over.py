"""The memory that a client has handed over to a daemon, until the daemon has released it."""

from __future__ import annotations

import threading
import time
from typing import Callable, Sequence

from dws.handles import Descriptor, HandleConnection


class HandedOver:
    """The connections of the live registration, and of earlier ones whose memory the daemon may
    still use.

    Lifecycle: made empty; close. Threads: hand_over from one at a time, everything else from any.
    """

    def __init__(self) -> None:
        self._asking = threading.Lock()  # held during `released` and `close`
        self._guard = threading.Condition()  # guards the fields below
        self._handles: list[HandleConnection] = []
        self._handing_over = False  # descriptors are being sent

    def hand_over(
        self,
        path: str,
        token: bytes,
        descriptors: Sequence[Descriptor],
        require_wanted: Callable[[], None],
        timeout: float,
    ) -> None:
        """Hands memory over. From the first descriptor on, `released` waits for this registration.

        Args:
          timeout: seconds for the daemon to take the descriptors.
          require_wanted: raises if the registration is no longer wanted. The caller that makes it
            raise may call `released` afterwards.

        Raises:
          The errors of HandleConnection.hand_over and `require_wanted`.
        """
        with self._guard:
            self._handing_over = True
        try:
            require_wanted()
            handles = HandleConnection()
            with self._guard:
                self._handles.append(handles)
            handles.hand_over(path, token, descriptors, timeout)
        finally:
            with self._guard:
                self._handing_over = False
                self._guard.notify_all()

    def shut(self) -> None:
        """Ends the registrations; `released` tells when the daemon has released their memory."""
        with self._guard:
            for handles in self._handles:
                handles.shut()

    def released(self, timeout: float) -> bool:
        """Ends the registrations; returns whether the daemon has released their memory, after at
        most `timeout` seconds. Waits for a registration that is being handed over now."""
        deadline = time.monotonic() + timeout
        with self._asking:
            with self._guard:
                if not self._guard.wait_for(lambda: not self._handing_over, timeout):
                    return False
                asked = list(self._handles)
            ended = [handles for handles in asked if handles.end(deadline - time.monotonic())]
            with self._guard:
                self._handles = [handles for handles in self._handles if handles not in ended]
        return len(ended) == len(asked)

    def close(self) -> None:
        """Ends the registrations and forgets them. A hand-over that is in progress fails."""
        with self._asking, self._guard:
            for handles in self._handles:
                handles.close()
            self._handles.clear()
