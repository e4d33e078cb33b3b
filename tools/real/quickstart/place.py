"""Where the programs of one page run, and what they must print."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
from typing import Any, Mapping, Optional, Sequence

EXAMPLES = os.path.abspath("clients/examples")
PROGRAMS = ("sender_daemon/dws-sender", "receiver_daemon/dws-receiver")
STEPS = 4
SECONDS_MAX = 900.0  # of one page
END_SECONDS = 20.0


class CheckFailed(Exception):
    """A program failed, did not end in time, or both do not agree."""


class Place:
    """A folder for one page's files and logs, and the environment of its programs. Lifecycle: a context manager; its end ends
    the programs, each with all that it has started."""

    def __init__(self, python: str, variables: dict[str, str], logs: Optional[str]) -> None:
        self._python = python
        self._variables = variables
        self._stack = contextlib.ExitStack()
        self.folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dws-quickstart-"))
        self._logs = logs or self.folder
        os.makedirs(self._logs, exist_ok=True)
        programs = os.path.join(self.folder, "bin")
        os.mkdir(programs)
        for program in PROGRAMS:
            os.symlink(os.path.abspath(program), os.path.join(programs, os.path.basename(program)))
        self._variables["PATH"] = os.pathsep.join([programs, os.path.dirname(python), os.environ["PATH"]])

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, *unused: object) -> None:
        self._stack.close()

    def start(self, name: str, words: Sequence[str], **more: str) -> subprocess.Popen[bytes]:
        """Starts a program of the examples; its log has that name."""
        words = [os.path.join(self.folder, "model") if word == "MODEL" else word for word in words]
        command = [self._python, *words] if not words[0].endswith(".sh") else ["bash", *words]
        log = self._stack.enter_context(open(self.log(name), "w"))
        process = subprocess.Popen(
            command, cwd=EXAMPLES, env={**self._variables, **more}, stdout=log, stderr=log, start_new_session=True
        )
        self._stack.callback(_end, process)
        return process

    def wait(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Raises CheckFailed unless it ends as it should."""
        try:
            status = process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired as error:
            raise CheckFailed(f"the {name} did not end within {SECONDS_MAX:.0f} s") from error
        if status != 0:
            raise CheckFailed(f"the {name} ended with status {status}")

    def read(self, name: str) -> str:
        with open(self.log(name), errors="replace") as file:
            return file.read()

    def log(self, name: str) -> str:
        return os.path.join(self._logs, f"{name}.log")

    def ends(self) -> str:
        """The ends of all logs."""
        logs = sorted(name for name in os.listdir(self._logs) if name.endswith(".log"))
        return "".join(f"--- {name}\n{self.read(name[:-4])[-6000:]}" for name in logs)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends its session's processes: by SIGINT, as ^C does, and by SIGKILL those that are left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def told(text: str) -> dict[int, str]:
    """What a program has printed of each version: its digest, or else all that follows the number."""
    found = {}
    for version, rest in re.findall(r"^version (\d+): (.*)$", text, re.M):
        digest = re.search(r"digest (\w+)$", rest)
        found[int(version)] = digest[1] if digest else rest
    return found


def compare(trainer: dict[int, str], engine: dict[int, str], digests: bool) -> str:
    """Returns what was found in words.

    Args:
      digests: whether both have printed them.

    Raises:
      CheckFailed: the engine does not have the trainer's last version, or had another version than the trainer.
    """
    if len(trainer) < STEPS or max(engine, default=0) != max(trainer):
        raise CheckFailed(f"the trainer published {sorted(trainer)}, the engine had {sorted(engine)}")
    if digests:
        wrong = [version for version, digest in engine.items() if trainer.get(version) != digest]
        if wrong:
            raise CheckFailed(f"digests differ at versions {wrong}")
        return f"equal digests at versions {sorted(engine)}"
    if len(set(engine.values())) < 2:
        raise CheckFailed(f"the engine gave the same answers at versions {sorted(engine)}")
    return f"answers of versions {sorted(engine)}"
