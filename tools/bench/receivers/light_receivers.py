"""Runs tools/bench/receivers/light_receiver: many receivers without engines, in one process."""

from __future__ import annotations

import json
import resource
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = "tools/bench/receivers/light_receiver"
_ASK_SECONDS = 0.1


def raise_descriptors(wanted: int) -> None:
    """Raises this process's limit of descriptors, which daemons that it starts inherit.

    Raises:
      RuntimeError: the hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise RuntimeError(
            f"{wanted} descriptors are needed, the hard limit is {hard}: raise it (ulimit -Hn)"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def count_known(sender_folder: str) -> int:
    """How many light receivers a sender has on its disk: its next process awaits no others."""
    known = Path(sender_folder, "state", "receivers.known")
    return known.read_text().count(b"light-".hex()) if known.exists() else 0


class LightReceivers:
    """A context manager. The process ends with it."""

    def __init__(self, sender: str, count: int, job_id: str, *flags: str) -> None:
        self.count = count
        self._process = subprocess.Popen(
            [PROGRAM, f"--sender={sender}", f"--job-id={job_id}", f"--count={count}", *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def at(self, version: int) -> dict[str, Any]:
        """What they say: how many are `at` the version or a newer one, at what `times` (of
        time.monotonic) they committed it, and totals."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"at {version}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{PROGRAM} ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def wait(self, version: int, seconds: float) -> dict[str, Any]:
        """Returns once all of them have the version, or a newer one.

        Raises:
          RuntimeError: they have not, in that time.
        """
        deadline = time.monotonic() + seconds
        while (answer := self.at(version))["at"] < self.count:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{answer['at']} of {self.count} receivers have version {version} after {seconds} s"
                )
            time.sleep(_ASK_SECONDS)
        return answer

    def __enter__(self) -> "LightReceivers":
        return self

    def __exit__(self, *unused: Any) -> None:
        self._process.communicate()  # closes its stdin
