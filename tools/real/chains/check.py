"""Chains of versions that another project's writer has written, followed by a real dws-receiver: tools/real.sh chains.

The receiver reads folders, not s3://, so it reads the store's objects from a local copy, with the keys as paths.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import tempfile
import time
from typing import Any

from tests.integration.cluster import Cluster, Daemon
from tools.real.chains.modelexpress_writer import PLAN
from tools.real.environment import Interpreter
from tools.real.report import Report

_WRITE_SECONDS = 180.0
_WAIT_SECONDS = 60.0
_SHARD = "weight_v000004/model-00001-of-00002.safetensors"  # of the version that is full


def run(options: argparse.Namespace, python: Interpreter) -> int:
    """The exit status."""
    report = Report("cases")
    with tempfile.TemporaryDirectory() as folder:
        keys = _write(python, folder)
        for name, case in (("follow", _follow), ("damage", _damaged)):
            with Cluster("chains") as cluster:
                try:
                    report.ok(f"modelexpress/{name}", case(cluster, folder, keys))
                except AssertionError as error:
                    report.failed(f"modelexpress/{name}", f"{error}\n{cluster.logs(20)}")
    return report.end()


def _write(python: Interpreter, folder: str) -> list[str]:
    """Returns the keys of the objects."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "modelexpress_writer.py")
    ended = subprocess.run([python.path, program, folder], env=python.variables([]), capture_output=True, text=True,
                           timeout=_WRITE_SECONDS, check=False)  # fmt: skip
    if ended.returncode != 0:
        raise SystemExit(f"{python.path} {program} FOLDER: {ended.stderr[-2000:]}")
    keys: list[str] = json.loads(ended.stdout.splitlines()[-1])
    return keys


def _start(cluster: Cluster, folder: str) -> tuple[Daemon, str, str]:
    """A receiver, the folder that it follows, and its checkpoint."""
    follows, checkpoint = os.path.join(cluster.folder, "versions"), os.path.join(cluster.folder, "checkpoint")
    os.makedirs(follows)
    shutil.copytree(os.path.join(folder, "base"), checkpoint)
    flags = (f"--slime-dir={follows}", f"--checkpoint={checkpoint}", "--slime-poll-ms=50", "--stale-after=1")
    return cluster.start_receiver("follower", *flags, senders=False), follows, checkpoint


def _publish(folder: str, number: int, follows: str) -> None:
    """Copies one version's objects, the index last."""
    name = f"weight_v{number:06d}"
    came_from, to = os.path.join(folder, "versions", name), os.path.join(follows, name)
    os.makedirs(to)
    for file in sorted(os.listdir(came_from), key=lambda file: file.endswith(".json")):
        shutil.copy(os.path.join(came_from, file), os.path.join(to, file + ".tmp"))
        os.rename(os.path.join(to, file + ".tmp"), os.path.join(to, file))


def _follow(cluster: Cluster, folder: str, keys: list[str]) -> str:
    receiver, follows, checkpoint = _start(cluster, folder)
    for number, kind in enumerate(PLAN, 1):
        _publish(folder, number, follows)
        _await(receiver, number)
        wanted = _tensors(os.path.join(folder, "expected", f"{number:06d}.safetensors"))
        found: dict[str, Any] = {}
        for file in os.listdir(checkpoint):
            if file.endswith(".safetensors"):
                found.update(_tensors(os.path.join(checkpoint, file)))
        assert sorted(found) == sorted(wanted), f"version {number} ({kind}) has {sorted(found)}, expected {sorted(wanted)}"
        differ = [name for name in wanted if found[name] != wanted[name]]
        assert not differ, f"version {number} ({kind}): {differ} differ"
    return f"{len(PLAN)} versions ({', '.join(PLAN)}) of {len(keys)} objects, bit for bit"


def _damaged(cluster: Cluster, folder: str, keys: list[str]) -> str:
    """A byte of a full version is wrong: the stated adler32 finds it, and the version is refused by tensor."""
    receiver, follows, _ = _start(cluster, folder)
    for number in (1, 2, 3):
        _publish(folder, number, follows)
    _await(receiver, 3)
    hidden = os.path.join(cluster.folder, "hidden")
    os.makedirs(hidden)
    _publish(folder, 4, hidden)
    with open(os.path.join(hidden, _SHARD), "r+b") as shard:
        shard.seek(-1, os.SEEK_END)
        last = shard.read(1)[0]
        shard.seek(-1, os.SEEK_END)
        shard.write(bytes([last ^ 1]))
    os.rename(os.path.join(hidden, "weight_v000004"), os.path.join(follows, "weight_v000004"))
    deadline = time.monotonic() + _WAIT_SECONDS
    while "its adler32 is" not in (failing := str(_status(receiver)["follower"]["failing"])):
        assert time.monotonic() < deadline, f"the damage is not refused: {failing!r}, at {_status(receiver)['committed_version']}"
        time.sleep(0.05)
    assert _status(receiver)["committed_version"] == "3", _status(receiver)
    return failing.rpartition("/")[2]


def _status(receiver: Daemon) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(receiver.page("/status"))["receiver"]
    return told


def _await(receiver: Daemon, number: int) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while (status := _status(receiver))["committed_version"] != str(number):
        assert time.monotonic() < deadline, f"version {number} is not applied: {status['follower']}"
        time.sleep(0.02)


def _tensors(path: str) -> dict[str, Any]:
    """The type, shape and bytes of each tensor of a safetensors file."""
    with open(path, "rb") as file:
        content = file.read()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    found = {}
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        found[name] = (tensor["dtype"], tensor["shape"], content[8 + size + begin : 8 + size + end])
    return found
