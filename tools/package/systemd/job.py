"""A job of one trainer and its engines, as processes of users of the group dws (worker.py)."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import time
from types import TracebackType
from typing import Any

from report import CheckFailed, Report, until
from unit import Unit

MEBIBYTES = 96
_ANSWER_SECONDS = 130.0
SYNC_SECONDS = 60.0


class Worker:
    """One process of worker.py."""

    def __init__(self, kind: str, *arguments: str) -> None:
        """Begins to attach; `attached` waits for that."""
        self._attached = False
        self._what = f"{kind} ({' '.join(arguments)})"
        self._process = subprocess.Popen(
            ["/usr/bin/python3", "-B", "/packages/systemd/worker.py", kind, *arguments],
            user=kind, group="dws", extra_groups=[], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )

    def ask(self, order: str, argument: object = "") -> dict[str, Any]:
        """Raises CheckFailed when the worker answers with an error, or not at all."""
        answer = self.attempt(order, argument)
        if "error" in answer:
            raise CheckFailed(f"{self._what}: {order} {argument}: {answer['error']}")
        return answer

    def attached(self) -> None:
        if not self._attached:
            self._answer()
            self._attached = True

    def attempt(self, order: str, argument: object = "") -> dict[str, Any]:
        self.attached()
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order} {argument}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _ANSWER_SECONDS)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            raise CheckFailed(f"{self._what} does not answer, exit status {self._process.poll()}")
        return dict(json.loads(line))

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(SYNC_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Job:
    """The trainer, and the engine beside each of the receivers."""

    def __init__(self, sender: Unit, receivers: list[Unit], job_id: str = "my-job") -> None:
        self.newest = 0
        self.digest = ""
        self._size = f"--mebibytes={MEBIBYTES}"
        self.trainer = Worker("trainer", f"--socket={sender.socket}", f"--job={job_id}", self._size)
        self.trainer.attached()
        self.engines = {receiver.name: self.begin_engine(receiver) for receiver in receivers}
        for engine in self.engines.values():
            engine.attached()

    def begin_engine(self, receiver: Unit) -> Worker:
        return Worker("engine", f"--socket={receiver.socket}", self._size)

    def publish(self) -> int:
        self.newest += 1
        self.digest = self.trainer.ask("publish", self.newest)["digest"]
        return self.newest

    def reconnect(self) -> None:
        """After a restart of the sender; a version that it may have lost gets its number again."""
        self.newest = self.trainer.ask("reconnect")["last_version"]

    def behind(self, seconds: float = SYNC_SECONDS) -> str:
        """Waits until every engine has the trainer's newest weights, bit for bit; says who has not."""
        end = time.monotonic() + seconds
        for name, engine in self.engines.items():
            until(lambda: engine.ask("state")["version"] == self.newest, max(0.1, end - time.monotonic()))
            found = engine.attempt("digest")
            if (found.get("version"), found.get("digest")) != (self.newest, self.digest):
                return f"{name} has {found}, the trainer {self.newest} {self.digest}"
        return ""

    def sync(self, report: Report, what: str, versions: int = 2) -> None:
        """Publishes, and checks that every engine has the same bits after each version."""
        behind = ""
        for _ in range(versions):
            self.publish()
            behind = behind or self.behind()
        report.check(not behind, f"{what}: {versions} versions, last {self.newest}, SHA-256 of engines and trainer equal", behind)

    def passes(self, receiver: Unit) -> int:
        return int(self.engines[receiver.name].ask("state")["passes"])

    def generates(self, receiver: Unit, seconds: float = 10.0) -> bool:
        """Returns whether the engine makes forward passes now."""
        before = self.passes(receiver)
        return until(lambda: self.passes(receiver) > before + 3, seconds)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *unused: type[BaseException] | BaseException | TracebackType | None) -> None:
        for worker in [*self.engines.values(), self.trainer]:
            worker.close()
