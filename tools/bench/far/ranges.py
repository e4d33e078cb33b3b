"""A receiver that reads full tensors from a store at the other end of a long link: with a new connection for each request,
with connections that stay open, and with several ranges at a time. Needs root, namespaces and tun devices."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from contextlib import ExitStack

import torch

import dws
from tests.integration.cluster import Cluster
from tests.integration.network_hosts import NetworkHosts, NoNamespaces
from tests.integration.transfer.s3_store import BUCKET, KEY_ID, REGION, SECRET, S3Store
from tools.bench.daemons import weights
from tools.bench.daemons.report import Report
from tools.bench.far.long_link import address, long_link

_HOME, _FAR = 0, 1
_WAIT_SECONDS = 300.0
# An eighth of it holds one range of full tensors, which is too little for reading ahead.
_ONE_RANGE = "--staging-bytes=64MiB"
_MODES = {
    "one range, a connection for each request": (True, (_ONE_RANGE,)),
    "one range": (False, (_ONE_RANGE,)),
    "several ranges": (False, ()),
}


class Job:
    """A sender beside the store, which has one version. A context manager."""

    def __init__(self, hosts: NetworkHosts, size_bytes: int) -> None:
        self._hosts = hosts
        self._size = size_bytes
        self._stack = ExitStack()

    def __enter__(self) -> "Job":
        with self._hosts.inside(_HOME):
            self.store = S3Store(address(_HOME))
        self._stack.callback(self.store.stop)
        self._cluster = self._stack.enter_context(Cluster("bench"))
        self._cluster.pages = False
        keys = f"{self._cluster.folder}/keys"
        with open(keys, "w", encoding="utf-8", opener=_private) as file:
            file.write(f"aws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\n")
        self._flags = (
            f"--shared-dir=s3://{BUCKET}/bench", f"--shared-endpoint={self.store.endpoint}", f"--shared-region={REGION}",
            f"--shared-credentials={keys}", "--insecure=true",
        )  # fmt: skip
        self._hosts.enter(self._cluster, _HOME)
        self._cluster.start_sender(0, *self._flags)
        trainer = self._stack.enter_context(dws.Trainer(self._cluster.senders[0].socket, "bench", 0, 1))
        weights.fill(trainer.register(weights.specs(self._size), views="numpy"))
        trainer.publish(1)
        deadline = time.monotonic() + _WAIT_SECONDS
        while not self.store.keys("/full$") or not self.store.keys("/manifest$"):
            if time.monotonic() > deadline:
                raise RuntimeError("the sender has published no full tensors")
            time.sleep(0.05)
        self._hosts.enter(self._cluster, _FAR)
        return self

    def join(self, name: str, *flags: str) -> tuple[float, int]:
        """Seconds from attaching an engine to its release, and the bytes that the store sent meanwhile."""
        receiver = self._cluster.start_receiver(name, *self._flags, *flags, senders=False)
        with dws.Engine(receiver.socket) as engine:
            shapes = {spec.name: spec.shape for spec in weights.specs(self._size)}
            before, began = self.store.answered_bytes, time.monotonic()
            engine.attach({n: torch.zeros(s, dtype=torch.bfloat16) for n, s in shapes.items()}, timeout=_WAIT_SECONDS)
            while engine.grant is None or engine.grant.version != 1:
                if time.monotonic() - began > _WAIT_SECONDS:
                    raise RuntimeError(f"{name} has no version after {_WAIT_SECONDS:g} s")
                time.sleep(0.005)
            seconds = time.monotonic() - began
        receiver.stop()
        return seconds, self.store.answered_bytes - before

    def __exit__(self, *unused: object) -> None:
        self._stack.close()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def measure(hosts: NetworkHosts, options: argparse.Namespace) -> dict[str, float]:
    """MB/s of each mode, the best of the rounds."""
    found: dict[str, float] = {}
    with Job(hosts, options.size_mib << 20) as job:
        for turn in range(options.rounds):
            for number, (mode, (closes, flags)) in enumerate(_MODES.items()):
                job.store.closes = lambda ends=closes: ends
                seconds, size = job.join(f"r-{turn}-{number}", *flags)
                print(f"# {mode}: {size / 1e6:.1f} MB in {seconds:.2f} s", file=sys.stderr, flush=True)
                found[mode] = max(found.get(mode, 0.0), size / 1e6 / seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mib", type=int, default=96, help="of the weights, in BF16")
    parser.add_argument("--rtt-ms", type=float, default=80.0, help="round trip time of the link")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    report = Report()
    try:
        with NetworkHosts(2) as hosts, long_link(hosts, options.rtt_ms / 1000):
            found = measure(hosts, options)
    except (NoNamespaces, FileNotFoundError, PermissionError, subprocess.SubprocessError) as error:
        print(f"# ranges: skipped: {error}", file=sys.stderr)
        return
    first, one, several = (found[mode] for mode in _MODES)
    where = f"full tensors from a store {options.rtt_ms:g} ms away"
    report.add("W7", f"{where}: connections kept / one for each request", one, first, one / first, "MB/s")
    report.add("W8", f"{where}: several ranges / one for each request", several, first, several / first, "MB/s")
    report.add("W9", f"{where}: several ranges / one", several, one, several / one, "MB/s")
    report.print_table()
    print("# link: tun devices and a process that delays packets; no limit of its speed but that process", file=sys.stderr)


if __name__ == "__main__":
    main()
