"""DWS on the same weights: a dws-sender that publishes version folders, and a dws-receiver that follows a folder
into which the bench moves the versions to apply, one at a time.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack
from typing import Any

import dws
from tests.integration.cluster import RECEIVER, Cluster, Daemon
from tools.bench.daemons import weights
from tools.bench.end_to_end.slime_writer import INDEX
from tools.bench.version_folders import cpu_time
from tools.bench.version_folders.cpu_time import Took

_POLL_SECONDS = 0.001
_WAIT_SECONDS = 600.0


def await_path(path: str, daemon: Daemon) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{path} is not there:\n{daemon.log_tail()}")
        time.sleep(_POLL_SECONDS)


def _pid(daemon: Daemon) -> int:
    assert daemon.process is not None
    return daemon.process.pid


class OurWriter:
    """A context manager; inside, `views` are the trainer's weights, and version 1, a full checkpoint, is in
    `folder`. `base`: where a checkpoint of the same tensors' names will be, for the sender."""

    def __init__(
        self, specs: list[dws.TensorSpec], folder: str, encoding: str, threads: int
    ) -> None:
        self._specs = specs
        self._folder = folder
        self._flags = [f"--slime-dir={folder}", f"--slime-encoding={encoding}"]
        self._flags += [f"--threads={threads}", "--slime-keep=0"]
        self.views: dict[str, Any] = {}

    def __enter__(self) -> "OurWriter":
        with ExitStack() as stack:
            cluster = stack.enter_context(Cluster("bench"))
            # Any checkpoint whose tensors the trainer registers.
            some = os.path.join(cluster.folder, "base")
            os.makedirs(some)
            write_small_checkpoint(os.path.join(some, "model.safetensors"))
            self._sender = cluster.start_sender(0, *self._flags, f"--slime-checkpoint={some}")
            self._trainer = stack.enter_context(dws.Trainer(self._sender.socket, "bench"))
            scale = dws.TensorSpec("scale", "BF16", (1,))
            views = self._trainer.register([*self._specs, scale], views="numpy")
            views.pop("scale")
            self.views = views
            weights.fill(self.views)
            self._trainer.publish(1)
            await_path(self._index(1), self._sender)
            self._stack = stack.pop_all()
        return self

    def _index(self, version: int) -> str:
        return os.path.join(self._folder, f"weight_v{version:06d}", INDEX)

    def publish(self, version: int) -> Took:
        """From the trainer's call until readers see the version."""

        def work() -> None:
            self._trainer.publish(version)
            await_path(self._index(version), self._sender)

        return cpu_time.timed(work, lambda: cpu_time.of_process(_pid(self._sender)))

    def __exit__(self, *error: Any) -> None:
        self.views = {}
        self._stack.__exit__(*error)


def write_small_checkpoint(path: str) -> None:
    """One BF16 tensor of one element, "scale"."""
    text = b'{"scale":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"\0\0")


class OurReader:
    """A context manager around a receiver that follows `folder` and has read the checkpoint in `local`."""

    def __init__(self, folder: str, local: str, threads: int) -> None:
        self._folder = folder
        self._local = local
        # In addition to the thread that asks for them.
        self._flags = [f"--threads={threads - 1}", f"--slime-dir={folder}", "--slime-poll-ms=10"]

    def __enter__(self) -> "OurReader":
        with ExitStack() as stack:
            self._cluster = stack.enter_context(Cluster("bench"))
            at = os.path.join(self._cluster.folder, "follower")
            os.makedirs(at)
            command = [RECEIVER, "--job-id=bench", "--receiver-id=follower"]
            command += [f"--checkpoint={self._local}", *self._flags]
            self._daemon = Daemon("follower", at, command)
            stack.callback(self._daemon.release_ports)
            self._daemon.start()
            stack.callback(self._daemon.stop)
            await_path(os.path.join(self._local, ".weight_sync", "digests.json"), self._daemon)
            self._stack = stack.pop_all()
        return self

    def apply(self, version_folder: str) -> Took:
        """Moves a version into the folder that the receiver follows. The time is what the receiver reports; it
        includes the look at the folder, but not the wait until it looks."""
        version = int(version_folder[-6:])
        target = os.path.join(self._folder, os.path.basename(version_folder))
        took = cpu_time.timed(
            lambda: self._move(version_folder, target, version),
            lambda: cpu_time.of_process(_pid(self._daemon)),
        )
        return Took(self._daemon.metric("dws_follower_apply_seconds"), took.cpu)

    def _move(self, version_folder: str, target: str, version: int) -> None:
        os.rename(version_folder, target)
        deadline = time.monotonic() + _WAIT_SECONDS
        state = os.path.join(self._local, ".weight_sync", "state.json")
        redo = os.path.join(self._local, ".weight_sync", "redo", os.path.basename(target))
        while not _is_at(state, version) or os.path.exists(redo):
            if time.monotonic() > deadline:
                raise RuntimeError(f"version {version} was not applied:\n{self._daemon.log_tail()}")
            time.sleep(_POLL_SECONDS)
        while self._daemon.metric("dws_follower_version") != version:
            time.sleep(_POLL_SECONDS)

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


def _is_at(state: str, version: int) -> bool:
    try:
        with open(state, encoding="utf-8") as file:
            return int(json.load(file)["version"]) == version
    except FileNotFoundError:
        return False
