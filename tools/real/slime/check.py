"""slime's own reader applies what the senders of a trainer with several ranks write: tools/real.sh slime --source SLIME.

SLIME is a checkout of THUDM/slime. Its reader, which runs inside of SGLang, is in a patch there; it is taken out of the patch
and run as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Any, Callable, Iterator

import numpy as np

import dws
from tests.integration.cluster import Cluster, Daemon
from tests.integration.slime_publish_test import read_file, write_checkpoint
from tests.integration.transfer.view_test import outputs
from tools.real.environment import Interpreter
from tools.real.report import Report

_PATCH = "docker/patch/latest/sglang-pull_weights.patch"
_MODULE = "python/sglang/srt/weight_sync/local_checkpoint.py"
_RANKS = 3
_VIEW = "fp8-block128/deepseek"
_WAIT_SECONDS = 60.0
_PULL = "import sys, reader; reader.pull(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))"


def run(options: argparse.Namespace, python: Interpreter) -> int:
    """The exit status."""
    report = Report("cases")
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(options.source, _PATCH), encoding="utf-8") as patch:
            text = module_in_patch(patch.read(), _MODULE)
        with open(os.path.join(folder, "reader.py"), "w", encoding="utf-8") as out:
            out.write(text)
        for name, case, view in (("follow", _follow, ""), ("killed", _killed, ""), ("late", _late, ""), ("quantised", _follow, _VIEW)):
            with Cluster("slime") as cluster:
                try:
                    report.ok(f"slime/{name}", case(Trainer(cluster, python, folder, view)))
                except (AssertionError, dws.DwsError) as error:
                    report.failed(f"slime/{name}", f"{error}\n{cluster.logs(20)}")
    return report.end()


def module_in_patch(patch: str, path: str) -> str:
    """The text of a file that a patch adds.

    Raises:
      SystemExit: the patch does not add it.
    """
    lines = iter(patch.splitlines())
    for line in lines:
        if line == f"+++ b/{path}":
            break
    else:
        raise SystemExit(f"{_PATCH} adds no {path}: expected a checkout of THUDM/slime of 2026-08")
    text = []
    for line in lines:
        if line.startswith("diff "):
            break
        if line.startswith("+"):
            text.append(line[1:])
    return "\n".join(text) + "\n"


class Trainer:
    """A trainer of three ranks, each with BF16 tensors of its own, their senders, and slime's reader. `view`: what the folder has in
    place of these tensors."""

    def __init__(self, cluster: Cluster, python: Interpreter, reader: str, view: str) -> None:
        self._cluster, self._python, self._reader, self._view = cluster, python, reader, view
        self._random = np.random.default_rng(3)
        self.versions, self.base, self.local = (os.path.join(cluster.folder, name) for name in ("versions", "base", "local"))
        self.given = {
            f"layer.{rank}.{name}": (self._random.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)
            for rank in range(_RANKS)
            for name, shape in (("w.weight", (300, 257)), ("bias", (1000,)))
        }
        base, kinds = self.published(self.given), {"uint16": "BF16", "float32": "F32", "uint8": "F8_E4M3"}
        write_checkpoint(self.base, base, {name: kinds[tensor.dtype.name] for name, tensor in base.items()})
        with open(os.path.join(self.base, "config.json"), "w", encoding="utf-8") as file:
            file.write("{}")
        self.senders = [self._sender(rank) for rank in range(_RANKS)]
        self.trainers: list[dws.Trainer] = []
        self.weights: dict[str, Any] = {}

    def _sender(self, rank: int) -> Daemon:
        flags = [f"--slime-view={self._view}"] if self._view else []
        return self._cluster.start_sender(rank, f"--slime-dir={self.versions}", f"--slime-checkpoint={self.base}", *flags)

    def published(self, weights: dict[str, Any]) -> dict[str, Any]:
        """What the folder has of these weights."""
        found = {}
        for name, bits in weights.items():
            found.update(outputs(self._view, name, bits) if self._view else {name: bits})
        return found

    def register(self, rank: int) -> None:
        stream = self.trainers[0].stream if self.trainers else None
        trainer = dws.Trainer(self.senders[rank].socket, "slime", rank, _RANKS, stream)
        mine = {name: self.weights.get(name, tensor).copy() for name, tensor in self.given.items() if name.startswith(f"layer.{rank}.")}
        specs = [dws.TensorSpec(name, dws.DType.BF16, tensor.shape) for name, tensor in mine.items()]
        self.weights.update(trainer.register(specs, views="numpy"))
        for name, tensor in mine.items():
            self.weights[name][...] = tensor
        if rank < len(self.trainers):
            self.trainers[rank] = trainer
        else:
            self.trainers.append(trainer)

    def publish(self, version: int) -> None:
        for name, tensor in self.weights.items():
            if not name.endswith("bias") or version % 2:
                tensor.reshape(-1)[self._random.integers(0, tensor.size, 200)] ^= 64
        for trainer in self.trainers:
            trainer.publish(version)

    def pull(self, version: int) -> subprocess.CompletedProcess[str]:
        """slime's reader brings its checkpoint to the version."""
        command = [self._python.path, "-c", _PULL, self.local, self.base, self.versions, str(version)]
        return subprocess.run(command, env=self._python.variables([self._reader]), capture_output=True, text=True,
                              timeout=_WAIT_SECONDS, check=False)  # fmt: skip

    def is_there(self, version: int) -> bool:
        return os.path.isdir(os.path.join(self.versions, f"weight_v{version:06d}"))

    def check(self, version: int) -> str:
        """Waits for the version, pulls it and compares. Returns its kind."""
        _await(lambda: self.is_there(version), f"version {version} is not published")
        pulled = self.pull(version)
        assert pulled.returncode == 0, f"version {version}: {pulled.stderr[-2000:]}"
        found: dict[str, Any] = {}
        for file in os.listdir(self.local):
            if file.endswith(".safetensors"):
                found.update(read_file(os.path.join(self.local, file))[1])
        wanted = self.published(self.weights)
        assert sorted(found) == sorted(wanted), f"version {version} has {sorted(found)}"
        differ = [name for name, tensor in wanted.items() if found[name].tobytes() != np.ascontiguousarray(tensor).tobytes()]
        assert not differ, f"version {version}: {differ} differ"
        with open(os.path.join(self.versions, f"weight_v{version:06d}", "model.safetensors.index.json"), encoding="utf-8") as file:
            return "delta" if "delta_encoding" in json.load(file)["metadata"] else "full"

    def restart(self, rank: int) -> None:
        self.senders[rank].kill()
        with contextlib.suppress(dws.DwsError):
            self.trainers[rank].close()
        self.senders[rank].start()
        self.register(rank)


def _await(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def _ranks(trainer: Trainer) -> Iterator[int]:
    for rank in range(_RANKS):
        trainer.register(rank)
        yield rank


def _follow(trainer: Trainer) -> str:
    list(_ranks(trainer))
    kinds = []
    for version in range(1, 6):
        trainer.publish(version)
        kinds.append(trainer.check(version))
    assert kinds == ["full"] + ["delta"] * 4, kinds
    shutil.rmtree(trainer.local)  # a reader that is new
    trainer.check(5)
    return f"{len(kinds)} versions of {_RANKS} ranks, bit for bit"


def _killed(trainer: Trainer) -> str:
    """Each rank's sender is killed soon after a publish; what slime's reader finds is whole."""
    list(_ranks(trainer))
    trainer.publish(1)
    trainer.check(1)
    version, whole = 1, 0
    for rank in range(_RANKS):
        version += 1
        trainer.publish(version)
        time.sleep(0.1 * rank)
        os.kill(trainer.senders[rank].process.pid, signal.SIGKILL)
        if trainer.is_there(version):
            pulled = trainer.pull(version)
            assert pulled.returncode == 0, pulled.stderr[-2000:]
            whole += 1
        trainer.restart(rank)
        version += 1
        trainer.publish(version)
        assert trainer.check(version) == "full"
        version += 1
        trainer.publish(version)
        assert trainer.check(version) == "delta"
    return f"{_RANKS} senders killed, {whole} of their versions were there"


def _late(trainer: Trainer) -> str:
    """Until the last rank has published, slime's reader finds no version."""
    list(_ranks(trainer))
    for rank, one in enumerate(trainer.trainers):
        pulled = trainer.pull(1)
        assert pulled.returncode != 0 and "published weight version missing" in pulled.stderr, pulled.stderr[-500:]
        assert not trainer.is_there(1), f"version 1 is there before rank {rank} has published"
        time.sleep(1.0)
        one.publish(1)
    trainer.check(1)
    return "no version before the last rank's part"
