"""Three regions: a trainer with its sender and an nginx in one, and two that are far, each behind one slow link, with a cache as
deploy/nginx/region.conf configures it. Receivers of each follow over HTTP alone. Needs root, namespaces and nginx."""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import time
from contextlib import ExitStack
from typing import Any

import torch

import dws
from tests.integration.certificates import Authority
from tests.integration.cluster import Cluster
from tests.integration.network_hosts import NetworkHosts, NoNamespaces
from tests.integration.regions import nginx
from tools.bench.daemons import weights
from tools.bench.daemons.report import Report

HOME, FAR = 0, (1, 2)
_PORT = 8443
_WAIT_SECONDS = 300.0
# Fireworks: 20.3 of 1,024 GiB a step, which they publish as 94 % less than full checkpoints at their cadence.
_FIREWORKS_SHARE = 20.3 / 1024
_FIREWORKS_LESS = 0.94
_OVERHEAD_MAX = 1.05  # of the object, over a far link


@dataclasses.dataclass
class Step:
    """One version: `object_bytes` is its file's; `far_bytes` what each far host received until the last commit."""

    seconds: float
    object_bytes: int
    far_bytes: list[int]


class Regions:
    """A context manager; inside, all receivers have version 1. `cached`: those of far regions read by a cache of theirs."""

    def __init__(self, hosts: NetworkHosts, size_bytes: int, receivers: int, cached: bool) -> None:
        self._hosts = hosts
        self._size = size_bytes
        self._receivers = receivers
        self._cached = cached
        self._version = 0
        self._served: list[nginx.Nginx] = []

    def __enter__(self) -> "Regions":
        with ExitStack() as stack:
            cluster = stack.enter_context(Cluster("bench"))
            self._root = os.path.join(cluster.folder, "dws")
            os.makedirs(self._root)
            self._start(cluster, stack)
            self._trainer = stack.enter_context(dws.Trainer(cluster.senders[0].socket, "bench", 0, 1))
            self._views = self._trainer.register(weights.specs(self._size), views="numpy")
            weights.fill(self._views)
            self._changes = weights.Changes(self._views, _FIREWORKS_SHARE)
            self._engines = [stack.enter_context(dws.Engine(r.socket)) for r in cluster.receivers]
            before = self._traffic()
            began = time.monotonic()
            self._version = 1
            self._trainer.publish(1)
            for engine in self._engines:
                shapes = {spec.name: spec.shape for spec in weights.specs(self._size)}
                engine.attach({n: torch.zeros(s, dtype=torch.bfloat16) for n, s in shapes.items()}, timeout=_WAIT_SECONDS)
            self._settle("full", began, before)
            self._stack = stack.pop_all()
        return self

    def _start(self, cluster: Cluster, stack: ExitStack) -> None:
        addresses = [f"IP:{self._hosts.address(host)}" for host in (HOME, *FAR)]
        files = Authority(cluster.folder, "authority").issue("server", hosts=("DNS:localhost", *addresses))
        self._hosts.enter(cluster, HOME)
        cluster.pages = False
        cluster.start_sender(0, f"--shared-dir={self._root}")
        origin_at = (self._hosts.address(HOME), _PORT)
        prefix = list(cluster.prefix)
        trusted = {"# 10.20.0.0/16   1;": f"{self._hosts.address(HOME)}/24 1;"}
        origin = nginx.origin(f"{cluster.folder}/origin", self._root, origin_at, files, prefix, trusted)
        stack.callback(origin.stop)
        origin.start(origin_at)
        for host in (HOME, *FAR):
            self._hosts.enter(cluster, host)
            at = origin_at
            if self._cached and host != HOME:
                at = (self._hosts.address(host), _PORT)
                folder = f"{cluster.folder}/cache-{host}"
                cache = nginx.region(
                    folder, f"{folder}-files", at, origin_at, files, list(cluster.prefix), trusted
                )
                stack.callback(cache.stop)
                cache.start(at)
            for index in range(self._receivers):
                cluster.start_receiver(
                    f"region-{host}-{index}", f"--shared-dir=https://{at[0]}:{at[1]}/dws", f"--shared-ca={files.ca}",
                    "--shared-poll-ms=100", senders=False,
                )  # fmt: skip

    def _traffic(self) -> list[int]:
        return [self._hosts.traffic()[host][1] for host in FAR]

    def _settle(self, kind: str, began: float, before: list[int]) -> Step:
        """Waits until all engines were released with the version."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while any(e.grant is None or e.grant.version != self._version for e in self._engines):
            if time.monotonic() > deadline:
                raise RuntimeError(f"version {self._version} is not everywhere after {_WAIT_SECONDS:g} s")
            time.sleep(0.005)
        seconds = time.monotonic() - began
        far = [now - was for now, was in zip(self._traffic(), before)]
        name = f"v{self._version:020d}-"
        (path,) = (
            os.path.join(at, kind) for at, _, names in os.walk(self._root) if kind in names and name in at
        )
        return Step(seconds, os.path.getsize(path), far)

    def publish(self, full: bool) -> Step:
        self._version += 1
        self._changes.flip()
        before = self._traffic()
        began = time.monotonic()
        self._trainer.publish(self._version, full=full)
        return self._settle("full" if full else "delta", began, before)

    def __exit__(self, *unused: Any) -> None:
        self._stack.close()


def _median(steps: list[Step]) -> Step:
    far = [round(statistics.median(s.far_bytes[i] for s in steps)) for i in range(len(FAR))]
    return Step(statistics.median(s.seconds for s in steps), steps[0].object_bytes, far)


def measure(hosts: NetworkHosts, options: argparse.Namespace) -> dict[tuple[bool, bool], Step]:
    """By (cached, full): the median of the versions."""
    found = {}
    for cached in (True, False):
        with Regions(hosts, options.size_mib << 20, options.receivers, cached) as regions:
            for full in (False, True):
                steps = [regions.publish(full) for _ in range(2 if full else options.versions)]
                found[cached, full] = _median(steps)
                print(f"# cached={cached} full={full}: {steps}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mib", type=int, default=64, help="of the weights, in BF16")
    parser.add_argument("--receivers", type=int, default=5, help="in each region")
    parser.add_argument("--versions", type=int, default=5, help="deltas that are measured")
    parser.add_argument("--link-rate", type=float, default=100.0, help="Mbit/s of each far region's link")
    options = parser.parse_args()
    report = Report()
    try:
        with NetworkHosts(1 + len(FAR)) as hosts:
            for host in FAR:
                hosts.limit(host, round(options.link_rate * 1e6 / 8))
            found = measure(hosts, options)
    except NoNamespaces as error:
        print(f"# regions: skipped: {error}", file=sys.stderr)
        return
    delta, direct = found[True, False], found[False, False]
    whole, whole_direct = found[True, True], found[False, True]
    for at, host in enumerate(FAR):
        for kind, step in (("delta", delta), ("full version", whole)):
            report.add(
                "W1", f"bytes over the link of region {host}: {kind} / object", step.far_bytes[at],
                step.object_bytes, step.far_bytes[at] / step.object_bytes, "bytes", at_most=_OVERHEAD_MAX,
            )  # fmt: skip
    # W2 depends on the object: lists that are a second old, and waiters that look each half second, cost what a small one saves.
    for number, case, ours, theirs, most in (
        ("W2", "publish to the last commit: delta by caches / delta from the origin", delta, direct, None),
        ("W3", "publish to the last commit: delta by caches / full version by caches", delta, whole, 1.0),
        ("W4", "publish to the last commit: delta by caches / full version from the origin", delta, whole_direct, 1.0),
        ("W5", "publish to the last commit: full version by caches / full version from the origin", whole, whole_direct, 1.0),
    ):
        ratio = ours.seconds / theirs.seconds
        report.add(number, case, ours.seconds, theirs.seconds, ratio, "s", at_most=most)
    less = 1 - delta.object_bytes / whole.object_bytes
    report.add(
        "W6", f"less than full versions at {_FIREWORKS_SHARE:.1%} of elements / Fireworks' published", less,
        _FIREWORKS_LESS, less / _FIREWORKS_LESS, "share", at_least=1.0,
    )  # fmt: skip
    report.print_table()
    print("# links: token buckets without delay: this kernel's netem was not used", file=sys.stderr)


if __name__ == "__main__":
    main()
