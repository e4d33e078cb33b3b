"""The versions that a rollout engine sees."""

from __future__ import annotations

import time
from typing import Iterator, Optional

import dws

_POLL_SECONDS = 0.002


def new_versions(engine: dws.Engine, timeout: Optional[float] = None) -> Iterator[dws.Grant]:
    """Each version of each stream that the engine comes to, for ever. The weights do not change while the caller has it.

    Args:
      timeout: as of `Engine.running`.
    """
    last = None
    while True:
        with engine.running(timeout) as grant:
            now = (grant.stream, grant.version)
            if now != last:
                yield grant
        if now == last:
            time.sleep(_POLL_SECONDS)
        last = now
