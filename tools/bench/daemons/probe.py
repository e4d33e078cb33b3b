"""codec_bench --probe: captures and commits of the same amount of weights, timed on request."""

from __future__ import annotations

import subprocess
from typing import Any

CODEC_BENCH = "tools/bench/codec_bench"


class Probe:
    """A context manager. The process ends with it."""

    def __init__(self, size_bytes: int) -> None:
        command = [CODEC_BENCH, "--probe", f"--size={size_bytes}"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()

    def capture_seconds(self, threads: int) -> float:
        return self._ask(f"capture {threads}")

    def commit_seconds(self, threads: int) -> float:
        return self._ask(f"commit {threads}")

    def _ask(self, request: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{CODEC_BENCH} ended with status {self._process.wait()}")
        return line.strip()

    def __enter__(self) -> "Probe":
        return self

    def __exit__(self, *unused: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
