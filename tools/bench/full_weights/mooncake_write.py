"""miles' transfers between peers, on CPUs: each trainer rank writes each engine rank's parts into
its registered memory, by Mooncake's TransferEngine over TCP. What arrives stays where it came:
nothing is cut to columns or loaded, and each part is one run of bytes."""

from __future__ import annotations

import json
import select
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tools.bench.full_weights.mesh_job import all_ranks
from tools.bench.full_weights.shapes import Shapes

_PROGRAM = Path(__file__).with_name("mooncake_rank.py")
_TIMEOUT_SECONDS = 600.0
_LOG_CHARACTERS = 2000


class MooncakeMissing(RuntimeError):
    """That Python has no Mooncake that works."""


def require_mooncake(python: str) -> None:
    """Raises MooncakeMissing."""
    try:
        command = [python, "-I", "-c", "from mooncake.engine import TransferEngine"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
    except OSError as error:
        raise MooncakeMissing(f"--peers={python}: expected a Python with Mooncake: {error}") from error
    except subprocess.CalledProcessError as error:
        raise MooncakeMissing(f"--peers={python}: that Python has no Mooncake that works: {error.stderr}") from error


class _Rank:
    """A rank, which is a program of its own. A context manager."""

    def __init__(self, python: str, size_bytes: int) -> None:
        self._python = python
        self._size_bytes = size_bytes

    def __enter__(self) -> "_Rank":
        with ExitStack() as stack:
            self._log = stack.enter_context(tempfile.TemporaryFile("w+"))
            command = [self._python, "-I", str(_PROGRAM), str(self._size_bytes)]
            pipe = subprocess.PIPE
            # Its end closes the pipes, at which the program ends, and waits.
            self._process = stack.enter_context(
                subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._log, text=True)
            )
            started = self._answer()
            self.segment, self.address = started["segment"], started["address"]
            self._stack = stack.pop_all()
        return self

    def _answer(self) -> Any:
        answers = self._process.stdout
        assert answers is not None
        line = answers.readline() if select.select([answers], [], [], _TIMEOUT_SECONDS)[0] else ""
        if line == "":
            self._log.seek(0)
            raise RuntimeError(f"a rank of Mooncake does not answer: {self._log.read()[-_LOG_CHARACTERS:]}")
        return json.loads(line)

    def ask(self, what: str, parts: Any) -> Any:
        assert self._process.stdin is not None
        print(json.dumps({what: parts}), file=self._process.stdin, flush=True)
        return self._answer()

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


class MooncakeWrite:
    """Trainer and engine ranks, a process each. A context manager. Each trainer rank holds its rows: first what
    engine rank 0 gets of them, then what rank 1 gets, and so on. An engine rank holds what it gets in the order of
    the trainer ranks."""

    def __init__(self, shapes: Shapes, python: str) -> None:
        assert shapes.ranks == shapes.tp
        self._shapes = shapes
        self._python = python

    def __enter__(self) -> "MooncakeWrite":
        held = self._shapes.size_bytes // self._shapes.tp
        with ExitStack() as stack:
            ranks = [
                stack.enter_context(_Rank(self._python, held)) for _ in range(self._shapes.ranks + self._shapes.tp)
            ]
            self._sources, self._engines = ranks[: self._shapes.ranks], ranks[self._shapes.ranks :]
            self._stack = stack.pop_all()
        return self

    def _part_bytes(self, source: int, engine: int) -> int:
        """An engine rank has the rows of one trainer rank of the tensors that are cut by rows."""
        tensors = len(self._shapes.specs())
        by_columns = sum(self._shapes.by_columns(i) for i in range(tensors))
        rows_bytes = self._shapes.size_bytes // tensors // self._shapes.ranks
        whole = tensors - by_columns if source == engine else 0
        return rows_bytes * whole + rows_bytes * by_columns // self._shapes.tp

    def _offsets(self, source: int, engine: int) -> tuple[int, int]:
        """Where that part is, at either end."""
        return (
            sum(self._part_bytes(source, other) for other in range(engine)),
            sum(self._part_bytes(other, engine) for other in range(source)),
        )

    def _write(self, source: int) -> None:
        parts = []
        # Each begins with another engine rank.
        for turn in range(self._shapes.tp):
            engine = (source + turn) % self._shapes.tp
            begin, to = self._offsets(source, engine)
            target = self._engines[engine]
            parts.append((target.segment, target.address + to, begin, self._part_bytes(source, engine)))
        self._sources[source].ask("write", parts)

    def seconds(self) -> float:
        """Moves the weights once, until the last trainer rank has sent its parts."""
        begin = time.monotonic()
        all_ranks(self._shapes.ranks, self._write)
        return time.monotonic() - begin

    def check(self) -> None:
        """Raises RuntimeError if an engine rank has other bytes than it was sent."""
        for source in range(self._shapes.ranks):
            for engine in range(self._shapes.tp):
                begin, to = self._offsets(source, engine)
                size = self._part_bytes(source, engine)
                sent = self._sources[source].ask("crc32", [(begin, size)])
                found = self._engines[engine].ask("crc32", [(to, size)])
                if sent != found:
                    raise RuntimeError(f"Mooncake: engine rank {engine} has not got what rank {source} sent it")

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)
