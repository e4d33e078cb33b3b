"""A shared directory in a store that somebody else has written, with the named Python: tools/real.sh store."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import time
from typing import Any, Iterator

import numpy as np

import dws
from tests.integration.cluster import Cluster, Daemon
from tools.real.environment import Interpreter
from tools.real.report import Report

BUCKET, REGION = "weights", "eu-central-1"
VERSIONS = 6
_SHAPES = {"large": (6_000, 1_000), "small": (33,), "b": (900, 401)}  # the first is uploaded in parts
_WAIT_SECONDS = 60.0


def run(options: argparse.Namespace, python: Interpreter) -> int:
    """The exit status."""
    report = Report("cases")
    with _store(python) as (endpoint, key_id, secret), Cluster("store") as cluster:
        keys = os.path.join(cluster.folder, "keys")
        flags = (f"--shared-dir=s3://{BUCKET}/a run/one", f"--shared-endpoint={endpoint}", f"--shared-region={REGION}",
                 f"--shared-credentials={keys}", "--folder-stale-after=1", "--shared-dir-anchor-every=3")  # fmt: skip
        _write(keys, key_id, secret)
        sender = cluster.start_sender(0, *flags)
        try:
            report.ok("follow", _follow(cluster, sender, flags[:4]))
            _write(keys, key_id, secret[::-1])
            report.ok("refused", _refused(cluster, flags[:4]))
        except (AssertionError, dws.DwsError) as error:
            report.failed("store", f"{error}\n{cluster.logs(20)}")
    return report.end()


@contextlib.contextmanager
def _store(python: Interpreter) -> Iterator[list[str]]:
    """The endpoint and keys of a store that runs until the end."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "server.py")
    with subprocess.Popen([python.path, program, BUCKET, REGION], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, env=python.variables([]), text=True) as server:  # fmt: skip
        assert server.stdin is not None and server.stdout is not None
        try:
            line = server.stdout.readline()
            if not line:
                raise SystemExit(f"{python.path} could not start the store: run {program} {BUCKET} {REGION} with it")
            yield json.loads(line)
        finally:
            server.stdin.close()


def _write(path: str, key_id: str, secret: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(f"[default]\naws_access_key_id={key_id}\naws_secret_access_key={secret}\n")


def _follow(cluster: Cluster, sender: Daemon, flags: tuple[str, ...]) -> str:
    random = np.random.default_rng(3)
    with contextlib.closing(dws.Trainer(sender.socket, "store")) as trainer:
        weights = trainer.register({name: random.standard_normal(shape, np.float32) for name, shape in _SHAPES.items()})
        engines: list[tuple[dws.Engine, Any]] = []
        try:
            for version in range(1, VERSIONS + 1):
                for array in weights.values():
                    array.reshape(-1)[:: 100 + version] += 1.0
                trainer.publish(version)
                if version in (1, VERSIONS):  # the second joins late
                    engine = dws.Engine(cluster.start_receiver(f"r{version}", *flags, senders=False).socket)
                    engines.append((engine, engine.attach({n: np.zeros_like(a) for n, a in weights.items()})))
                for engine, live in engines:
                    _require(engine, live, version, weights)
        finally:
            for engine, _ in engines:
                engine.close()
    return f"{VERSIONS} versions of {sum(a.nbytes for a in weights.values()) >> 20} MiB, bit for bit at two engines"


def _require(engine: dws.Engine, live: Any, version: int, weights: Any) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while engine.grant is None or engine.grant.version != version:
        assert time.monotonic() < deadline, f"version {version} has not come in {_WAIT_SECONDS:g} s"
        time.sleep(0.01)
    with engine.running(_WAIT_SECONDS):
        for name, array in weights.items():
            assert np.array_equal(live[name].view(np.uint32), array.view(np.uint32)), f"'{name}' differs at {version}"


def _refused(cluster: Cluster, flags: tuple[str, ...]) -> str:
    """A receiver with a wrong key says so."""
    receiver = cluster.start_receiver("wrong", *flags, senders=False)
    deadline = time.monotonic() + _WAIT_SECONDS
    while "SignatureDoesNotMatch" not in receiver.page("/status"):
        assert time.monotonic() < deadline, f"the status does not say that the key is wrong: {receiver.page('/status')}"
        time.sleep(0.05)
    return "a wrong key is named in the status"
