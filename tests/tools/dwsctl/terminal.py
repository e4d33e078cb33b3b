"""Runs a program in a pseudo terminal and keeps what a user sees."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from typing import Any, Callable, Mapping

WAIT_SECONDS = 30.0
_ESCAPE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])")


class Screen:
    """The lines on a terminal, for the few escapes that dwsctl uses; any other is an error."""

    def __init__(self) -> None:
        self.lines: list[str] = [""]
        self.row = 0
        self.column = 0
        self.colours: set[str] = set()
        self._rest = ""

    def feed(self, text: str) -> None:
        text = self._rest + text
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                match = _ESCAPE.match(text, at)
                if match is None:
                    if len(text) - at < 12:
                        break  # the rest has not been read yet
                    raise AssertionError(f"unknown escape {text[at : at + 12]!r}")
                self._escape(match[2], match[1])
                at = match.end()
                continue
            self._put(text[at])
            at += 1
        self._rest = text[at:]

    def _put(self, char: str) -> None:
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self.row += 1
            if self.row == len(self.lines):
                self.lines.append("")
        else:
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + char + line[self.column + 1 :]
            self.column += 1

    def _escape(self, kind: str, argument: str) -> None:
        if kind == "A":
            self.row -= int(argument or 1)
            assert self.row >= 0, "above the first line"
        elif kind == "K":
            self.lines[self.row] = self.lines[self.row][: self.column]
        elif kind == "J" and argument == "2":
            self.lines = [""] * (self.row + 1)
        elif kind == "J":
            self.lines[self.row] = self.lines[self.row][: self.column]
            del self.lines[self.row + 1 :]
        elif kind == "H":
            self.row = self.column = 0
        elif kind == "m":
            self.colours.add(argument)
        else:
            raise AssertionError(f"unknown escape {argument}{kind}")


class Terminal:
    """Runs a command; `screen` follows what it writes. A context manager that ends it."""

    def __init__(self, command: list[str], columns: int = 80, env: Mapping[str, str] = {}) -> None:
        self.screen = Screen()
        self.raw = ""
        self.master, terminal = pty.openpty()
        self.resize(columns)
        # Not pty.fork: gRPC runs in this process, and its fork handlers sometimes abort. subprocess
        # uses vfork, which runs no handlers.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *command],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**os.environ, "TERM": "xterm", **env},
        )
        os.close(terminal)

    def resize(self, columns: int, rows: int = 24) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def attributes(self) -> Any:
        return termios.tcgetattr(self.master)

    def type(self, text: bytes) -> None:
        os.write(self.master, text)

    def wait_for(self, condition: Callable[[Screen], bool], what: str) -> None:
        """Raises AssertionError if the screen does not get into this state in time."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition(self.screen):
            if time.monotonic() > deadline or not self._read(deadline):
                lines = "\n".join(self.screen.lines)
                raise AssertionError(f"{what}; the screen:\n{lines}\nraw: {self.raw[-400:]!r}")

    def end(self) -> int:
        """Reads to the end and returns the exit status."""
        deadline = time.monotonic() + WAIT_SECONDS
        while self._read(deadline):
            assert time.monotonic() < deadline, "it does not end"
        return self.process.wait()

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return True
        try:
            data = os.read(self.master, 65536)
        except OSError:  # EIO: the other side is closed
            return False
        text = data.decode()
        self.raw += text
        self.screen.feed(text)
        return bool(data)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *unused: Any) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
