"""Checks of an engine that a receiver drives over HTTP: it follows a folder of slime's versions, patches a local
checkpoint, and has the engine load it."""

from __future__ import annotations

import random
import threading
import time
from typing import Callable, Optional

from tests.integration.cluster import Cluster, Daemon
from tools.real.engines.engine_server import Ended, EngineServer
from tools.real.engines.scene import CheckFailed, Scene
from tools.real.engines.traffic import Traffic
from tools.real.engines.trainer import STEPS, StepTrainer

LOAD_SECONDS = 60.0
LONG_TOKENS = 160
KILL_COUNT = 3
# The modes in which every request ends with all of its tokens.
_KEEPING = {"keep", "wait", "retract", "in_place"}
_ENDS = {"length", "abort", "stop"}


class Requests:
    """A context manager that makes long requests, one after the other. Their prompts share nothing with the prompts
    that are compared."""

    def __init__(self, server: EngineServer) -> None:
        self.ended: list[Ended] = []
        self.failure: Optional[str] = None
        self._server = server
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Requests":
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._stopping.set()
        self._thread.join(150.0)

    def _run(self) -> None:
        while not self._stopping.is_set():
            prompt = [900 + (len(self.ended) + place) % 90 for place in range(20)]
            try:
                self.ended.append(self._server.long_request(prompt, LONG_TOKENS))
            except (RuntimeError, OSError) as error:
                self.failure = str(error)
                return


class FollowedEngine:
    """A trainer whose sender writes slime's folder, a receiver that follows it, and an engine that serves the local
    checkpoint. A context manager: its end stops them."""

    def __init__(self, scene: Scene, seed: int = 0) -> None:
        self._scene = scene
        self._cluster = Cluster("real-engines")
        self._random = random.Random(seed)
        self._local = scene.path("local")
        self._versions = scene.path("versions")
        self._server: Optional[EngineServer] = None
        self._trainer: Optional[StepTrainer] = None
        self._receiver: Optional[Daemon] = None
        self._starts = 0

    def __enter__(self) -> "FollowedEngine":
        try:
            base = self._scene.path("base")
            for folder in (base, self._local):
                self._scene.write_base(folder)
            sender = self._cluster.start_sender(
                0, f"--slime-dir={self._versions}", f"--slime-checkpoint={base}"
            )
            configuration = self._scene.configuration
            self._trainer = StepTrainer(sender.socket, self._cluster.job_id, configuration)
            self._start_engine()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *unused: object) -> None:
        self._stop()

    def _stop(self) -> None:
        # A receiver that is loading waits for the engine.
        if self._receiver is not None and self._receiver.process is not None:
            self._receiver.kill()
        if self._server is not None:
            self._server.kill()
        if self._trainer is not None:
            self._trainer.close()
        self._cluster.stop()

    def logs(self) -> str:
        return self._cluster.logs()

    def _start_engine(self, port: int = 0) -> None:
        self._starts += 1
        name = f"followed-{self._starts}"
        self._server = self._scene.start(name, self._local, caches=True, port=port)

    @property
    def server(self) -> EngineServer:
        assert self._server is not None
        return self._server

    def follow(self, mode: str) -> None:
        """Starts a receiver in `mode`; it replaces the present one."""
        if self._receiver is not None:
            self._receiver.stop()
            self._receiver.release_ports()
            self._cluster.receivers.remove(self._receiver)
        self._receiver = self._cluster.start_receiver(
            "follower",
            *(f"--slime-dir={self._versions}", f"--checkpoint={self._local}"),
            *("--slime-poll-ms=20", f"--engine-url={self.server.url}", f"--engine-pause-mode={mode}"),
            senders=False,
        )

    @property
    def receiver(self) -> Daemon:
        assert self._receiver is not None
        return self._receiver

    def publish(self, step: int) -> int:
        assert self._trainer is not None
        return self._trainer.publish(step)

    def _has_loaded(self, version: int) -> bool:
        try:
            return self.receiver.metric("dws_follower_loaded_version") == version
        except (KeyError, OSError):
            return False

    def await_loaded(self, version: int) -> None:
        """Waits until the engine has loaded the version. Raises CheckFailed: it has not in time."""
        deadline = time.monotonic() + LOAD_SECONDS
        while not self._has_loaded(version):
            if time.monotonic() > deadline:
                raise CheckFailed(f"version {version} is not loaded after {LOAD_SECONDS} s")
            time.sleep(0.05)

    def check_mode(self, mode: str) -> str:
        """Loads versions while requests run, then compares with fresh engines.

        Raises:
          CheckFailed, RuntimeError, OSError, DwsError, DaemonFailed.
        """
        self.follow(mode)
        ended: list[Ended] = []
        for step in STEPS:
            with Requests(self.server) as requests:
                time.sleep(0.5)
                version = self.publish(step)
                self.await_loaded(version)
            if requests.failure is not None:
                raise CheckFailed(f"a request failed: {requests.failure}")
            ended += requests.ended
            if mode == "in_place":
                self.server.clear_cache()  # which this mode keeps
            self._scene.require_as_fresh(self.server, step, f"version {version}")
        short = [one for one in ended if one.tokens != LONG_TOKENS]
        if mode in _KEEPING and short:
            raise CheckFailed(f"{len(short)} of {len(ended)} requests lost tokens: {short[0]}")
        if not {one.reason for one in ended} <= _ENDS:
            raise CheckFailed(f"requests ended with {sorted({one.reason for one in ended})}")
        cut = f", {len(short)} cut short" if mode not in _KEEPING else ""
        return f"{len(STEPS)} versions as fresh engines, {len(ended)} requests{cut}"

    def check_kill(self, check: str, mode: str) -> str:
        """Kills the receiver or the engine's worker while versions come. Raises like `check_mode`."""
        self.follow(mode)
        kill: Callable[[], None] = {
            "follow-kill-receiver": self._restart_receiver,
            "follow-kill-engine": self._restart_engine,
        }[check]
        count = 1 if check == "follow-kill-engine" else KILL_COUNT
        self.await_loaded(self.publish(STEPS[0]))
        with Traffic(lambda: self.server, self._scene.probes()) as traffic:
            for number in range(count):
                version = self.publish(STEPS[(number + 1) % len(STEPS)])
                time.sleep(self._random.random() * 0.5)
                kill()
                self.await_loaded(version)
                traffic.await_passes(2, LOAD_SECONDS)
        if traffic.wrong:
            raise CheckFailed(
                f"{traffic.wrong} of {traffic.passes} passes of no version: {traffic.first_wrong}"
            )
        if traffic.failures and check != "follow-kill-engine":
            raise CheckFailed(f"{traffic.failures} requests failed")
        for step in STEPS:
            self.await_loaded(self.publish(step))
            self._scene.require_as_fresh(self.server, step, f"after {check}, step {step}")
        return f"{count} kills, {traffic.passes} passes, 0 wrong"

    def _restart_receiver(self) -> None:
        self.receiver.kill()
        self.receiver.start()

    def _restart_engine(self) -> None:
        server = self.server
        server.kill_worker()
        time.sleep(1.0)
        server.kill()
        self._start_engine(server.port)
