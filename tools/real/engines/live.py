"""Checks an engine whose live memory a receiver patches: its integrations, and kills of processes."""

from __future__ import annotations

import random
import time
from typing import Callable, Optional

from tests.integration.cluster import Cluster, Daemon
from tools.real.engines.cells import KILLS
from tools.real.engines.engine_server import EngineServer
from tools.real.engines.model import view_of
from tools.real.engines.scene import CheckFailed, Scene
from tools.real.engines.traffic import Traffic
from tools.real.engines.trainer import STEPS, WAIT_SECONDS, Publishing, StepTrainer
from tools.real.engines.vllm_server import VllmServer

KILL_COUNT = 3
# The prefix of the names of one layer's tensors.
CHANGING_LAYER = "model.layers.1.mlp."
# A version takes about a tenth of a second: a kill after a random part of these falls anywhere in one.
PUBLISHING_SECONDS = 1.0
RECOVERY_SECONDS = 90.0


def receiver_flags(scene: Scene) -> list[str]:
    view = view_of(scene.configuration.kind)
    return [] if view is None else [f"--view={view}"]


class LiveEngine:
    """Daemons, a trainer and an engine that is attached. A context manager: its end stops them.

    Attributes:
      server: the engine, also after it was started again.
    """

    def __init__(self, scene: Scene, seed: int = 0) -> None:
        self._scene = scene
        self._cluster = Cluster("real-engines")
        self._random = random.Random(seed)
        self._model = scene.path("live")
        self._server: Optional[EngineServer] = None
        self._trainer: Optional[StepTrainer] = None
        self._starts = 0

    def __enter__(self) -> "LiveEngine":
        try:
            self._scene.write_base(self._model)
            self._sender = self._cluster.start_sender()
            self._receiver = self._cluster.start_receiver("engine", *receiver_flags(self._scene))
            self._trainer = StepTrainer(
                self._sender.socket, self._cluster.job_id, self._scene.configuration
            )
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *unused: object) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._server is not None:
            self._server.kill()
        if self._trainer is not None:
            self._trainer.close()
        self._cluster.stop()

    @property
    def server(self) -> EngineServer:
        assert self._server is not None
        return self._server

    @property
    def trainer(self) -> StepTrainer:
        assert self._trainer is not None
        return self._trainer

    def logs(self) -> str:
        return self._cluster.logs()

    def _start(self) -> None:
        self._starts += 1
        name = f"live-{self._starts}"
        options = {"checkpoint": self._model} if self._scene.compares else {}
        self._server = self._scene.start(
            name, self._model, receiver=self._receiver.socket, options=options
        )
        if isinstance(self._server, VllmServer):
            self._server.call_workers("dws_attach", socket=self._receiver.socket, **options)

    def publish(self, step: int, prefix: str = "") -> None:
        """Publishes the step and returns when the engine has it."""
        self.trainer.wait(self.trainer.publish(step, prefix))

    def check_versions(self) -> str:
        """Publishes each step, then the first again; each time the engine must equal the step's fresh engine."""
        for step in (*STEPS, STEPS[0]):
            self.publish(step)
            self._scene.require_as_fresh(self.server, step, f"step {step}")
        found = f"{len(STEPS)} versions as fresh engines"
        return found + (self._check_processed() if self._scene.configuration.is_quantised else "")

    def _check_processed(self) -> str:
        """Checks that a commit makes the engine process the layers that it changes, and no others."""
        if not isinstance(self.server, VllmServer):
            return ""
        every = self._processed()
        self.publish(STEPS[1], CHANGING_LAYER)
        some = self._processed()
        self.publish(STEPS[1])
        self._scene.require_as_fresh(self.server, STEPS[1], f"after a change of {CHANGING_LAYER} alone")
        if not 0 < some["processed_layers"] < every["processed_layers"]:
            raise CheckFailed(f"{some} for a change of {CHANGING_LAYER} alone, {every} for one of all")
        return "".join(
            f"; {one['processed_layers']} layers processed in {1000 * one['process_seconds']:.1f} ms"
            for one in (every, some)
        )

    def _processed(self) -> dict[str, float]:
        """What the last commit processed: for each figure the largest of all ranks."""
        assert isinstance(self.server, VllmServer)
        found = self.server.call_workers("dws_status")
        names = ("processed_layers", "process_seconds")
        return {name: max(status[name] for status in found if status) for name in names}

    def check_kill(self, check: str) -> str:
        """Kills one of the processes several times while versions are published and requests run.

        Raises:
          CheckFailed, RuntimeError, OSError, DwsError.
        """
        kill: Callable[[], None] = {
            "kill-receiver": lambda: self._restart(self._receiver),
            "kill-sender": lambda: self._restart(self._sender),
            "kill-engine": self._restart_engine,
        }[check]
        assert set(KILLS) == {"kill-receiver", "kill-sender", "kill-engine"}
        count = 1 if check == "kill-engine" else KILL_COUNT
        with Traffic(lambda: self.server, self._scene.probes()) as traffic:
            with Publishing(self.trainer) as publishing:
                for _ in range(count):
                    time.sleep(PUBLISHING_SECONDS * (0.5 + self._random.random()))
                    kill()
                    traffic.await_passes(3, RECOVERY_SECONDS)
        if publishing.failure is not None:
            raise CheckFailed(f"the trainer: {publishing.failure!r}")
        if traffic.wrong:
            raise CheckFailed(
                f"{traffic.wrong} of {traffic.passes} passes of no version: {traffic.first_wrong}"
            )
        if traffic.failures and check != "kill-engine":
            raise CheckFailed(f"{traffic.failures} requests failed")
        for step in STEPS:
            self.publish(step)
            self._scene.require_as_fresh(self.server, step, f"after {check}, step {step}")
        return f"{count} kills, {publishing.published} versions, {traffic.passes} passes, 0 wrong"

    @staticmethod
    def _restart(daemon: Daemon) -> None:
        daemon.kill()
        daemon.start()

    def _restart_engine(self) -> None:
        server = self.server
        server.kill_worker()
        # The processes that are left must not compute with the worker's memory.
        time.sleep(1.0)
        server.kill()
        self._start()


def check_transfer(scene: Scene) -> str:
    """Checks vLLM's weight transfer API with requests that go on over the update."""
    with Cluster("real-engines") as cluster:
        sender = cluster.start_sender()
        receiver = cluster.start_receiver("engine", *receiver_flags(scene))
        trainer = StepTrainer(sender.socket, cluster.job_id, scene.configuration)
        model = scene.path("transfer")
        scene.write_base(model)
        server = scene.start("transfer", model, transfer=True)
        try:
            init = {"socket": receiver.socket}
            server.post("/init_weight_transfer_engine", {"init_info": init})
            for step in (*STEPS, STEPS[0]):
                version = trainer.publish(step)
                server.post("/pause?mode=keep", {})
                server.post("/start_weight_update", {})
                update = {"version": version, "stream": trainer.stream, "timeout": WAIT_SECONDS}
                server.post("/update_weights", {"update_info": update})
                server.post("/finish_weight_update", {"weight_version": str(version)})
                server.post("/resume", {})
                if server.get("/weight_info") != {"weight_version": str(version)}:
                    raise CheckFailed(f"/weight_info does not name version {version}")
                scene.require_as_fresh(server, step, f"version {version}")
        finally:
            server.kill()
            trainer.close()
    return f"{len(STEPS)} versions as fresh engines"
