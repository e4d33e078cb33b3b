"""A trainer or an engine that obeys lines on its input and answers each with a line of JSON:

    worker.py trainer --socket S --job J --mebibytes N
    worker.py engine --socket S --mebibytes N

It uses the installed package `dws` alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import threading
import time
from typing import Any, Callable

import dws
import numpy as np

TIMEOUT_SECONDS = 60.0
_CHANGED_SHARE = 0.03


def empty(mebibytes: int) -> dict[str, Any]:
    return {"w": np.zeros((mebibytes, 1 << 18), np.float32), "b": np.zeros(4099, np.uint16)}


def digest(views: dict[str, Any]) -> str:
    """SHA-256 over all bytes of all tensors."""
    total = hashlib.sha256()
    for name in sorted(views):
        total.update(np.ascontiguousarray(views[name]).view(np.uint8).data)
    return total.hexdigest()


class TrainerWorker:
    def __init__(self, options: argparse.Namespace) -> None:
        self._random = np.random.default_rng(7)
        self._trainer = dws.Trainer(options.socket, job_id=options.job)
        self._views = self._trainer.register(empty(options.mebibytes), timeout=TIMEOUT_SECONDS)

    def obey(self, order: str, argument: str) -> dict[str, Any]:
        if order == "publish":
            return self._publish(int(argument))
        if order == "wait":
            self._trainer.wait(int(argument), policy="all", timeout=TIMEOUT_SECONDS)
        elif order == "reconnect":
            self._trainer.reconnect(TIMEOUT_SECONDS)
        return {"last_version": self._trainer.last_version, "connected": self._trainer.connected}

    def _publish(self, version: int) -> dict[str, Any]:
        for view in self._views.values():
            flat = view.reshape(-1)
            chosen = self._random.integers(0, flat.size, max(1, int(flat.size * _CHANGED_SHARE)))
            flat[chosen] += self._random.integers(1, 9)
        self._trainer.publish(version, timeout=TIMEOUT_SECONDS)
        return {"version": version, "digest": digest(self._views)}

    def close(self) -> None:
        self._trainer.close()


class EngineWorker:
    """Forward passes on a thread of their own: each notes its version, a new version's digest too."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._hook_seconds = 0.0
        self._in_hook = threading.Event()
        self._hold_seconds = 0.0
        self._held = threading.Event()
        self._over = threading.Event()
        self._state: dict[str, Any] = {"version": 0, "digest": "", "passes": 0, "paused": ""}
        self._engine = dws.Engine(options.socket)
        self._views = self._engine.attach(
            empty(options.mebibytes), post_commit=self._hook, timeout=TIMEOUT_SECONDS
        )
        self._thread = threading.Thread(target=self._generate, daemon=True)
        self._thread.start()

    def _hook(self, version: int) -> None:
        if self._hook_seconds:
            self._in_hook.set()
            time.sleep(self._hook_seconds)

    def _generate(self) -> None:
        while not self._over.wait(0.005):
            try:
                with self._engine.running(timeout=1.0) as grant:
                    self._pass(grant)
            except dws.EnginePaused as paused:
                self._state["paused"] = paused.reason

    def _pass(self, grant: dws.Grant) -> None:
        if grant.version != self._state["version"]:
            self._state.update(version=grant.version, digest=digest(self._views))
        self._state["passes"] += 1
        self._state["paused"] = ""
        if self._hold_seconds:
            self._held.set()
            time.sleep(self._hold_seconds)
            self._hold_seconds = 0.0

    def obey(self, order: str, argument: str) -> dict[str, Any]:
        if order == "hold":  # one forward pass of so many seconds
            self._held.clear()
            self._hold_seconds = float(argument)
            return {"held": self._held.wait(TIMEOUT_SECONDS)}
        if order == "hook":  # what follows each commit takes so many seconds
            self._in_hook.clear()
            self._hook_seconds = float(argument)
        if order == "in_hook":
            return {"in_hook": self._in_hook.wait(float(argument))}
        if order == "digest":  # of what is in memory now
            with self._engine.running(timeout=TIMEOUT_SECONDS) as grant:
                return {"version": grant.version, "digest": digest(self._views)}
        return {**self._state, "reattachments": self._engine.stats().reattachments}

    def close(self) -> None:
        self._over.set()
        self._thread.join(TIMEOUT_SECONDS)
        self._engine.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["trainer", "engine"])
    parser.add_argument("--socket", required=True)
    parser.add_argument("--job", default="")
    parser.add_argument("--mebibytes", type=int, required=True)
    options = parser.parse_args()
    make: Callable[[argparse.Namespace], Any] = TrainerWorker if options.kind == "trainer" else EngineWorker
    worker = make(options)
    print(json.dumps({"attached": True}), flush=True)
    for line in sys.stdin:
        order, _, argument = line.strip().partition(" ")
        try:
            answer = worker.obey(order, argument)
        except dws.DwsError as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    worker.close()


if __name__ == "__main__":
    main()
