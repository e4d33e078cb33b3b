"""CPU time (user and system) of this process and of daemons. Other load on the machine disturbs it less than
elapsed time."""

from __future__ import annotations

import os
import time
from typing import Callable, NamedTuple


class Took(NamedTuple):
    """Seconds that a piece of work took: elapsed, and of all its threads' CPU time."""

    elapsed: float
    cpu: float


def of_this_process() -> float:
    return time.process_time()


def of_process(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(work: Callable[[], None], cpu: Callable[[], float] = of_this_process) -> Took:
    begin, used = time.monotonic(), cpu()
    work()
    return Took(time.monotonic() - begin, cpu() - used)
